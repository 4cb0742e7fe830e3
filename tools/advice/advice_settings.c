/*
 * The rules of advice that propose another value of a setting (advice_rules.h).
 */
#include <stdio.h>
#include <string.h>

#include "advice_rules.h"
#include "core/base/readable.h"
#include "core/settings/quantity_json.h"

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

/* The bucket with the largest value of a measure; NULL if the measure is 0 everywhere. If `kept` is
 * set, leaves out the bucket of requests that are not cached. */
static const struct report_bucket *worst_of(const struct report_kind *kind, measure *of, bool kept)
{
    const struct report_bucket *worst = NULL;

    for (size_t i = 0; i < kind->bucket_count; i++) {
        const struct report_bucket *bucket = &kind->buckets[i];
        if ((!kept || bucket->bytes != 0) && of(&bucket->counters) > 0 &&
            (worst == NULL || of(&bucket->counters) > of(&worst->counters)))
            worst = bucket;
    }
    return worst;
}

static const struct report_bucket *worst_bucket(const struct report_kind *kind, measure *of)
{
    return worst_of(kind, of, true);
}

static const struct report_counters *not_kept(const struct report_kind *kind)
{
    for (size_t i = 0; i < kind->bucket_count; i++)
        if (kind->buckets[i].bytes == 0)
            return &kind->buckets[i].counters;
    return NULL;
}

/* Returns twice as much, in whole MiB: at least least, at most half of the memory. */
static uint64_t twice(uint64_t bytes, uint64_t least, uint64_t memory_bytes)
{
    uint64_t most = memory_bytes / 2, wanted = bytes > UINT64_MAX / 2 ? UINT64_MAX : bytes * 2;

    if (wanted < least)
        wanted = least;
    if (wanted > most)
        wanted = most;
    return wanted / MIB * MIB;
}

/* --- failures -----------------------------------------------------------------------------------
 */

static uint64_t limit_failures(const struct report_counters *counters)
{
    return counters->failures.limit;
}

static uint64_t group_failures(const struct report_counters *counters)
{
    return counters->failures.group;
}

static uint64_t memory_failures(const struct report_counters *counters)
{
    return counters->failures.memory;
}

/* Writes the size of a bucket's requests: "50 MiB". For requests that are not cached, writes the
 * average over all of them, failed ones included. */
static void spell_requests_size(const struct report_bucket *bucket, char text[2 * READABLE_BYTES])
{
    const struct report_counters *counters = &bucket->counters;
    char size[READABLE_BYTES];

    if (bucket->bytes != 0)
        readable_exact_bytes(bucket->bytes, size);
    else
        readable_bytes(counters->requested_bytes / counters->requests, size);
    snprintf(text, 2 * READABLE_BYTES, "%s%s", size,
             bucket->bytes != 0 || counters->requests == 1 ? "" : " on average");
}

/* Writes "6 requests of 50 MiB". If they were of several sizes, writes the size that failed most.
 */
static void spell_failures(const struct report_kind *kind, measure *of, char text[160])
{
    uint64_t all = of(&kind->totals);
    const struct report_bucket *worst = worst_of(kind, of, false);
    char bucket[2 * READABLE_BYTES];

    if (worst == NULL || worst->counters.requests == 0) {
        snprintf(text, 160, "%llu request%s", (unsigned long long)all, all == 1 ? "" : "s");
        return;
    }
    uint64_t most = of(&worst->counters);
    spell_requests_size(worst, bucket);
    if (most == all)
        snprintf(text, 160, "%llu request%s of %s", (unsigned long long)all, all == 1 ? "" : "s",
                 bucket);
    else
        snprintf(text, 160, "%llu requests, most of them (%llu) of %s,", (unsigned long long)all,
                 (unsigned long long)most, bucket);
}

/* Proposes twice the limit, or the whole device. */
static void propose_limit(const struct case_at_hand *at_hand, const char *setting,
                          const struct byte_size *limit, const char *failures,
                          struct advice *advice)
{
    uint64_t bytes = byte_size_resolve(limit, at_hand->device_bytes);
    uint64_t more = bytes > at_hand->device_bytes / 2 ? at_hand->device_bytes : bytes * 2;
    bool of_group = limit == &at_hand->settings->limits.group_bytes;
    char now[READABLE_BYTES];

    readable_exact_bytes(bytes, now);
    snprintf(advice->setting, sizeof(advice->setting), "%s", setting);
    spell_size(limit, advice->from);
    spell_bytes(more, advice->to);
    snprintf(advice->text, sizeof(advice->text),
             "%s failed at your %slimit of %s%s. If the program needs them, raise %%s from %s to "
             "%s.",
             failures, of_group ? "group's " : "", now,
             of_group ? ", which all of its processes share" : "", advice->from, advice->to);
}

/* Blames a limit that no setting states: the container's. */
static void blame_container(const struct device_limits *limits, const char *failures, bool of_group,
                            struct advice *advice)
{
    char bytes[READABLE_BYTES] = "", from[LIMIT_NAME_BYTES] = "";

    if (limits != NULL) {
        readable_exact_bytes(of_group ? limits->group_bytes : limits->device_bytes, bytes);
        snprintf(from, sizeof(from), "%s", of_group ? limits->group_from : limits->device_from);
    }
    snprintf(advice->text, sizeof(advice->text), "%s failed at the container's limit%s%s%s%s%s%s.",
             failures, bytes[0] != '\0' ? " of " : "", bytes,
             of_group ? ", which all of its processes share" : "", from[0] != '\0' ? " (" : "",
             from, from[0] != '\0' ? " in the environment)" : "");
}

/* What failed at a limit: raise the setting, or blame the container where no setting states it. */
static bool fails_at(const struct case_at_hand *at_hand, bool of_group, struct advice *advice)
{
    const struct settings *settings = at_hand->settings;
    measure *failures_of = of_group ? group_failures : limit_failures;
    const struct byte_size *limit =
        of_group ? &settings->limits.group_bytes : &settings->limits.device_bytes;
    char failures[160];

    if (failures_of(&at_hand->kind->totals) == 0)
        return false;
    spell_failures(at_hand->kind, failures_of, failures);
    if (limit->unlimited)
        blame_container(at_hand->limits, failures, of_group, advice);
    else
        propose_limit(at_hand, of_group ? "limits.group_bytes" : "limits.device_bytes", limit,
                      failures, advice);
    return true;
}

bool requests_fail_at_the_limit(const struct case_at_hand *at_hand, struct advice *advice)
{
    return fails_at(at_hand, false, advice);
}

bool requests_fail_at_the_groups_limit(const struct case_at_hand *at_hand, struct advice *advice)
{
    return fails_at(at_hand, true, advice);
}

bool requests_fail_for_memory(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;
    char failures[160], live[READABLE_BYTES], whole[READABLE_BYTES], others[128] = "";

    if (totals->failures.memory == 0)
        return false;
    spell_failures(at_hand->kind, memory_failures, failures);
    readable_bytes(totals->peak.live_bytes, live);
    if (!at_hand->is_of_device) {
        snprintf(advice->text, sizeof(advice->text),
                 "%s failed: the driver had no more host memory for them, after the pool had given "
                 "back all that it kept. The program itself had up to %s in use at a time.",
                 failures, live);
        return true;
    }
    readable_bytes(at_hand->device_bytes, whole);
    if (is_a_tenth(at_hand->others_held_bytes, at_hand->device_bytes)) {
        char held[READABLE_BYTES];
        readable_bytes(at_hand->others_held_bytes, held);
        snprintf(others, sizeof(others),
                 "; up to %s were held by other processes, the driver, or past the pool", held);
    }
    snprintf(advice->text, sizeof(advice->text),
             "%s failed: the device was out of memory, after the pool had given back all that it "
             "kept. The program itself had up to %s in use at a time, of the device's %s%s.",
             failures, live, whole, others);
    return true;
}

/* --- what could be larger, or smaller -----------------------------------------------------------
 */

/* Allocations waited for the GPU. With a larger budget, they would have had a new block. */
bool growth_budget_is_short(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;
    const struct report_bucket *worst = worst_bucket(at_hand->kind, waits);
    char bucket[READABLE_BYTES];

    if (at_hand->growth_budget == NULL || !is_known(at_hand, at_hand->growth_budget) ||
        worst == NULL || !is_a_tenth(totals->hits.waited, totals->requests))
        return false;
    uint64_t now = byte_size_resolve(at_hand->growth_budget, at_hand->memory_bytes);
    uint64_t wanted = twice(now, 64 * MIB, at_hand->memory_bytes);
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

/* Blocks were released to the driver because they were idle, and their sizes missed later. */
bool idle_blocks_are_missed(const struct case_at_hand *at_hand, struct advice *advice)
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

/* Whether the run reached the cap on cached bytes. A percentage of host memory cannot be compared
 * with the peak. Such a cap counts as reached if it is below 50 % and the reserve ratio was not
 * reached. */
static bool is_at_the_cap(const struct case_at_hand *at_hand)
{
    const struct report_counters *totals = &at_hand->kind->totals;
    const struct byte_size *cap = &at_hand->caps->cached;
    uint64_t live = totals->peak.live_bytes, reserved = totals->peak.reserved_bytes;
    uint64_t free_at_peak = reserved > live ? reserved - live : 0;

    if (!is_known(at_hand, cap))
        return cap->percent < 50 && (double)reserved < (double)live * at_hand->caps->reserve_ratio;
    uint64_t bytes = byte_size_resolve(cap, at_hand->memory_bytes);
    return bytes < at_hand->memory_bytes && free_at_peak >= bytes / 10 * 9;
}

/* Proposes twice the cap: in bytes, or as a percentage if it cannot be converted to bytes. */
static void propose_cap(const struct case_at_hand *at_hand, struct advice *advice)
{
    struct byte_size cap = at_hand->caps->cached;

    spell_size(&cap, advice->from);
    if (is_known(at_hand, &cap)) {
        uint64_t bytes = byte_size_resolve(&cap, at_hand->memory_bytes);
        spell_bytes(twice(bytes, 64 * MIB, at_hand->memory_bytes * 2), advice->to);
        return;
    }
    cap.percent *= 2;
    spell_size(&cap, advice->to);
}

/* Chooses which of the three caps to raise: the one that the run reached. Otherwise it is the
 * reserve ratio, the only one that does not show in a peak. Fills from and to of the advice. */
static const char *choose_cap(const struct case_at_hand *at_hand, const struct report_bucket *worst,
                              struct advice *advice)
{
    const struct cap_settings *caps = at_hand->caps;
    uint64_t blocks = worst->counters.peak.reserved_bytes / worst->bytes;
    bool is_full = blocks >= caps->blocks_per_bucket;

    if ((is_known(at_hand, &caps->cached) || !is_full) && is_at_the_cap(at_hand)) {
        propose_cap(at_hand, advice);
        return "caps.cached";
    }
    if (is_full) {
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

/* Blocks were released to the driver because of a cap, and their sizes missed later. */
bool caps_are_low(const struct case_at_hand *at_hand, struct advice *advice)
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
             "a cap (%llu blocks; %llu of all sizes). Raise %%s from %s to %s, if the %s has the "
             "room.",
             bucket, (unsigned long long)worst->counters.misses,
             (unsigned long long)worst->counters.evictions.cap,
             (unsigned long long)totals->evictions.cap, advice->from, advice->to,
             at_hand->is_of_device ? "device" : "machine");
    return true;
}

/* Memory ran out, and the pool had to release cached blocks before an allocation succeeded. */
bool memory_ran_out(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;

    if (at_hand->growth_budget == NULL || !is_known(at_hand, at_hand->growth_budget) ||
        !is_a_tenth(totals->evictions.memory, totals->misses))
        return false;
    uint64_t now = byte_size_resolve(at_hand->growth_budget, at_hand->memory_bytes);
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

/* Many requests are over the largest bucket, so that their blocks are not cached. */
bool large_requests_are_not_kept(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *large = not_kept(at_hand->kind);
    uint64_t largest = byte_size_resolve(&at_hand->buckets->largest, at_hand->memory_bytes);

    if (large == NULL || !is_known(at_hand, &at_hand->buckets->largest) ||
        !is_a_tenth(large->requests, at_hand->kind->totals.requests) ||
        large->requested_bytes / large->requests <= largest || largest >= at_hand->memory_bytes)
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

/* Rounding up to powers of two, or with few steps per doubling, wastes memory. */
bool rounding_wastes_memory(const struct case_at_hand *at_hand, struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;
    const struct bucket_settings *buckets = at_hand->buckets;
    uint64_t waste = totals->rounded_bytes > totals->requested_bytes
                         ? totals->rounded_bytes - totals->requested_bytes
                         : 0;

    if (!is_a_tenth(waste, totals->requested_bytes) || buckets->policy == BUCKETS_EXACT ||
        buckets->policy == BUCKETS_SPLIT || totals->rounded_bytes / totals->requests < 64 * 1024)
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

/* Sizes recur so seldom that most of their blocks have been released by then: the driver answered
 * the program's free, or a cap was exceeded. */
bool blocks_go_back_before_they_are_wanted(const struct case_at_hand *at_hand,
                                           struct advice *advice)
{
    const struct report_counters *totals = &at_hand->kind->totals;
    const struct bucket_settings *buckets = at_hand->buckets;
    uint64_t back = saturating_sum(totals->evictions.free, totals->evictions.cap);

    if (strcmp(at_hand->kind->kind, memory_kind_names[KIND_DEVICE]) != 0 ||
        buckets->policy == BUCKETS_SPLIT || !misses_most(totals) || back <= totals->misses / 2 ||
        at_hand->kind->bucket_count < 16)
        return false;
    snprintf(advice->setting, sizeof(advice->setting), "buckets.policy");
    snprintf(advice->from, sizeof(advice->from), "%s",
             buckets->policy == BUCKETS_POW2    ? "pow2"
             : buckets->policy == BUCKETS_EXACT ? "exact"
                                                : "geometric");
    snprintf(advice->to, sizeof(advice->to), "split");
    snprintf(
        advice->text, sizeof(advice->text),
        "%llu of %llu requests missed, of %zu different sizes, and most blocks went back to the "
        "driver before their size was wanted again. Change %%s from %s to %s: blocks are then "
        "cut out of larger ones and merged again, so that other sizes can have them. Such "
        "blocks cannot be exported to other processes.",
        (unsigned long long)totals->misses, (unsigned long long)totals->requests,
        at_hand->kind->bucket_count, advice->from, advice->to);
    return true;
}

/* With the policy exact, most requests miss because exact sizes do not recur. */
bool exact_sizes_do_not_come_back(const struct case_at_hand *at_hand, struct advice *advice)
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
