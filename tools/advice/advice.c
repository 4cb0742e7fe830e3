/*
 * Applies the rules of advice_rules.h, and prints the advice that they give (advice.h).
 */
#include "advice.h"

#include <stdlib.h>
#include <string.h>

#include "advice_rules.h"
#include "core/base/readable.h"
#include "core/figures/report_table.h"

/* A kind of memory with fewer requests gets advice only on failed requests and frees that
 * waited. */
#define LEAST_REQUESTS 100

static const struct rule {
    const char *name;
    bool (*applies)(const struct case_at_hand *at_hand, struct advice *advice);
} rules[] = {
#define RULE(rule) {#rule, rule},
    ADVICE_RULES(RULE)
#undef RULE
};

static const struct neighbour_rule {
    const char *name;
    bool (*applies)(const struct case_of_neighbours *at_hand, struct advice *advice);
} neighbour_rules[] = {
#define RULE(rule) {#rule, rule},
    NEIGHBOUR_RULES(RULE)
#undef RULE
};

/* Returns the bytes of the smallest device, so that a proposed size fits every device. 0: not
 * known. */
static uint64_t device_bytes(const struct summary *summary)
{
    uint64_t least = 0;

    for (size_t i = 0; i < summary->device_count; i++) {
        uint64_t bytes = summary->devices[i].device.total_bytes;
        if (bytes != 0 && (least == 0 || bytes < least))
            least = bytes;
    }
    return least;
}

static uint64_t captured_of(const struct summary *summary)
{
    uint64_t captured = 0;

    for (size_t i = 0; i < summary->device_count; i++)
        captured = saturating_sum(captured, summary->devices[i].device.captured);
    return captured;
}

static const struct device_limits *limits_of(const struct summary *summary)
{
    for (size_t i = 0; i < summary->device_count; i++) {
        const struct device_limits *limits = &summary->devices[i].device.limits;
        if (limits->device_from[0] != '\0' || limits->group_from[0] != '\0')
            return limits;
    }
    return NULL;
}

/* The largest size that a setting may have: bytes. */
#define SIZE_MOST (UINT64_C(1) << 50)

/* Returns NULL if the kind has no growth budget. */
static const struct byte_size *growth_budget_of(const struct settings *settings,
                                                enum memory_kind kind)
{
    if (kind == KIND_DEVICE)
        return &settings->device.growth_budget;
    return kind == KIND_HOST ? &settings->host.growth_budget : NULL;
}

static bool free_synchronizes(const struct settings *settings, enum memory_kind kind)
{
    return (kind == KIND_DEVICE && settings->device.free_synchronizes) ||
           (kind == KIND_HOST && settings->host.free_synchronizes);
}

static uint64_t wall_nanoseconds(const struct summary *summary)
{
    double seconds = summary_wall_seconds(summary);

    return seconds >= 0 && seconds < (double)SECOND ? (uint64_t)(seconds * 1e9) : UINT64_MAX;
}

/* Returns false for a kind of memory that this version of cudapool does not know. */
static bool describe_case(const struct summary *summary, const struct report_kind *kind,
                          struct case_at_hand *at_hand)
{
    const struct settings *settings = &summary->settings;
    enum memory_kind number = memory_kind_named(kind->kind);

    if (number == MEMORY_KINDS)
        return false;
    const struct kind_settings own = settings_of_kind(settings, number);
    bool is_of_device = memory_kind_is_of_device(number);
    *at_hand = (struct case_at_hand){
        .kind = kind,
        .device_bytes = device_bytes(summary),
        .memory_bytes = is_of_device ? device_bytes(summary) : SIZE_MOST,
        .is_of_device = is_of_device,
        .buckets = own.buckets,
        .caps = own.caps,
        .growth_budget = growth_budget_of(settings, number),
        .free_synchronizes = free_synchronizes(settings, number),
        .release_after_idle_ns = own.release_after_idle_ns,
        .settings = settings,
        .limits = limits_of(summary),
        .others_held_bytes = summary_neighbours(summary).others_held_bytes,
        .wall_ns = wall_nanoseconds(summary),
        .captured = number == KIND_DEVICE ? captured_of(summary) : 0,
    };
    return true;
}

/* Whether advice on the setting was found already. Of two rules about one setting, the first one
 * wins. */
static bool is_about_the_same(const struct advice *found, size_t count, const char *setting)
{
    for (size_t i = 0; i < count; i++)
        if (setting[0] != '\0' && strcmp(found[i].setting, setting) == 0)
            return true;
    return false;
}

/* Prefixes the setting with the kind's name. Replaces %s in the text with the setting's full
 * name. */
static void name_setting(const char *kind, struct advice *advice)
{
    char name[64], text[ADVICE_TEXT_BYTES];
    const char *gap = strstr(advice->text, "%s");

    if (advice->setting[0] == '\0')
        return;
    /* Limits apply to all kinds together, so the names of their settings contain no kind. */
    if (strncmp(advice->setting, "limits.", 7) == 0)
        snprintf(name, sizeof(name), "%s", advice->setting);
    else
        snprintf(name, sizeof(name), "%.20s.%.40s", kind, advice->setting);
    memcpy(advice->setting, name, sizeof(name));
    if (gap == NULL)
        return;
    memcpy(text, advice->text, sizeof(text));
    snprintf(advice->text, sizeof(advice->text), "%.*s%s%s", (int)(gap - advice->text), text, name,
             text + (gap - advice->text) + 2);
}

static bool has_failures(const struct report_counters *totals)
{
    return totals->failures.memory != 0 || totals->failures.limit != 0 ||
           totals->failures.group != 0;
}

static size_t advise_on(struct case_at_hand *at_hand, struct advice *advice, size_t count)
{
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]) && count < ADVICE_MOST; i++) {
        struct advice one = {.rule = rules[i].name};
        bool is_always_told = strncmp(rules[i].name, "requests_fail", 13) == 0 ||
                              strcmp(rules[i].name, "frees_wait") == 0;
        if ((!is_always_told && at_hand->kind->totals.requests < LEAST_REQUESTS) ||
            !rules[i].applies(at_hand, &one))
            continue;
        at_hand->found++;
        name_setting(at_hand->kind->kind, &one);
        if (!is_about_the_same(advice, count, one.setting))
            advice[count++] = one;
    }
    return count;
}

static size_t advise_on_neighbours(const struct summary *summary, struct advice *advice,
                                   size_t count)
{
    const struct case_of_neighbours at_hand = {.neighbours = summary_neighbours(summary),
                                               .device_bytes = device_bytes(summary),
                                               .settings = &summary->settings};

    for (size_t i = 0; i < sizeof(neighbour_rules) / sizeof(neighbour_rules[0]); i++) {
        struct advice one = {.rule = neighbour_rules[i].name};
        if (count < ADVICE_MOST && neighbour_rules[i].applies(&at_hand, &one))
            advice[count++] = one;
    }
    return count;
}

size_t find_advice(const struct summary *summary, struct advice advice[ADVICE_MOST])
{
    struct case_at_hand at_hand;
    size_t count = 0;

    for (size_t i = 0; i < summary->kind_count; i++) {
        const struct report_kind *kind = &summary->kinds[i];
        if ((kind->totals.requests >= LEAST_REQUESTS || has_failures(&kind->totals) ||
             kind->totals.waits.frees > 0) &&
            describe_case(summary, kind, &at_hand))
            count = advise_on(&at_hand, advice, count);
    }
    return advise_on_neighbours(summary, advice, count);
}

/* --- printing -----------------------------------------------------------------------------------
 */

void explain_no_advice(const struct summary *summary, char text[ADVICE_TEXT_BYTES])
{
    struct report_counters totals = summary_totals(summary);
    char rate[READABLE_BYTES], requests[READABLE_BYTES];

    readable_count(totals.requests, requests);
    readable_hit_rate(&totals, rate);
    if (totals.requests < LEAST_REQUESTS)
        snprintf(
            text, ADVICE_TEXT_BYTES,
            "The program asked for memory %s time%s: too seldom for the pool to matter, or for "
            "advice.",
            requests, totals.requests == 1 ? "" : "s");
    else
        snprintf(text, ADVICE_TEXT_BYTES,
                 "None: %s of %s requests were answered from the pool, and no rule found a setting "
                 "to change. Whether the program is faster, `cudapool try` tells.",
                 rate, requests);
}

void print_advice(const struct summary *summary, FILE *out)
{
    struct advice *advice = calloc(ADVICE_MOST, sizeof(*advice));
    size_t count = advice == NULL ? 0 : find_advice(summary, advice);

    for (size_t i = 0; i < count; i++) {
        fprintf(out, "advice: %s", advice[i].text);
        if (advice[i].setting[0] != '\0')
            fprintf(out, " To try it: --set %s=%s", advice[i].setting, advice[i].to);
        fputc('\n', out);
    }
    free(advice);
}
