/*
 * The report as plain data: sums over its counters, its samples, and freeing it (report.h).
 *
 * Part of the preload object, where it runs while someone else's program ends: libc only.
 */
#include "report.h"

#include "core/base/readable.h"
#include "core/base/scratch.h"
#include "history.h"

uint64_t report_all_hits(const struct report_counters *counters)
{
    return saturating_sum(saturating_sum(counters->hits.clean, counters->hits.queried),
                          saturating_sum(counters->hits.barrier, counters->hits.waited));
}

bool report_kind_is_of_device(const struct report_kind *kind)
{
    return memory_kind_is_of_device(memory_kind_named(kind->kind));
}

const char *const report_unpooled_names[UNPOOLED_KINDS] = {[UNPOOLED_PHYSICAL] = "cuMemCreate",
                                                           [UNPOOLED_ARRAYS] = "arrays",
                                                           [UNPOOLED_MANAGED] = "managed",
                                                           [UNPOOLED_GRAPHS] = "graphs",
                                                           [UNPOOLED_OPENED] = "opened"};

uint64_t report_unpooled_live(const struct report_unpooled *unpooled)
{
    uint64_t bytes = 0;

    for (int kind = 0; kind < UNPOOLED_OPENED; kind++)
        bytes = saturating_sum(bytes, unpooled->kinds[kind].live_bytes);
    return bytes;
}

bool report_has_unpooled(const struct report_unpooled *unpooled)
{
    for (enum unpooled_kind kind = 0; kind < UNPOOLED_KINDS; kind++)
        if (unpooled->kinds[kind].peak_bytes != 0 || unpooled->kinds[kind].refused != 0)
            return true;
    return false;
}

bool report_device_was_used(const struct report_device *device)
{
    for (size_t i = 0; i < device->kind_count; i++)
        if (device->kinds[i].totals.requests != 0)
            return true;
    return report_has_unpooled(&device->unpooled);
}

uint64_t report_all_failures(const struct report_counters *counters)
{
    uint64_t at_limits = saturating_sum(counters->failures.limit, counters->failures.group);
    return saturating_sum(counters->failures.memory,
                          saturating_sum(at_limits, counters->failures.other));
}

uint64_t report_all_given_back(const struct report_counters *counters)
{
    uint64_t by_pool =
        saturating_sum(counters->evictions.cap,
                       saturating_sum(counters->evictions.idle, counters->evictions.memory));
    return saturating_sum(by_pool,
                          saturating_sum(counters->evictions.free, counters->evictions.context));
}

static struct report_sample plain_sample(const struct history_sample *sample, uint64_t started)
{
    return (struct report_sample){
        .nanoseconds = counter_get(&sample->at) - started,
        .live_bytes = counter_get(&sample->live_bytes),
        .cached_bytes = counter_get(&sample->cached_bytes),
        .pending_bytes = counter_get(&sample->pending_bytes),
        .peak_bytes = counter_get(&sample->peak_bytes),
        .hits = {.clean = counter_get(&sample->hits[HIT_CLEAN]),
                 .queried = counter_get(&sample->hits[HIT_QUERIED]),
                 .barrier = counter_get(&sample->hits[HIT_BARRIER]),
                 .waited = counter_get(&sample->hits[HIT_WAITED])},
        .misses = counter_get(&sample->misses),
        .given_bytes = counter_get(&sample->given_bytes),
        .got_bytes = counter_get(&sample->got_bytes),
    };
}

bool report_take_history(struct report_device *device, const struct history *history,
                         uint64_t started)
{
    uint64_t last = started, count = counter_get(&history->count);

    device->samples = scratch_calloc(HISTORY_SAMPLES, sizeof(*device->samples));
    if (device->samples == NULL)
        return false;
    for (size_t i = 0; i < count && i < HISTORY_SAMPLES; i++) {
        const struct history_sample *sample = &history->samples[i];
        if (counter_get(&sample->at) <= last)
            continue;
        last = counter_get(&sample->at);
        device->samples[device->sample_count++] = plain_sample(sample, started);
    }
    return true;
}

void report_free(struct report *report)
{
    for (size_t i = 0; i < report->device_count; i++) {
        struct report_device *device = &report->devices[i];
        for (size_t j = 0; j < device->kind_count; j++)
            scratch_free(device->kinds[j].buckets);
        scratch_free(device->kinds);
        scratch_free(device->samples);
    }
    scratch_free(report->devices);
    report->devices = NULL;
    report->device_count = 0;
}
