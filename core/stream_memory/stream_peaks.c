#include "stream_peaks.h"

#include "core/base/numbers.h"
#include "mempool_list.h"
#include "mempool_sums.h"

void stream_peaks_note(struct pool *pool, struct device *device)
{
    uint64_t live = 0;
    for (const struct mempool *m = mempool_first(streams_of(pool)); m; m = m->next) {
        struct mempool_sum sum = {0, 0, 0};
        if (m->device == device)
            sum = mempool_sum(pool, m);
        live += larger_of(sum.used, sum.peak);
    }
    mempool_raise(&stream_device(device)->peak_live, live);
}

void stream_peaks_add(struct pool *pool, struct device *device, struct kept_peaks *sum)
{
    const struct stream_device *of_device = stream_device(device);
    if (!streams_of(pool))
        return;
    stream_peaks_note(pool, device);
    sum->live += atomic_load_explicit(&of_device->peak_live, memory_order_relaxed);
    sum->reserved += atomic_load_explicit(&of_device->peak_reserved, memory_order_relaxed);
}

void stream_peaks_start_again(struct pool *pool, struct device *device)
{
    struct stream_device *of_device = stream_device(device);
    uint64_t used = 0;
    if (!streams_of(pool))
        return;
    for (struct mempool *m = mempool_first(streams_of(pool)); m; m = m->next) {
        if (m->device != device)
            continue;
        mempool_raise(&m->used_high, mempool_sum(pool, m).peak);
        mempool_start_shelves_again(pool, m);
        used += mempool_sum(pool, m).used;
    }
    uint64_t reserved = atomic_load_explicit(&of_device->reserved_bytes, memory_order_relaxed);
    atomic_store_explicit(&of_device->peak_live, used, memory_order_relaxed);
    atomic_store_explicit(&of_device->peak_reserved, reserved, memory_order_relaxed);
}
