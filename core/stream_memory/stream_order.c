#include "stream_order.h"

#include "core/base/numbers.h"
#include "core/contexts/epoch.h"
#include "core/contexts/pool_state.h"
#include "stream_done.h"
#include "stream_find.h"

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

void order_release_request(struct stream *stream)
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
