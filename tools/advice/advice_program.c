/*
 * The rules of advice about what the program does (advice_rules.h).
 */
#include <stdio.h>
#include <string.h>

#include "advice_rules.h"
#include "core/base/readable.h"
#include "core/figures/report_table.h"

/* Many frees waited for the GPU, as the driver's own frees do. */
bool frees_wait(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;
    char waited[READABLE_BYTES];

    if (!frees_have_waited(at_hand))
        return false;
    readable_time(totals->waits.nanoseconds, waited);
    if (at_hand->free_synchronizes) {
        snprintf(advice->setting, sizeof(advice->setting), "free_synchronizes");
        snprintf(advice->from, sizeof(advice->from), "true");
        snprintf(advice->to, sizeof(advice->to), "false");
        snprintf(advice->text, sizeof(advice->text),
                 "%llu of %llu frees waited for the GPU, %s in all, because %%s is true. If the "
                 "program does not rely on that wait (`cudapool try` compares its results), set it "
                 "to false.",
                 (unsigned long long)totals->waits.frees, (unsigned long long)totals->frees,
                 waited);
        return true;
    }
    snprintf(
        advice->text, sizeof(advice->text),
        "%llu of %llu frees waited for the GPU, %s in all, because work that the host may have "
        "to release (host functions, callbacks, waits for a value in memory) was under way, or "
        "more than an eighth of what was left of the memory was pending: there the pool waits as "
        "the driver does.",
        (unsigned long long)totals->waits.frees, (unsigned long long)totals->frees, waited);
    return true;
}

/* Most requests miss because the program frees almost nothing. */
bool memory_is_never_freed(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;

    if (!misses_most(totals) || is_a_tenth(totals->frees, totals->requests))
        return false;
    snprintf(advice->text, sizeof(advice->text),
             "%llu of %llu requests missed because next to nothing is freed (%llu blocks): memory "
             "that the program keeps cannot be reused.",
             (unsigned long long)totals->misses, (unsigned long long)totals->requests,
             (unsigned long long)totals->frees);
    return true;
}

/* In most capture modes, an allocation by the driver fails and spoils the capture. The rule does
 * not name a setting to try, because a program may rely on that error. */
bool captures_go_to_the_driver(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;
    bool some_fail = at_hand->captured > 0 && totals->failures.other > 0;
    bool may_allocate = at_hand->settings->captures.allocate;

    if (!is_a_tenth(at_hand->captured, totals->requests) && !some_fail)
        return false;
    snprintf(
        advice->text, sizeof(advice->text),
        "%llu of %llu requests came while a stream was being captured into a graph: the driver "
        "answers those%s. Allocating before the capture begins lets them hit%s.",
        (unsigned long long)at_hand->captured, (unsigned long long)totals->requests,
        some_fail ? ", and most captures forbid them and fail" : "",
        may_allocate
            ? ""
            : "; with captures.allocate set to true the pool answers them, and captures go "
              "on");
    return true;
}

/* Each size is requested too seldom, fewer than four times on average, for cached blocks to be
 * reused. */
bool sizes_do_not_come_back(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;
    const struct bucket_settings *buckets = at_hand->buckets;

    if (!misses_most(totals) || buckets->policy == BUCKETS_EXACT ||
        buckets->policy == BUCKETS_SPLIT || totals->requests / at_hand->kind->bucket_count >= 4)
        return false;
    if (buckets->policy == BUCKETS_GEOMETRIC && buckets->steps_per_doubling > 1) {
        snprintf(advice->setting, sizeof(advice->setting), "buckets.steps_per_doubling");
        snprintf(advice->from, sizeof(advice->from), "%u", buckets->steps_per_doubling);
        snprintf(advice->to, sizeof(advice->to), "%u", (buckets->steps_per_doubling + 3) / 4);
    }
    snprintf(advice->text, sizeof(advice->text),
             "%llu of %llu requests missed: they were of %zu different sizes, which hardly come "
             "back.%s%s%s%s%s",
             (unsigned long long)totals->misses, (unsigned long long)totals->requests,
             at_hand->kind->bucket_count, advice->setting[0] == '\0' ? "" : " Change %s from ",
             advice->from, advice->setting[0] == '\0' ? "" : " to ", advice->to,
             advice->setting[0] == '\0' ? ""
                                        : ", so that more sizes share blocks, at the price of "
                                          "memory.");
    return true;
}

/* The first setting that is off and would let one stream reuse blocks freed on another. NULL: all
 * are on. */
static const char *closed_way(const struct reuse_settings *reuse)
{
    if (!reuse->opportunistic)
        return "reuse.opportunistic";
    return reuse->internal_dependencies ? NULL : "reuse.internal_dependencies";
}

/* Requests on one stream miss while blocks of other streams are free. */
bool blocks_are_on_other_streams(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;
    const char *way = closed_way(&at_hand->settings->stream_ordered.reuse);

    if (strcmp(at_hand->kind->kind, "stream_ordered") != 0 || !misses_most(totals) ||
        totals->peak.reserved_bytes / 2 <= totals->peak.live_bytes)
        return false;
    if (way != NULL) {
        snprintf(advice->setting, sizeof(advice->setting), "%s", way);
        snprintf(advice->from, sizeof(advice->from), "false");
        snprintf(advice->to, sizeof(advice->to), "true");
    }
    snprintf(advice->text, sizeof(advice->text),
             "%llu of %llu requests missed although free blocks were there, on other streams that "
             "were not known to be done with them. %s",
             (unsigned long long)totals->misses, (unsigned long long)totals->requests,
             way == NULL ? "Freeing on the stream that allocates next lets them hit."
                         : "Change %s from false to true.");
    return true;
}

/* The pool reserves more than twice what the program has in use. Others may need that memory. */
bool much_is_reserved(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;
    char live[READABLE_BYTES], reserved[READABLE_BYTES];
    uint64_t wanted = totals->peak.live_bytes / MIB * MIB;

    wanted = wanted < 64 * MIB ? 64 * MIB : wanted;
    if (totals->peak.reserved_bytes / 2 <= totals->peak.live_bytes ||
        totals->peak.reserved_bytes - totals->peak.live_bytes < 256 * MIB ||
        byte_size_resolve(&at_hand->caps->cached, at_hand->memory_bytes) <= wanted)
        return false;
    snprintf(advice->setting, sizeof(advice->setting), "caps.cached");
    spell_size(&at_hand->caps->cached, advice->from);
    spell_bytes(wanted, advice->to);
    readable_bytes(totals->peak.live_bytes, live);
    readable_bytes(totals->peak.reserved_bytes, reserved);
    snprintf(advice->text, sizeof(advice->text),
             "The pool held up to %s for a program that had at most %s in use. If others need the "
             "memory, lower %%s from %s to %s: more requests then miss.",
             reserved, live, advice->from, advice->to);
    return true;
}

/* Most requests missed, and no rule before this one has found why. */
bool most_requests_miss(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;

    if (at_hand->found > 0 || !misses_most(totals))
        return false;
    snprintf(
        advice->text, sizeof(advice->text),
        "%llu of %llu requests missed: when they came, the blocks of their sizes were in use, or "
        "the GPU had not finished with them.",
        (unsigned long long)totals->misses, (unsigned long long)totals->requests);
    return true;
}
