#include "own_event_record.h"

#include <stdlib.h>

#include "core/contexts/capture.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"
#include "own_event_query.h"
#include "own_events.h"
#include "stream_find.h"

/* With OWN_EVENTS_TO_ASK events outstanding, one of the older ones is queried before another is
 * recorded. Events that are found complete can be recorded again. */
#define OWN_EVENTS_TO_ASK (OWN_EVENTS_MAX / 2)
#define OWN_EVENTS_ASKED  (OWN_EVENTS_MAX / 4)

/* ---- recording ---- */

/* Pushes the stream's context: it is not current if the program names a stream of another context.
 */
static struct own_event *make_event(struct pool *pool, struct context *context)
{
    struct own_event *event = calloc(1, sizeof *event);
    bool pushed;
    if (!event || !context_push(pool, context, &pushed)) {
        free(event);
        return NULL;
    }
    event->context = context;
    event->generation = context_generation(context);
    CUresult result = pool->driver->cuEventCreate(&event->event, CU_EVENT_DISABLE_TIMING);
    context_pop(pool, pushed);
    if (result == CUDA_SUCCESS)
        return event;
    free(event);
    return NULL;
}

typedef CUresult recorder(struct pool *pool, const struct own_event *event, CUstream handle);

static CUresult record_on_stream(struct pool *pool, const struct own_event *event, CUstream handle)
{
    CUresult result = pool->driver->cuEventRecord(event->event, handle);
    /* A capture that began meanwhile may have captured the record. A stream that waits for such an
     * event becomes part of the capture. */
    bool captured = stream_may_be_captured(pool, handle);
    return result == CUDA_SUCCESS && captured ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : result;
}

/* Whether waits for the stream, and queries of it, include the blocking streams when it is empty
 * itself. */
static bool is_told_of_others(const struct context *context, CUstream handle)
{
    /* Acquire: pairs with the release store in streams_are_barred. */
    return (handle == NULL || handle == CU_STREAM_LEGACY) &&
           !atomic_load_explicit(&context->barred, memory_order_acquire);
}

/* In a stream without work of its own, a record comes after what others order before it. Waits for
 * the stream and queries of it do not see that. They do see a wait for the event. */
static CUresult record_operation(struct pool *pool, const struct own_event *event, CUstream handle)
{
    CUresult result = record_on_stream(pool, event, handle);
    if (result == CUDA_SUCCESS && !is_told_of_others(event->context, handle))
        result = pool->driver->cuStreamWaitEvent(handle, event->event, 0);
    return result;
}

/* The context is pinned. Holds the fence lock, so that no capture begins meanwhile. */
static CUresult record_in_context(struct pool *pool, const struct own_event *event, CUstream unused)
{
    CUresult result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    (void)unused;
    lock_take(&pool->fence_lock, LOCK_FENCE);
    if (!program_captures(&pool->captures))
        result = pool->driver->cuCtxRecordEvent(event->context->handle, event->event);
    lock_give(&pool->fence_lock);
    return result;
}

/* If made_in is not NULL, makes the event first, in that context. Returns whether the event was
 * recorded. */
static inline bool record_event(struct pool *pool, struct context *made_in,
                                struct own_event **event, CUstream handle, recorder *record)
{
    enter_driver();
    if (made_in)
        *event = make_event(pool, made_in);
    bool recorded = *event && record(pool, *event, handle) == CUDA_SUCCESS;
    leave_driver();
    return recorded;
}

static struct own_event *record_by(struct pool *pool, struct stream *stream, CUstream handle,
                                   uint64_t stamp, recorder *record)
{
    bool make;
    struct own_event *discarded = NULL;
    lock_take(&stream->lock, LOCK_STREAM);
    struct context *context = stream->context;
    struct own_event *event = own_events_begin(stream, &make);
    own_events_take_discarded(stream, &discarded);
    lock_give(&stream->lock);
    own_events_destroy(pool, discarded);
    bool recorded = record_event(pool, make ? context : NULL, &event, handle, record);
    if (!event)
        return NULL;
    lock_take(&stream->lock, LOCK_STREAM);
    event->stamp = stamp;
    event->users = 1;
    event->over = false;
    event->in_free = false;
    if (recorded) {
        own_events_publish(stream, event);
        if (record == record_operation)
            own_events_raise_marked(stream, stamp);
    } else {
        event->over = true;
        own_event_drop(stream, event);
    }
    lock_give(&stream->lock);
    return recorded ? event : NULL;
}

static void drop(struct stream *stream, struct own_event *event)
{
    if (!event)
        return;
    lock_take(&stream->lock, LOCK_STREAM);
    own_event_drop(stream, event);
    lock_give(&stream->lock);
}

/* ---- in frees ---- */

/* Queries one of the older events before too many are outstanding. */
static void ask_about_older_ones(struct pool *pool, struct stream *stream)
{
    uint64_t stamp = 0;
    lock_take(&stream->lock, LOCK_STREAM);
    if (counter_get(&stream->outstanding) >= OWN_EVENTS_TO_ASK) {
        const struct own_event *event = stream->oldest;
        for (unsigned i = 1; event->next && i < OWN_EVENTS_ASKED; i++)
            event = event->next;
        stamp = event->stamp;
    }
    lock_give(&stream->lock);
    if (stamp)
        own_events_query_sparingly(pool, stream, stamp);
}

struct own_event *own_event_record(struct pool *pool, struct stream_ref ref, CUstream handle,
                                   uint64_t stamp, bool marks)
{
    ask_about_older_ones(pool, ref.stream);
    struct own_event *event =
        record_by(pool, ref.stream, handle, stamp, marks ? record_operation : record_on_stream);
    if (!event)
        return NULL;
    lock_take(&ref.stream->lock, LOCK_STREAM);
    event->in_free = true;
    lock_give(&ref.stream->lock);
    return event;
}

struct own_event *own_event_record_at_end(struct pool *pool, struct stream_ref ref, CUstream handle,
                                          uint64_t stamp)
{
    return record_by(pool, ref.stream, handle, stamp, record_on_stream);
}

struct own_event *own_event_record_context(struct pool *pool, struct stream *stream, uint64_t stamp)
{
    return pool->driver->cuCtxRecordEvent ? record_by(pool, stream, NULL, stamp, record_in_context)
                                          : NULL;
}

bool own_event_mark_by(struct pool *pool, struct own_event *marker, CUstream handle)
{
    return record_event(pool, NULL, &marker, handle, record_operation);
}

/* Nobody but the stream itself waits for the marker, so it may be recorded again while a record of
 * it is outstanding. */
bool own_event_mark(struct pool *pool, struct stream_ref ref, CUstream handle, uint64_t stamp)
{
    struct stream *stream = ref.stream;
    lock_take(&stream->lock, LOCK_STREAM);
    struct context *context = stream->context;
    struct own_event *event = own_events_use_marker(stream);
    lock_give(&stream->lock);
    bool make = !event;
    bool recorded = record_event(pool, make ? context : NULL, &event, handle, record_operation);
    if (!event)
        return false;
    lock_take(&stream->lock, LOCK_STREAM);
    own_events_drop_marker(stream, event, make);
    if (recorded)
        own_events_raise_marked(stream, stamp);
    lock_give(&stream->lock);
    return recorded;
}

/* ---- before captures ---- */

static bool lacks_event(const struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    const struct block *last = stream->pending.last;
    return last && (!stream->newest || stream->newest->stamp < counter_get(&last->epoch));
}

bool own_events_capture_is_coming(const struct pool *pool)
{
    lock_of_rank_must_be_held(LOCK_STREAM);
    /* Relaxed: the stream's lock orders it. A thread that left a block pending without having seen
     * captures_coming did so before own_events_capture_comes looked at the stream. */
    return atomic_load_explicit(&streams_of(pool)->captures_coming, memory_order_relaxed) ||
           program_captures(&pool->captures);
}

void own_events_capture_has_come(struct pool *pool)
{
    atomic_fetch_sub_explicit(&streams_of(pool)->captures_coming, 1, memory_order_relaxed);
}

/* Records an event over all of the context's work if the stream has pending blocks without an
 * event. quiet: only if nothing was freed there since the last such call. */
static void record_in_context_of(struct pool *pool, struct stream *stream, bool quiet)
{
    lock_take(&stream->lock, LOCK_STREAM);
    own_events_apply_done(stream);
    uint64_t stamp = atomic_load_explicit(&stream->stamp, memory_order_relaxed);
    bool lacks = lacks_event(stream) && (!quiet || stream->stamp_when_looked == stamp);
    if (quiet)
        stream->stamp_when_looked = stamp;
    struct context *context = stream->context;
    uint64_t generation = stream->generation;
    lock_give(&stream->lock);
    if (!lacks || !context_pin(context, generation))
        return;
    drop(stream, own_event_record_context(pool, stream, stamp));
    context_unpin(context);
}

void own_events_capture_comes(struct pool *pool)
{
    struct streams *streams = streams_of(pool);
    atomic_fetch_add_explicit(&streams->captures_coming, 1, memory_order_relaxed);
    if (!pool->driver->cuCtxRecordEvent)
        return;
    for (unsigned i = 0; i < stream_count(streams); i++)
        record_in_context_of(pool, stream_at(streams, i), false);
}

void own_events_record_for_device(struct pool *pool, const struct device *device, bool quiet)
{
    struct streams *streams = streams_of(pool);
    if (!pool->driver->cuCtxRecordEvent)
        return;
    for (unsigned i = 0; i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        if (stream->device == device && counter_get(&stream->free_bytes))
            record_in_context_of(pool, stream, quiet);
    }
}

/* ---- where events are missing ---- */

/* Holds the fence lock, so that the stream is not captured meanwhile. */
static CUresult record_on_free_stream(struct pool *pool, const struct own_event *event,
                                      CUstream handle)
{
    CUresult result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    lock_take(&pool->fence_lock, LOCK_FENCE);
    if (!program_captures(&pool->captures))
        result = pool->driver->cuEventRecord(event->event, handle);
    lock_give(&pool->fence_lock);
    return result;
}

/* Outside of a free, an operation may only be put into a created stream that no others order. There
 * it delays nobody. */
static bool may_be_named(const struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    return stream->id && stream_is_created(stream->handle) && !stream->ordered_by_others;
}

/* The context is pinned. */
static void record_where_missing(struct pool *pool, struct stream *stream,
                                 const struct context *context)
{
    lock_take(&stream->lock, LOCK_STREAM);
    own_events_apply_done(stream);
    bool lacks = stream->context == context && lacks_event(stream) && may_be_named(stream);
    uint64_t stamp = atomic_load_explicit(&stream->stamp, memory_order_relaxed);
    CUstream handle = stream->handle;
    if (lacks)
        stream_is_named_to_driver(stream);
    lock_give(&stream->lock);
    if (!lacks)
        return;
    drop(stream, record_by(pool, stream, handle, stamp, record_on_free_stream));
    stream_is_named_no_more(stream);
}

void own_events_record_missing(struct pool *pool, const struct context *context)
{
    uint64_t generation = context_generation(context);
    for (unsigned i = 0; i < stream_count(streams_of(pool)); i++) {
        struct context *pinned = (struct context *)(uintptr_t)context;
        if (!context_pin(pinned, generation))
            return;
        record_where_missing(pool, stream_at(streams_of(pool), i), context);
        context_unpin(pinned);
    }
}

void own_events_record_to_wait(struct pool *pool, struct stream *stream)
{
    lock_take(&stream->lock, LOCK_STREAM);
    own_events_apply_done(stream);
    bool lacks = lacks_event(stream), named = may_be_named(stream);
    bool is_here = stream->id && (!stream->thread || stream->thread == thread_state.id);
    uint64_t stamp = atomic_load_explicit(&stream->stamp, memory_order_relaxed);
    uint64_t generation = stream->generation;
    struct context *context = stream->context;
    lock_give(&stream->lock);
    if (!lacks || (is_here && !named) || !context_pin(context, generation))
        return;
    if (named)
        record_where_missing(pool, stream, context);
    else
        drop(stream, own_event_record_context(pool, stream, stamp));
    context_unpin(context);
}
