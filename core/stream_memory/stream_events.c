#include "stream_events.h"

#include <stdlib.h>

#include "core/base/numbers.h"
#include "core/contexts/capture.h"
#include "core/contexts/fence_event.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"
#include "stream_shelf.h"

/* ---- outstanding events ---- */

static void push(struct stream_event **chain, struct stream_event *event)
{
    event->next = *chain;
    *chain = event;
}

static struct stream_event *pop(struct stream_event **chain)
{
    struct stream_event *event = *chain;
    *chain = event->next;
    return event;
}

static void discard(struct stream *stream, struct stream_event *event)
{
    lock_must_be_held(&stream->lock);
    push(&stream->events.discarded, event);
}

/* Events with stamps that are done are spare. */
static void retire(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    while (stream->events.list && stream->events.list->stamp <= stream_done(stream)) {
        push(&stream->events.spare, pop(&stream->events.list));
        stream->events.outstanding--;
    }
}

struct stream_event *stream_events_take(struct stream *stream, uint64_t stamp)
{
    lock_must_be_held(&stream->lock);
    retire(stream);
    struct stream_event **link = &stream->events.list;
    while (*link && (*link)->stamp < stamp)
        link = &(*link)->next;
    if (!*link)
        return NULL;
    stream->events.outstanding--;
    stream->events.taken++;
    return pop(link);
}

uint64_t stream_events_newest(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    retire(stream);
    uint64_t newest = 0;
    for (const struct stream_event *event = stream->events.list; event; event = event->next)
        newest = event->stamp;
    return newest;
}

static bool is_of(const struct stream *stream, const struct stream_event *event)
{
    return event->recorded.context == stream->context &&
           event->recorded.generation == stream->generation;
}

/* Other threads may have published later events meanwhile. */
static void list(struct stream *stream, struct stream_event *event)
{
    lock_must_be_held(&stream->lock);
    if (!is_of(stream, event)) {
        discard(stream, event);
        return;
    }
    struct stream_event **link = &stream->events.list;
    while (*link && (*link)->stamp < event->stamp)
        link = &(*link)->next;
    push(link, event);
    stream->events.outstanding++;
    retire(stream);
}

void stream_events_put(struct stream *stream, struct stream_event *event)
{
    lock_must_be_held(&stream->lock);
    stream->events.taken--;
    list(stream, event);
}

bool stream_events_may_tell(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    return stream_events_newest(stream) != 0 || stream->events.taken != 0;
}

void stream_events_take_discarded(struct stream *stream, struct stream_event **chain)
{
    lock_must_be_held(&stream->lock);
    while (stream->events.discarded)
        push(chain, pop(&stream->events.discarded));
}

void stream_events_destroy(struct pool *pool, struct stream_event *events)
{
    for (struct stream_event *next; events; events = next) {
        next = events->next;
        fence_event_destroy_pinned(pool, &events->recorded);
        free(events);
    }
}

void stream_events_drop_all(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    if (stream->events.marker && stream->events.marker->users == 0)
        discard(stream, stream->events.marker);
    stream->events.marker = NULL;
    while (stream->events.list)
        discard(stream, pop(&stream->events.list));
    while (stream->events.spare)
        discard(stream, pop(&stream->events.spare));
    stream->events.outstanding = 0;
}

/* ---- asking ---- */

static CUresult query(struct pool *pool, const struct stream_event *event)
{
    struct relaxed_mode mode = enter_driver_relaxed(pool->driver);
    CUresult result = fence_event_query(pool, &event->recorded);
    leave_driver_relaxed(pool->driver, mode);
    return result;
}

CUresult stream_events_ask(struct pool *pool, struct stream *stream, uint64_t stamp)
{
    lock_take(&stream->lock, LOCK_STREAM);
    struct stream_event *event = stream_events_take(stream, stamp);
    bool taken = stream->events.taken != 0;
    lock_give(&stream->lock);
    if (!event)
        return taken ? CUDA_ERROR_NOT_READY : CUDA_ERROR_INVALID_HANDLE;
    CUresult result = query(pool, event);
    lock_take(&stream->lock, LOCK_STREAM);
    if (result == CUDA_SUCCESS && is_of(stream, event))
        stream_done_raise(stream, event->stamp);
    stream_events_put(stream, event);
    lock_give(&stream->lock);
    return result;
}

void stream_events_ask_all(struct pool *pool, struct stream *stream)
{
    lock_take(&stream->lock, LOCK_STREAM);
    uint64_t newest = stream_events_newest(stream);
    lock_give(&stream->lock);
    if (newest && stream_events_ask(pool, stream, newest) == CUDA_ERROR_NOT_READY)
        while (stream_events_ask(pool, stream, 0) == CUDA_SUCCESS)
            continue;
}

/* ---- recording ---- */

static struct stream_event *make_event(struct pool *pool, struct context *context)
{
    struct stream_event *event = calloc(1, sizeof *event);
    if (event && fence_event_make(pool, context, CUDA_ERROR_INVALID_CONTEXT, &event->recorded) !=
                     CUDA_SUCCESS) {
        free(event);
        event = NULL;
    }
    return event;
}

static CUresult record_on_stream(struct pool *pool, CUevent event, CUstream handle)
{
    CUresult result = pool->driver->cuEventRecord(event, handle);
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
static CUresult record_operation(struct pool *pool, const struct fence_event *at, CUstream handle)
{
    CUresult result = record_on_stream(pool, at->event, handle);
    if (result == CUDA_SUCCESS && !is_told_of_others(at->context, handle))
        result = pool->driver->cuStreamWaitEvent(handle, at->event, 0);
    return result;
}

/* If made_in is not NULL, makes the event first, in that context. Returns whether the event was
 * recorded. */
static bool record_event(struct pool *pool, struct context *made_in, struct stream_event **event,
                         CUstream handle, bool operation)
{
    enter_driver();
    if (made_in)
        *event = make_event(pool, made_in);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (*event)
        result = operation ? record_operation(pool, &(*event)->recorded, handle)
                           : record_on_stream(pool, (*event)->recorded.event, handle);
    leave_driver();
    return result == CUDA_SUCCESS;
}

/* Returns a spare event to record again, or NULL. *make: there is none, but the caller may make
 * one. Discards the spare events of another context. */
static struct stream_event *take_spare(struct stream *stream, bool *make)
{
    lock_must_be_held(&stream->lock);
    retire(stream);
    *make = false;
    if (stream->events.outstanding >= STREAM_EVENTS_MAX)
        return NULL;
    while (stream->events.spare) {
        struct stream_event *event = pop(&stream->events.spare);
        if (is_of(stream, event))
            return event;
        discard(stream, event);
    }
    *make = true;
    return NULL;
}

/* With EVENTS_TO_ASK events outstanding, one of the older ones is asked about before another is
 * recorded. Events that have completed are recorded again. */
#define EVENTS_TO_ASK (STREAM_EVENTS_MAX / 2)
#define EVENTS_ASKED  (STREAM_EVENTS_MAX / 4)

static void ask_about_older_ones(struct pool *pool, struct stream *stream)
{
    uint64_t stamp = 0;
    lock_take(&stream->lock, LOCK_STREAM);
    retire(stream);
    const struct stream_event *event = stream->events.list;
    for (unsigned i = 1; stream->events.outstanding >= EVENTS_TO_ASK && i < EVENTS_ASKED; i++)
        event = event->next;
    if (stream->events.outstanding >= EVENTS_TO_ASK)
        stamp = event->stamp;
    lock_give(&stream->lock);
    if (stamp)
        stream_events_ask(pool, stream, stamp);
}

bool stream_event_record(struct pool *pool, struct stream_ref ref, CUstream handle, uint64_t stamp,
                         bool operation)
{
    struct stream *stream = ref.stream;
    struct stream_event *discarded = NULL;
    bool make;
    ask_about_older_ones(pool, stream);
    lock_take(&stream->lock, LOCK_STREAM);
    struct context *context = stream->context;
    struct stream_event *event = take_spare(stream, &make);
    stream_events_take_discarded(stream, &discarded);
    lock_give(&stream->lock);
    stream_events_destroy(pool, discarded);
    bool recorded = record_event(pool, make ? context : NULL, &event, handle, operation);
    if (!event)
        return false;
    lock_take(&stream->lock, LOCK_STREAM);
    event->stamp = recorded ? stamp : 0;
    if (recorded && is_of(stream, event))
        shelf_cover(stream, stamp);
    list(stream, event);
    lock_give(&stream->lock);
    return recorded;
}

/* ---- the marker ---- */

struct stream_event *stream_use_marker(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    if (stream->events.marker)
        stream->events.marker->users++;
    return stream->events.marker;
}

bool stream_mark_by(struct pool *pool, struct stream_event *marker, CUstream handle)
{
    return record_event(pool, NULL, &marker, handle, true);
}

/* A marker that was made by the caller becomes the stream's, if it has none. */
void stream_drop_marker(struct stream *stream, struct stream_event *marker)
{
    lock_must_be_held(&stream->lock);
    marker->users--;
    if (!stream->events.marker && is_of(stream, marker))
        stream->events.marker = marker;
    else if (marker != stream->events.marker && marker->users == 0)
        discard(stream, marker);
}

/* Nobody but the stream itself waits for the marker, so it may be recorded again while a record of
 * it is outstanding. */
bool stream_mark(struct pool *pool, struct stream_ref ref, CUstream handle)
{
    struct stream *stream = ref.stream;
    lock_take(&stream->lock, LOCK_STREAM);
    struct context *context = stream->context;
    struct stream_event *marker = stream_use_marker(stream);
    lock_give(&stream->lock);
    bool make = !marker;
    bool recorded = record_event(pool, make ? context : NULL, &marker, handle, true);
    if (!marker)
        return false;
    lock_take(&stream->lock, LOCK_STREAM);
    marker->users += make;
    stream_drop_marker(stream, marker);
    lock_give(&stream->lock);
    return recorded;
}

/* ---- what is done ---- */

void stream_done_raise(struct stream *stream, uint64_t stamp)
{
    lock_must_be_held(&stream->lock);
    if (stream_done(stream) < stamp)
        atomic_store_explicit(&stream->done, stamp, memory_order_relaxed);
    while (stream->pending.first &&
           counter_get(&stream->pending.first->epoch) <= stream_done(stream))
        shelf_make_clean(stream, stream_block_of(stream->pending.first));
}

void stream_done_apply(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    stream_done_raise(stream, epoch_own_clean(&stream->context->epochs));
}

uint64_t stream_newest_unclean(const struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    const struct block *last = stream->pending.last;
    uint64_t newest =
        larger_of(last ? counter_get(&last->epoch) : 0, counter_get(&stream->parts.spare_stamp));
    return stream_has_waiting(stream) || newest > stream_done(stream) ? newest : 0;
}
