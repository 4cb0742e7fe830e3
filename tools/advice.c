/*
 * The rules of advice (advice.h).
 *
 * A rule speaks only where what it found is worth a change: at least LEAST_REQUESTS requests, and
 * at least a tenth of what it is about; only failures are always told. Rules are in the order in
 * which they are printed. The last one speaks where no other has found why most requests missed.
 */
#include "advice.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/readable.h"
#include "core/figures/report_table.h"
#include "core/settings/quantity_json.h"

#define MIB            (1ull << 20)
#define SECOND         1000000000ull
#define LEAST_REQUESTS 100

/* What a rule may look at. */
struct case_at_hand {
    const struct report_kind *kind;
    uint64_t device_bytes; /* of the smallest device */
    const struct bucket_settings *buckets;
    const struct cap_settings *caps;
    const struct byte_size *growth_budget; /* NULL where the kind has none */
    uint64_t release_after_idle_ns;
    const struct settings *settings;
    uint64_t captured; /* requests that came while captures went on; counted for device memory */
    size_t found;      /* by the rules before, of this kind */
};

/* Fills setting (without the kind's name), from, to and text. False where there is nothing to say.
 */
typedef bool rule_function(const struct case_at_hand *at_hand, struct advice *advice);

/* --- what the rules share -----------------------------------------------------------------------
 */

static bool is_a_tenth(uint64_t part, uint64_t whole)
{
    return part > 0 && part >= whole / 10;
}

typedef uint64_t measure(const struct report_counters *counters);

static uint64_t waits(const struct report_counters *counters)
{
    return counters->hits.waited;
}

static uint64_t idle_evictions(const struct report_counters *counters)
{
    return counters->evictions.idle;
}

static uint64_t cap_evictions(const struct report_counters *counters)
{
    return counters->evictions.cap;
}

/* The kept bucket of which there is most. NULL where there is none. */
static const struct report_bucket *worst_bucket(const struct report_kind *kind, measure *of)
{
    const struct report_bucket *worst = NULL;

    for (size_t i = 0; i < kind->bucket_count; i++) {
        const struct report_bucket *bucket = &kind->buckets[i];
        if (bucket->bytes != 0 && of(&bucket->counters) > 0 &&
            (worst == NULL || of(&bucket->counters) > of(&worst->counters)))
            worst = bucket;
    }
    return worst;
}

static const struct report_counters *not_kept(const struct report_kind *kind)
{
    for (size_t i = 0; i < kind->bucket_count; i++)
        if (kind->buckets[i].bytes == 0)
            return &kind->buckets[i].counters;
    return NULL;
}

static void spell_size(const struct byte_size *size, char text[64])
{
    if (size->unlimited)
        snprintf(text, 64, "null");
    else if (!(size->percent > 0) && size->bytes == 0)
        snprintf(text, 64, "0");
    else
        size_to_text(size, "", text);
}

static void spell_bytes(uint64_t bytes, char text[64])
{
    bytes_to_text(bytes, "", text);
}

/* Twice as much, in whole MiB; at least least, at most half of the device. */
static uint64_t twice(uint64_t bytes, uint64_t least, uint64_t device_bytes)
{
    uint64_t most = device_bytes / 2, wanted = bytes > UINT64_MAX / 2 ? UINT64_MAX : bytes * 2;

    if (wanted < least)
        wanted = least;
    if (wanted > most)
        wanted = most;
    return wanted / MIB * MIB;
}

/* --- the rules: failures ------------------------------------------------------------------------
 */

static uint64_t limit_failures(const struct report_counters *counters)
{
    return counters->failures.limit;
}

static uint64_t memory_failures(const struct report_counters *counters)
{
    return counters->failures.memory;
}

/* "6 requests of 50 MiB", or the size of most of them. */
static void spell_failures(const struct report_kind *kind, measure *of, char text[160])
{
    uint64_t all = of(&kind->totals);
    const struct report_bucket *worst = worst_bucket(kind, of);
    char bucket[READABLE_BYTES];

    if (worst == NULL) {
        snprintf(text, 160, "%llu request%s", (unsigned long long)all, all == 1 ? "" : "s");
        return;
    }
    uint64_t most = of(&worst->counters);
    readable_exact_bytes(worst->bytes, bucket);
    if (most == all)
        snprintf(text, 160, "%llu request%s of %s", (unsigned long long)all, all == 1 ? "" : "s",
                 bucket);
    else
        snprintf(text, 160, "%llu requests, most of them (%llu) of %s,", (unsigned long long)all,
                 (unsigned long long)most, bucket);
}

/* The program asked for more than it may have. */
static bool requests_fail_at_the_limit(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct byte_size *limit = &at_hand->settings->limits.device_bytes;
    char failures[160], now[READABLE_BYTES];

    if (at_hand->kind->totals.failures.limit == 0)
        return false;
    uint64_t bytes = byte_size_resolve(limit, at_hand->device_bytes);
    uint64_t more = bytes > at_hand->device_bytes / 2 ? at_hand->device_bytes : bytes * 2;
    spell_failures(at_hand->kind, limit_failures, failures);
    readable_exact_bytes(bytes, now);
    snprintf(advice->setting, sizeof(advice->setting), "limits.device_bytes");
    spell_size(limit, advice->from);
    spell_bytes(more, advice->to);
    snprintf(advice->text, sizeof(advice->text),
             "%s failed at your limit of %s. If the program needs them, raise %%s from %s to %s.",
             failures, now, advice->from, advice->to);
    return true;
}

static bool requests_fail_for_memory(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;
    char failures[160], live[READABLE_BYTES], whole[READABLE_BYTES];

    if (totals->failures.memory == 0)
        return false;
    spell_failures(at_hand->kind, memory_failures, failures);
    readable_bytes(totals->peak.live_bytes, live);
    readable_bytes(at_hand->device_bytes, whole);
    snprintf(advice->text, sizeof(advice->text),
             "%s failed: the device was out of memory, after the pool had given back all that it "
             "kept. The program itself had up to %s in use at a time, of the device's %s.",
             failures, live, whole);
    return true;
}

/* --- the rules: settings ------------------------------------------------------------------------
 */

/* Allocations that waited for the GPU would have had a new block under a larger budget. */
static bool growth_budget_is_short(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;
    const struct report_bucket *worst = worst_bucket(at_hand->kind, waits);
    char bucket[READABLE_BYTES];

    if (at_hand->growth_budget == NULL || worst == NULL ||
        !is_a_tenth(totals->hits.waited, totals->requests))
        return false;
    uint64_t now = byte_size_resolve(at_hand->growth_budget, at_hand->device_bytes);
    uint64_t wanted = twice(now, 64 * MIB, at_hand->device_bytes);
    if (wanted <= now)
        return false;
    snprintf(advice->setting, sizeof(advice->setting), "growth_budget");
    spell_size(at_hand->growth_budget, advice->from);
    spell_bytes(wanted, advice->to);
    readable_exact_bytes(worst->bytes, bucket);
    snprintf(advice->text, sizeof(advice->text),
             "%llu of %llu requests waited for the GPU to be done with a freed block, most of them "
             "(%llu) in the bucket of %s, because the freed blocks that the GPU was still using "
             "had reached the growth budget. Raise %%s from %s to %s: more blocks may then be in "
             "flight, and take so much more memory.",
             (unsigned long long)totals->hits.waited, (unsigned long long)totals->requests,
             (unsigned long long)worst->counters.hits.waited, bucket, advice->from, advice->to);
    return true;
}

static uint64_t six_times_as_long(uint64_t nanoseconds)
{
    return nanoseconds < SECOND ? 10 * SECOND : nanoseconds * 6;
}

/* Blocks went back for being unused, and were missed later. */
static bool idle_blocks_are_missed(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;
    const struct report_bucket *worst = worst_bucket(at_hand->kind, idle_evictions);
    char bucket[READABLE_BYTES];

    if (worst == NULL || at_hand->release_after_idle_ns == 0 ||
        at_hand->release_after_idle_ns >= 3600 * SECOND ||
        !is_a_tenth(totals->evictions.idle, totals->misses) ||
        !is_a_tenth(worst->counters.misses, worst->counters.evictions.idle))
        return false;
    snprintf(advice->setting, sizeof(advice->setting), "release_after_idle");
    time_to_text(at_hand->release_after_idle_ns, "", advice->from);
    time_to_text(six_times_as_long(at_hand->release_after_idle_ns), "", advice->to);
    readable_exact_bytes(worst->bytes, bucket);
    snprintf(advice->text, sizeof(advice->text),
             "The bucket of %s misses (%llu times) because its blocks went back to the driver "
             "after %s without use (%llu blocks; %llu of all sizes). Raise %%s from %s to %s, if "
             "nobody else needs the memory meanwhile.",
             bucket, (unsigned long long)worst->counters.misses, advice->from,
             (unsigned long long)worst->counters.evictions.idle,
             (unsigned long long)totals->evictions.idle, advice->from, advice->to);
    return true;
}

/* Which of the three caps was in the way: the one that the run has come up to; otherwise the
 * reserve ratio, the only one that does not show in a peak. */
static const char *choose_cap(const struct case_at_hand *at_hand, const struct report_bucket *worst,
                              struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;
    const struct cap_settings *caps = at_hand->caps;
    uint64_t cached = byte_size_resolve(&caps->cached, at_hand->device_bytes);
    uint64_t free_at_peak = totals->peak.reserved_bytes > totals->peak.live_bytes
                                ? totals->peak.reserved_bytes - totals->peak.live_bytes
                                : 0;
    uint64_t blocks = worst->counters.peak.reserved_bytes / worst->bytes;

    if (cached < at_hand->device_bytes && free_at_peak >= cached / 10 * 9) {
        spell_size(&caps->cached, advice->from);
        spell_bytes(twice(cached, 64 * MIB, at_hand->device_bytes * 2), advice->to);
        return "caps.cached";
    }
    if (blocks >= caps->blocks_per_bucket) {
        uint64_t more = caps->blocks_per_bucket == 0 ? 64 : caps->blocks_per_bucket * 4;
        snprintf(advice->from, sizeof(advice->from), "%llu",
                 (unsigned long long)caps->blocks_per_bucket);
        snprintf(advice->to, sizeof(advice->to), "%llu",
                 (unsigned long long)(more > UINT32_MAX ? UINT32_MAX : more));
        return "caps.blocks_per_bucket";
    }
    double ratio = caps->reserve_ratio < 1.5 ? 1.5 : caps->reserve_ratio * 1.5;
    if (ratio > 100)
        ratio = 100;
    real_to_text(caps->reserve_ratio, advice->from);
    snprintf(advice->to, sizeof(advice->to), "%llu.%llu", (unsigned long long)ratio,
             (unsigned long long)(ratio * 10) % 10);
    return "caps.reserve_ratio";
}

/* Blocks went back for being too many, and were missed later. */
static bool caps_are_low(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;
    const struct report_bucket *worst = worst_bucket(at_hand->kind, cap_evictions);
    char bucket[READABLE_BYTES];

    if (worst == NULL || !is_a_tenth(totals->evictions.cap, totals->misses) ||
        !is_a_tenth(worst->counters.misses, worst->counters.evictions.cap))
        return false;
    const char *cap = choose_cap(at_hand, worst, advice);
    if (strcmp(advice->from, advice->to) == 0)
        return false;
    snprintf(advice->setting, sizeof(advice->setting), "%s", cap);
    readable_exact_bytes(worst->bytes, bucket);
    snprintf(advice->text, sizeof(advice->text),
             "The bucket of %s misses (%llu times) because its blocks went back to the driver over "
             "a cap (%llu blocks; %llu of all sizes). Raise %%s from %s to %s, if the device has "
             "the room.",
             bucket, (unsigned long long)worst->counters.misses,
             (unsigned long long)worst->counters.evictions.cap,
             (unsigned long long)totals->evictions.cap, advice->from, advice->to);
    return true;
}

/* Memory ran out, and what the pool kept had to go back first. */
static bool memory_ran_out(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;

    if (at_hand->growth_budget == NULL || !is_a_tenth(totals->evictions.memory, totals->misses))
        return false;
    uint64_t now = byte_size_resolve(at_hand->growth_budget, at_hand->device_bytes);
    if (now < 2 * MIB)
        return false;
    snprintf(advice->setting, sizeof(advice->setting), "growth_budget");
    spell_size(at_hand->growth_budget, advice->from);
    spell_bytes(now / 4 >= MIB ? now / 4 / MIB * MIB : MIB, advice->to);
    snprintf(advice->text, sizeof(advice->text),
             "Memory ran out: %llu free blocks had to go back to the driver before an allocation "
             "could be met. Lower %%s from %s to %s, or start from low-memory.json: less is then "
             "in flight, and more allocations wait for the GPU.",
             (unsigned long long)totals->evictions.memory, advice->from, advice->to);
    return true;
}

/* Requests that are not kept for reuse. */
static bool large_requests_are_not_kept(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *large = not_kept(at_hand->kind);
    uint64_t largest = byte_size_resolve(&at_hand->buckets->largest, at_hand->device_bytes);

    if (large == NULL || !is_a_tenth(large->requests, at_hand->kind->totals.requests) ||
        large->requested_bytes / large->requests <= largest || largest >= at_hand->device_bytes)
        return false;
    snprintf(advice->setting, sizeof(advice->setting), "buckets.largest");
    spell_size(&at_hand->buckets->largest, advice->from);
    snprintf(advice->to, sizeof(advice->to), "100%%");
    snprintf(advice->text, sizeof(advice->text),
             "%llu of %llu requests are over the largest bucket, so their blocks are not kept and "
             "none of them can hit. Raise %%s from %s to %s.",
             (unsigned long long)large->requests,
             (unsigned long long)at_hand->kind->totals.requests, advice->from, advice->to);
    return true;
}

/* Powers of two, or few steps, waste memory. */
static bool rounding_wastes_memory(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;
    const struct bucket_settings *buckets = at_hand->buckets;
    uint64_t waste = totals->rounded_bytes > totals->requested_bytes
                         ? totals->rounded_bytes - totals->requested_bytes
                         : 0;

    if (!is_a_tenth(waste, totals->requested_bytes) || buckets->policy == BUCKETS_EXACT ||
        totals->rounded_bytes / totals->requests < 64 * 1024)
        return false;
    if (buckets->policy == BUCKETS_POW2) {
        snprintf(advice->setting, sizeof(advice->setting), "buckets.policy");
        snprintf(advice->from, sizeof(advice->from), "pow2");
        snprintf(advice->to, sizeof(advice->to), "geometric");
    } else if (buckets->steps_per_doubling <= 32) {
        snprintf(advice->setting, sizeof(advice->setting), "buckets.steps_per_doubling");
        snprintf(advice->from, sizeof(advice->from), "%u", buckets->steps_per_doubling);
        snprintf(advice->to, sizeof(advice->to), "%u", buckets->steps_per_doubling * 2);
    } else {
        return false;
    }
    unsigned __int128 percent = (unsigned __int128)waste * 100 / totals->requested_bytes;
    snprintf(advice->text, sizeof(advice->text),
             "Rounding requests up to their buckets' sizes added %llu %% to what was asked for. "
             "Change %%s from %s to %s: less is added, and sizes that differ a little share blocks "
             "less often.",
             (unsigned long long)(percent > 1000000 ? 1000000 : percent), advice->from, advice->to);
    return true;
}

static bool misses_most(const struct report_counters *counters)
{
    return counters->misses > counters->requests / 2;
}

/* Sizes that never come back exactly. */
static bool exact_sizes_do_not_come_back(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;

    if (at_hand->buckets->policy != BUCKETS_EXACT || !misses_most(totals) ||
        at_hand->kind->bucket_count < 16)
        return false;
    snprintf(advice->setting, sizeof(advice->setting), "buckets.policy");
    snprintf(advice->from, sizeof(advice->from), "exact");
    snprintf(advice->to, sizeof(advice->to), "geometric");
    snprintf(advice->text, sizeof(advice->text),
             "%llu of %llu requests missed, of %zu different sizes: a block serves only requests "
             "of its own size. Change %%s from %s to %s, so that sizes that differ a little share "
             "blocks.",
             (unsigned long long)totals->misses, (unsigned long long)totals->requests,
             at_hand->kind->bucket_count, advice->from, advice->to);
    return true;
}

/* --- the rules: what the program does ------------------------------------------------------------
 */

/* Frees that waited as the driver's would have. */
static bool frees_wait(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;
    char waited[READABLE_BYTES];

    if (!is_a_tenth(totals->waits.frees, totals->frees))
        return false;
    readable_time(totals->waits.nanoseconds, waited);
    if (at_hand->settings->device.free_synchronizes) {
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
        "memory was short: there the pool waits as the driver does.",
        (unsigned long long)totals->waits.frees, (unsigned long long)totals->frees, waited);
    return true;
}

/* Nothing comes back that could be handed out again. */
static bool memory_is_never_freed(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;

    if (!misses_most(totals) || is_a_tenth(totals->frees, totals->requests))
        return false;
    snprintf(advice->text, sizeof(advice->text),
             "%llu of %llu requests missed because next to nothing is freed (%llu blocks): memory "
             "that the program keeps cannot be reused, and the pool has nothing to gain here.",
             (unsigned long long)totals->misses, (unsigned long long)totals->requests,
             (unsigned long long)totals->frees);
    return true;
}

static bool captures_go_to_the_driver(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;

    if (!is_a_tenth(at_hand->captured, totals->requests))
        return false;
    snprintf(
        advice->text, sizeof(advice->text),
        "%llu of %llu requests came while a stream was being captured into a graph: the driver "
        "answers those. Allocating before the capture begins lets them hit.",
        (unsigned long long)at_hand->captured, (unsigned long long)totals->requests);
    return true;
}

/* Fewer requests to each size than a pool can live on. */
static bool sizes_do_not_come_back(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;
    const struct bucket_settings *buckets = at_hand->buckets;

    if (!misses_most(totals) || buckets->policy == BUCKETS_EXACT ||
        totals->requests / at_hand->kind->bucket_count >= 4)
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

/* The first of the ways for a block from stream to stream that is switched off. */
static const char *closed_way(const struct reuse_settings *reuse)
{
    if (!reuse->follow_event_dependencies)
        return "reuse.follow_event_dependencies";
    if (!reuse->opportunistic)
        return "reuse.opportunistic";
    return reuse->internal_dependencies ? NULL : "reuse.internal_dependencies";
}

/* Blocks lie free on one stream while another asks for some. */
static bool blocks_are_on_other_streams(const struct case_at_hand *at_hand, struct advice *advice)
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

/* What the pool keeps is missing elsewhere. */
static bool much_is_reserved(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;
    char live[READABLE_BYTES], reserved[READABLE_BYTES];
    uint64_t wanted = totals->peak.live_bytes / MIB * MIB;

    wanted = wanted < 64 * MIB ? 64 * MIB : wanted;
    if (totals->peak.reserved_bytes / 2 <= totals->peak.live_bytes ||
        totals->peak.reserved_bytes - totals->peak.live_bytes < 256 * MIB ||
        byte_size_resolve(&at_hand->caps->cached, at_hand->device_bytes) <= wanted)
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

/* Most requests missed, and no rule before has found why. */
static bool most_requests_miss(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;

    if (at_hand->found > 0 || !misses_most(totals))
        return false;
    snprintf(
        advice->text, sizeof(advice->text),
        "%llu of %llu requests missed: when they came, the blocks of their sizes were in use, or "
        "the GPU had not finished with them. The pool has little to gain here.",
        (unsigned long long)totals->misses, (unsigned long long)totals->requests);
    return true;
}

static const struct rule {
    const char *name;
    rule_function *applies;
} rules[] = {
    {"requests_fail_at_the_limit", requests_fail_at_the_limit},
    {"requests_fail_for_memory", requests_fail_for_memory},
    {"frees_wait", frees_wait},
    {"memory_ran_out", memory_ran_out},
    {"growth_budget_is_short", growth_budget_is_short},
    {"caps_are_low", caps_are_low},
    {"idle_blocks_are_missed", idle_blocks_are_missed},
    {"large_requests_are_not_kept", large_requests_are_not_kept},
    {"exact_sizes_do_not_come_back", exact_sizes_do_not_come_back},
    {"sizes_do_not_come_back", sizes_do_not_come_back},
    {"captures_go_to_the_driver", captures_go_to_the_driver},
    {"memory_is_never_freed", memory_is_never_freed},
    {"blocks_are_on_other_streams", blocks_are_on_other_streams},
    {"most_requests_miss", most_requests_miss},
    {"rounding_wastes_memory", rounding_wastes_memory},
    {"much_is_reserved", much_is_reserved},
};
#define RULES (sizeof(rules) / sizeof(rules[0]))

/* --- applying them ------------------------------------------------------------------------------
 */

/* The smallest device's, so that what is proposed fits all. */
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

/* False for a kind that the settings do not know. */
static bool describe_case(const struct summary *summary, const struct report_kind *kind,
                          struct case_at_hand *at_hand)
{
    const struct settings *settings = &summary->settings;
    int number = 0;

    while (number < MEMORY_KINDS && strcmp(kind->kind, memory_kind_names[number]) != 0)
        number++;
    if (number == MEMORY_KINDS)
        return false;
    const struct kind_settings own = settings_of_kind(settings, (enum memory_kind)number);
    bool is_device = number == KIND_DEVICE;
    *at_hand = (struct case_at_hand){
        .kind = kind,
        .device_bytes = device_bytes(summary),
        .buckets = own.buckets,
        .caps = own.caps,
        .growth_budget = is_device ? &settings->device.growth_budget : NULL,
        .release_after_idle_ns = own.release_after_idle_ns,
        .settings = settings,
        .captured = is_device ? captured_of(summary) : 0,
    };
    return true;
}

/* Two rules may be about one setting: the first has it. */
static bool is_about_the_same(const struct advice *found, size_t count, const char *setting)
{
    for (size_t i = 0; i < count; i++)
        if (setting[0] != '\0' && strcmp(found[i].setting, setting) == 0)
            return true;
    return false;
}

/* Puts the kind's name before the setting's, and the whole where the text leaves room for it. */
static void name_setting(const char *kind, struct advice *advice)
{
    char name[64], text[ADVICE_TEXT_BYTES];
    const char *gap = strstr(advice->text, "%s");

    if (advice->setting[0] == '\0')
        return;
    /* Limits are one for all kinds. */
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
    return totals->failures.memory != 0 || totals->failures.limit != 0;
}

static size_t advise_on(struct case_at_hand *at_hand, struct advice *advice, size_t count)
{
    for (size_t i = 0; i < RULES && count < ADVICE_MOST; i++) {
        struct advice one = {.rule = rules[i].name};
        bool is_failure = strncmp(rules[i].name, "requests_fail", 13) == 0;
        if ((!is_failure && at_hand->kind->totals.requests < LEAST_REQUESTS) ||
            !rules[i].applies(at_hand, &one))
            continue;
        at_hand->found++;
        name_setting(at_hand->kind->kind, &one);
        if (!is_about_the_same(advice, count, one.setting))
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
        if ((kind->totals.requests >= LEAST_REQUESTS || has_failures(&kind->totals)) &&
            describe_case(summary, kind, &at_hand))
            count = advise_on(&at_hand, advice, count);
    }
    return count;
}

/* --- telling them -------------------------------------------------------------------------------
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
