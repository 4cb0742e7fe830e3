/*
 * Merges the histories of several processes (timeline.h).
 */
#include "timeline.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/readable.h"
#include "core/figures/history.h"

void timeline_shift(struct report_device *device, uint64_t nanoseconds)
{
    for (size_t i = 0; i < device->sample_count; i++)
        device->samples[i].nanoseconds =
            saturating_sum(device->samples[i].nanoseconds, nanoseconds);
}

/* One of the two histories that are joined. */
struct side {
    const struct report_sample *samples;
    size_t count;
    size_t next;                /* index of the next sample */
    struct report_sample value; /* at the present time */
    bool over;                  /* true after the last sample, when nothing is held any more */
};

static struct side side_of(const struct report_device *device)
{
    return (struct side){.samples = device->samples,
                         .count = device->sample_count,
                         .over = device->sample_count == 0};
}

/* Whether all samples of the side have been counted. */
static bool is_at_its_end(const struct side *side)
{
    return side->next == side->count;
}

/* Returns the time when the side's value changes next. One nanosecond after its last sample the
 * side holds nothing. */
static uint64_t next_change(const struct side *side)
{
    if (side->next < side->count)
        return side->samples[side->next].nanoseconds;
    return side->over ? UINT64_MAX : saturating_sum(side->value.nanoseconds, 1);
}

static void advance(struct side *side, uint64_t now)
{
    if (next_change(side) > now)
        return;
    if (side->next < side->count) {
        side->value = side->samples[side->next++];
        return;
    }
    side->value.live_bytes = 0;
    side->value.cached_bytes = 0;
    side->value.pending_bytes = 0;
    side->value.peak_bytes = 0;
    side->over = true;
}

static uint64_t held_at(const struct report_sample *sample)
{
    return saturating_sum(sample->live_bytes,
                          saturating_sum(sample->cached_bytes, sample->pending_bytes));
}

/* Returns the most that the side held before now, as far as its samples tell. The peak in a sample
 * is that of the time since the sample before. */
static uint64_t peak_before(const struct side *side, uint64_t now)
{
    const struct report_sample *of = &side->value;

    if (of->nanoseconds != now && !is_at_its_end(side))
        of = &side->samples[side->next];
    uint64_t held = held_at(&side->value);
    return of->peak_bytes > held ? of->peak_bytes : held;
}

static struct report_sample sum_of(const struct side *one, const struct side *other, uint64_t now)
{
    const struct report_sample *a = &one->value, *b = &other->value;

    return (struct report_sample){
        .nanoseconds = now,
        .live_bytes = saturating_sum(a->live_bytes, b->live_bytes),
        .cached_bytes = saturating_sum(a->cached_bytes, b->cached_bytes),
        .pending_bytes = saturating_sum(a->pending_bytes, b->pending_bytes),
        .peak_bytes = saturating_sum(peak_before(one, now), peak_before(other, now)),
        .hits = {.clean = saturating_sum(a->hits.clean, b->hits.clean),
                 .queried = saturating_sum(a->hits.queried, b->hits.queried),
                 .barrier = saturating_sum(a->hits.barrier, b->hits.barrier),
                 .waited = saturating_sum(a->hits.waited, b->hits.waited)},
        .misses = saturating_sum(a->misses, b->misses),
        .given_bytes = saturating_sum(a->given_bytes, b->given_bytes),
        .got_bytes = saturating_sum(a->got_bytes, b->got_bytes),
    };
}

/* Leaves at most HISTORY_SAMPLES samples at even distances, with the first and the last. A dropped
 * sample passes its peak on to the next one that is left. Returns how many are left. */
static size_t thin_out(struct report_sample *samples, size_t count)
{
    const size_t most = HISTORY_SAMPLES;

    if (count <= most)
        return count;
    for (size_t i = 0, next = 0; i < most; i++) {
        size_t chosen = i * (count - 1) / (most - 1);
        struct report_sample sample = samples[chosen];
        for (; next <= chosen; next++)
            if (samples[next].peak_bytes > sample.peak_bytes)
                sample.peak_bytes = samples[next].peak_bytes;
        samples[i] = sample;
    }
    return most;
}

/* Adds the two sides up, until the last sample of either. After that nothing is held, which needs
 * no sample. sums must have room for all samples and both ends. Returns the number of sums. */
static size_t add_up(struct side *a, struct side *b, struct report_sample *sums)
{
    size_t count = 0;

    while (!is_at_its_end(a) || !is_at_its_end(b)) {
        uint64_t times[] = {next_change(a), next_change(b)};
        uint64_t now = times[0] < times[1] ? times[0] : times[1];
        advance(a, now);
        advance(b, now);
        if (count > 0 && sums[count - 1].nanoseconds >= now)
            count--;
        sums[count++] = sum_of(a, b, now);
    }
    return count;
}

int timeline_join(struct report_device *into, struct report_device *from)
{
    struct side a = side_of(into), b = side_of(from);
    struct report_sample *sums = NULL;
    int status = 0;

    if (from->sample_count > 0) {
        sums = calloc(a.count + b.count + 2, sizeof(*sums));
        status = sums == NULL ? -1 : 0;
    }
    if (sums != NULL) {
        into->sample_count = thin_out(sums, add_up(&a, &b, sums));
        free(into->samples);
        into->samples = sums;
    }
    free(from->samples);
    from->samples = NULL;
    from->sample_count = 0;
    return status;
}
