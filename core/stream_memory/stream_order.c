#include "stream_order.h"

#include <stdlib.h>

#include "core/contexts/pool_state.h"
#include "own_events.h"
#include "stream_find.h"

/* ---- a stream ---- */

/* The stamp up to which a successful wait for the stream tells that work has completed. */
static uint64_t told_by_wait(const struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    bool all = !stream->ordered_by_others;
    return all ? atomic_load_explicit(&stream->stamp, memory_order_relaxed) : stream->marked;
}

struct order_mark order_take_mark(struct pool *pool, CUstream handle)
{
    struct stream_ref ref = stream_find_beside_captures(pool, handle, false);
    struct order_mark mark = {NULL, NULL, 0};
    if (!ref.stream)
        return mark;
    lock_take(&ref.stream->lock, LOCK_STREAM);
    if (stream_is(ref))
        mark = (struct order_mark){ref.stream, ref.stream->context, told_by_wait(ref.stream)};
    lock_give(&ref.stream->lock);
    return mark;
}

static void settle(struct stream *stream)
{
    lock_take(&stream->lock, LOCK_STREAM);
    own_events_apply_done(stream);
    lock_give(&stream->lock);
}

void order_mark_is_over(struct order_mark mark)
{
    own_events_complete(mark.stream, mark.stamp);
    settle(mark.stream);
}

/* ---- a whole context ---- */

struct order_marks {
    unsigned count;
    struct {
        struct stream *stream;
        uint64_t stamp;
    } marks[];
};

/* Whether nothing on the stream waits to be known to have completed. Lock not needed; the answer
 * may be a moment old. */
static bool seems_clean(const struct stream *stream)
{
    return counter_get(&stream->free_bytes) == counter_get(&stream->clean_bytes) &&
           counter_get(&stream->outstanding) == 0 && !stream_has_unclean_spare(stream);
}

/* Skips a stream with nothing pending: of many streams, few have been used since the last call. */
static void take_stream(struct streams *streams, unsigned index, const struct context *context,
                        struct order_marks *taken, unsigned room)
{
    struct stream *stream = stream_at(streams, index);
    bool settled = seems_clean(stream);
    if (settled && stream_id(streams, stream))
        return;
    lock_take(&stream->lock, LOCK_STREAM);
    if (stream->context == context && taken->count < room) {
        taken->marks[taken->count].stream = stream;
        taken->marks[taken->count++].stamp =
            atomic_load_explicit(&stream->stamp, memory_order_relaxed);
    }
    if (!stream->id && seems_clean(stream) &&
        atomic_load_explicit(&stream->detached, memory_order_acquire) == 0)
        streams_note_idle(streams, stream);
    lock_give(&stream->lock);
}

static unsigned count_busy(const struct streams *streams)
{
    unsigned count = 0;
    for (unsigned i = 0; i < STREAMS_MAX / 64; i++)
        count += (unsigned)__builtin_popcountll(
            atomic_load_explicit(&streams->busy[i], memory_order_relaxed));
    return count;
}

struct order_marks *order_take_context(struct pool *pool, const struct context *context)
{
    struct streams *streams = streams_of(pool);
    unsigned room = count_busy(streams);
    struct order_marks *taken = malloc(sizeof *taken + room * sizeof taken->marks[0]);
    if (!taken)
        return NULL;
    taken->count = 0;
    for (unsigned i = 0; i < STREAMS_MAX / 64; i++) {
        uint64_t bits = atomic_load_explicit(&streams->busy[i], memory_order_relaxed);
        for (; bits; bits &= bits - 1)
            take_stream(streams, i * 64 + (unsigned)__builtin_ctzll(bits), context, taken, room);
    }
    return taken;
}

void order_free_marks(struct order_marks *taken)
{
    free(taken);
}

void order_context_is_over(struct order_marks *taken)
{
    for (unsigned i = 0; i < taken->count; i++) {
        own_events_complete(taken->marks[i].stream, taken->marks[i].stamp);
        settle(taken->marks[i].stream);
    }
}

void order_blocking_are_over(struct order_marks *taken)
{
    for (unsigned i = 0; i < taken->count; i++) {
        struct stream *stream = taken->marks[i].stream;
        lock_take(&stream->lock, LOCK_STREAM);
        if (stream->ordered_by_others) {
            own_events_complete(stream, taken->marks[i].stamp);
            own_events_apply_done(stream);
        }
        lock_give(&stream->lock);
    }
}
