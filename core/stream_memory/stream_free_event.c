#include "stream_free_event.h"

#include "core/base/numbers.h"
#include "core/contexts/device.h"
#include "core/contexts/epoch.h"
#include "core/contexts/pool_state.h"
#include "stream_events.h"
#include "stream_order.h"

/* ---- how much may be pending with no event after it ---- */

/* A stream's share of the growth budget is for at least this many streams. */
#define FEW_STREAMS 16u

#define VERY_FEW_STREAMS 4u

/* All streams together may have 1/UNKNOWN_SHARE of the device. */
#define UNKNOWN_SHARE 64u

/* Whether this process has taken less than half of the device. */
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

/* Bytes that a stream may have pending with no event after them, if the last free is of this memory
 * pool. Such memory can't go to the driver until its work is known to have completed. All streams
 * together share the growth budget. Streams that need no marker share what the driver would keep
 * itself instead, while half of the device is free. The share is at most a 64th of the device, and
 * nothing while memory is short. */
static uint64_t uncovered_share(const struct pool *pool, const struct stream *stream,
                                const struct mempool *mempool)
{
    lock_must_be_held(&stream->lock);
    const struct device *device = stream->device;
    uint64_t streams = stream_count(streams_of(pool)), all = device->growth_budget;
    uint64_t threshold = atomic_load_explicit(&mempool->release_threshold, memory_order_relaxed);
    if (device_is_short(device))
        return 0;
    if (stream->own_order && all && threshold > all && memory_is_plentiful(device))
        all = threshold;
    all = smaller_of(all, stream_device(device)->cached_cap / 2);
    return smaller_of(share_of(all, streams, FEW_STREAMS),
                      share_of(device->total_bytes / UNKNOWN_SHARE, streams, VERY_FEW_STREAMS));
}

/* ---- what a free puts into its stream and its context ---- */

struct stream_free_event stream_free_event_due(const struct pool *pool, struct stream *stream,
                                               const struct stream_block *block)
{
    lock_must_be_held(&stream->lock);
    uint64_t pending = counter_get(&stream->free_bytes) - counter_get(&stream->clean_bytes);
    stream->may_be_uncovered = uncovered_share(pool, stream, block->mempool);
    bool much = pending - stream->covered_bytes + block->block.bytes > stream->may_be_uncovered;
    bool asked = shelf_fences_are_requested(stream) || shelf_launches_early(stream);
    return (struct stream_free_event){asked, much, stream->ordered_by_others};
}

/* The event comes after each free of the epoch that it closes. */
static bool record_event(struct pool *pool, struct stream_ref ref, CUstream handle, bool operation,
                         uint64_t *stamp)
{
    uint64_t closed = epoch_close(ref.stream->context);
    bool recorded = stream_event_record(pool, ref, handle, closed, operation);
    *stamp = recorded ? closed : 0;
    return recorded;
}

/* The fence comes after the operation: it then covers what the operation comes after. */
bool stream_free_event_record(struct pool *pool, struct stream_ref ref, CUstream handle,
                              struct stream_free_event due, uint64_t *stamp)
{
    *stamp = 0;
    bool recorded = due.event && record_event(pool, ref, handle, due.operation, stamp);
    if (!recorded && due.operation && !stream_mark(pool, ref, handle))
        return false;
    if (due.fence) {
        uint64_t fenced = epoch_close_in_order(pool, ref.stream->context, false);
        *stamp = *stamp ? *stamp : fenced;
        order_release_request(ref.stream);
    }
    return true;
}
