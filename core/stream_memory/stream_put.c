#include "stream_put.h"

#include "core/base/numbers.h"
#include "core/contexts/device.h"
#include "core/contexts/pool_state.h"
#include "own_event_record.h"
#include "own_events.h"

/* ---- how much may be pending that nobody can ask about ---- */

/* Streams share the growth budget as if they were no fewer than this. */
#define FEW_STREAMS 16u

/* And their share of the device as if they were no fewer than this. */
#define VERY_FEW_STREAMS 4u

/* The share of a device's memory that they share at most. */
#define UNKNOWN_SHARE 64u

/* This process's memory takes up less than half of the device. */
static bool memory_is_plentiful(const struct device *device)
{
    /* Relaxed: it orders nothing. */
    uint64_t reserved = device_reserved(device);
    return reserved < device->total_bytes / 2 && !device_is_short(device);
}

static uint64_t share_of(uint64_t all, uint64_t streams, uint64_t at_least)
{
    return all / larger_of(streams, at_least);
}

/* Bytes that a stream may have freed with no event behind them, the last of them from
 * that memory pool: such memory other streams get, and goes back to the driver, only when it is
 * known otherwise to be over. All streams together: the growth budget; or, while half of the device
 * is free, what the driver would keep itself, for streams that need no marker; at most a 64th of
 * the device, and nothing while memory is short. */
static uint64_t uncovered_share(const struct pool *pool, const struct stream *stream,
                                const struct mempool *mempool)
{
    lock_must_be_held(&stream->lock);
    const struct device *device = stream->device;
    uint64_t streams = stream_count(streams_of(pool)), all = device->growth_budget;
    uint64_t kept = atomic_load_explicit(&mempool->kept, memory_order_relaxed);
    if (device_is_short(device))
        return 0;
    if (stream->own_order && all && kept > all && memory_is_plentiful(device))
        all = kept;
    all = smaller_of(all, stream_device(device)->cached_cap / 2);
    return smaller_of(share_of(all, streams, FEW_STREAMS),
                      share_of(device->total_bytes / UNKNOWN_SHARE, streams, VERY_FEW_STREAMS));
}

/* ---- what a free puts into its stream ---- */

struct stream_put stream_put_due(const struct pool *pool, struct stream *stream,
                                 const struct stream_block *block)
{
    lock_must_be_held(&stream->lock);
    uint64_t pending = counter_get(&stream->free_bytes) - counter_get(&stream->clean_bytes);
    stream->may_be_uncovered = uncovered_share(pool, stream, block->mempool);
    bool due = shelf_events_are_wanted(stream) || shelf_launches_early(stream) ||
               pending - stream->covered_bytes + block->block.bytes > stream->may_be_uncovered;
    bool marker = stream->ordered_by_others;
    return (struct stream_put){due, marker};
}

bool stream_put_in_free(struct pool *pool, struct stream_ref ref, CUstream handle, uint64_t stamp,
                        struct stream_put put, struct own_event **event)
{
    *event = NULL;
    if (put.event) {
        *event = own_event_record(pool, ref, handle, stamp, put.marker);
        own_events_want_one_less(ref.stream);
    }
    return *event || !put.marker || own_event_mark(pool, ref, handle, stamp);
}
