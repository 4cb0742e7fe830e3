#include "stream_peaks.h"

#include "mempool_list.h"
#include "mempool_sums.h"
#include "stream_sums.h"

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
