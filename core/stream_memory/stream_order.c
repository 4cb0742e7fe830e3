#include "stream_order.h"

#include <stdlib.h>
#include <string.h>

#include "core/contexts/pool_state.h"
#include "own_events.h"
#include "stream_find.h"

/* ---- a stream ---- */

/* Makes the clock of work that comes after everything on the stream so far. */
static void copy_clock(const struct streams *streams, struct stream *stream,
                       struct order_mark *mark)
{
    lock_must_be_held(&stream->lock);
    unsigned count = stream_count(streams);
    mark->stream = stream;
    mark->context = stream->context;
    mark->stamp = atomic_load_explicit(&stream->stamp, memory_order_relaxed);
    mark->count = count < STREAMS_ORDERED ? count : STREAMS_ORDERED;
    memcpy(mark->clock.after, stream->known.after, mark->count * sizeof mark->clock.after[0]);
    if (stream->index < mark->count)
        mark->clock.after[stream->index] = mark->stamp;
}

/* The stamp up to which a successful wait for the stream tells that work has completed. */
static uint64_t told_by_wait(const struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    bool all = !stream->ordered_by_others;
    return all ? atomic_load_explicit(&stream->stamp, memory_order_relaxed) : stream->marked;
}

/* Only the stream's own stamp is lowered. What the stream waits for through events of other
 * streams, a wait covers without an operation of the pool's. */
static void lower_to_what_a_wait_tells(struct order_mark *mark)
{
    lock_must_be_held(&mark->stream->lock);
    uint64_t told = told_by_wait(mark->stream);
    if (mark->stamp <= told)
        return;
    mark->stamp = told;
    if (mark->stream->index < mark->count)
        mark->clock.after[mark->stream->index] = told;
}

static void take_mark(struct pool *pool, CUstream handle, struct order_mark *mark, bool of_wait)
{
    struct stream_ref ref = stream_find_beside_captures(pool, handle, false);
    mark->stream = NULL;
    mark->context = NULL;
    if (!ref.stream)
        return;
    lock_take(&ref.stream->lock, LOCK_STREAM);
    if (stream_is(ref)) {
        copy_clock(streams_of(pool), ref.stream, mark);
        if (of_wait)
            lower_to_what_a_wait_tells(mark);
    }
    lock_give(&ref.stream->lock);
}

void order_take_mark(struct pool *pool, CUstream handle, struct order_mark *mark)
{
    take_mark(pool, handle, mark, false);
}

void order_take_mark_of_wait(struct pool *pool, CUstream handle, struct order_mark *mark)
{
    take_mark(pool, handle, mark, true);
}

void order_clock_is_over(struct streams *streams, const struct order_clock *clock, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (clock->after[i])
            own_events_complete(stream_at(streams, i), clock->after[i]);
}

static void settle(struct stream *stream)
{
    lock_take(&stream->lock, LOCK_STREAM);
    own_events_apply_done(stream);
    lock_give(&stream->lock);
}

void order_mark_is_over(struct pool *pool, const struct order_mark *mark)
{
    if (!mark->stream)
        return;
    own_events_complete(mark->stream, mark->stamp);
    order_clock_is_over(streams_of(pool), &mark->clock, mark->count);
    settle(mark->stream);
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
