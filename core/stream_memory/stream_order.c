#include "stream_order.h"

#include "core/base/numbers.h"
#include "core/contexts/device.h"
#include "core/contexts/epoch.h"
#include "core/contexts/pool_state.h"
#include "stream_events.h"
#include "stream_table.h"

/* ---- asking ---- */

static bool is_done(struct stream *stream, uint64_t stamp, struct context **context)
{
    lock_take(&stream->lock, LOCK_STREAM);
    stream_done_apply(stream);
    bool done = stream_done(stream) >= stamp;
    *context = stream->context;
    lock_give(&stream->lock);
    return done;
}

bool order_ask(struct pool *pool, struct stream *stream, uint64_t stamp)
{
    struct context *context;
    return is_done(stream, stamp, &context) ||
           (epoch_ask_in_order(pool, context, stamp) && is_done(stream, stamp, &context));
}

/* After a stream found no block with a fence, so many frees on the searched stream that can record
 * one do. */
#define REQUESTED_FREES 32u

void order_request_fences(struct stream *stream)
{
    atomic_store_explicit(&stream->fences_requested, REQUESTED_FREES, memory_order_relaxed);
}

/* A free has recorded a fence. Concurrent calls may lose each other's changes. */
static void release_request(struct stream *stream)
{
    unsigned wanted = atomic_load_explicit(&stream->fences_requested, memory_order_relaxed);
    if (wanted)
        atomic_store_explicit(&stream->fences_requested, wanted - 1, memory_order_relaxed);
}

/* ---- the program's own waits ---- */

/* The stamp up to which a successful wait for the stream tells that work has completed. */
static uint64_t told_by_wait(const struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    uint64_t newest = stream_newest_unclean(stream);
    return stream->ordered_by_others ? smaller_of(newest, stream->marked) : newest;
}

/* Called once the epoch of the mark is closed. Where others order the stream, a free that is under
 * way may have closed that epoch itself, and put its operation into the stream only after the wait
 * has begun. A free that begins later has a later stamp. */
static bool still_tells(struct stream_ref ref)
{
    struct stream *stream = ref.stream;
    lock_take(&stream->lock, LOCK_STREAM);
    /* Acquire: pairs with stream_block_has_a_place. */
    bool under_way = atomic_load_explicit(&stream->detached, memory_order_acquire) != 0;
    bool tells = stream_is(ref) && !(stream->ordered_by_others && under_way);
    lock_give(&stream->lock);
    return tells;
}

struct order_mark order_take_mark(struct pool *pool, CUstream handle)
{
    struct stream_ref ref = stream_find_beside_captures(pool, handle, false);
    struct order_mark mark = {{NULL, 0}, NULL, 0};
    if (!ref.stream)
        return mark;
    lock_take(&ref.stream->lock, LOCK_STREAM);
    if (stream_is(ref))
        mark = (struct order_mark){ref, ref.stream->context, told_by_wait(ref.stream)};
    lock_give(&ref.stream->lock);
    if (mark.stamp)
        epoch_close_before_wait(mark.context, mark.stamp);
    if (mark.stamp && !still_tells(ref))
        mark.stamp = 0;
    return mark;
}

void order_mark_is_over(struct order_mark mark)
{
    struct stream *stream = mark.ref.stream;
    lock_take(&stream->lock, LOCK_STREAM);
    if (stream_is(mark.ref))
        stream_done_raise(stream, mark.stamp);
    lock_give(&stream->lock);
}

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
    return device_resident(device) < device->total_bytes / 2 && !device_is_short(device);
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
    stream->unchecked.may_be_uncovered = uncovered_share(pool, stream, block->mempool);
    bool much =
        pending - stream->covered_bytes + block->block.bytes > stream->unchecked.may_be_uncovered;
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
        release_request(ref.stream);
    }
    return true;
}
