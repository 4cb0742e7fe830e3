#include "stream_sums.h"

#include "core/base/numbers.h"
#include "mempool_list.h"
#include "stream_shelf.h"

struct stream_bytes stream_sum(struct pool *pool, const struct device *device)
{
    struct streams *streams = streams_of(pool);
    struct stream_bytes sum = {0};
    for (unsigned i = 0; streams && i < stream_count(streams); i++) {
        const struct stream *stream = stream_at(streams, i);
        if (device && stream->device != device)
            continue;
        uint64_t free = counter_get(&stream->free_bytes), clean = counter_get(&stream->clean_bytes);
        uint64_t reserved = counter_get(&stream->reserved_bytes);
        /* Other threads may change the counters meanwhile, so rest_of stops at 0. */
        uint64_t spare = counter_get(&stream->parts.spare_bytes);
        sum.live += rest_of(reserved, free + spare);
        uint64_t waiting = counter_get(&stream->parts.waiting_bytes);
        sum.spare += rest_of(spare, waiting);
        sum.waiting += waiting;
        sum.cached += clean;
        sum.pending += rest_of(free, clean);
        const struct shelf *s = atomic_load_explicit(&stream->shelves, memory_order_acquire);
        for (; s; s = s->next)
            sum.requested += counter_get(&s->used_bytes);
    }
    return sum;
}

/* ---- peaks ---- */

void stream_peaks_add(struct pool *pool, struct device *device, struct kept_peaks *sum)
{
    struct stream_device *of_device = stream_device(device);
    if (!streams_of(pool))
        return;
    mempool_raise(&of_device->peak_live, stream_sum(pool, device).requested);
    sum->live += atomic_load_explicit(&of_device->peak_live, memory_order_relaxed);
    sum->reserved += atomic_load_explicit(&of_device->peak_reserved, memory_order_relaxed);
}

void stream_peaks_start_again(struct pool *pool, struct device *device)
{
    struct stream_device *of_device = stream_device(device);
    if (!streams_of(pool))
        return;
    for (struct mempool *m = mempool_first(streams_of(pool)); m; m = m->next) {
        if (m->device != device)
            continue;
        mempool_raise(&m->used_high, mempool_sum(pool, m).peak);
        mempool_start_shelves_again(pool, m);
    }
    uint64_t reserved = atomic_load_explicit(&of_device->reserved_bytes, memory_order_relaxed);
    atomic_store_explicit(&of_device->peak_live, stream_sum(pool, device).requested,
                          memory_order_relaxed);
    atomic_store_explicit(&of_device->peak_reserved, reserved, memory_order_relaxed);
}
