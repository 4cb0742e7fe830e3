#include "own_event_query.h"

#include "core/base/clock.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"
#include "own_events.h"

/* The first and the longest pause after a query that found an event incomplete. */
#define NOT_READY_NANOSECONDS_MIN UINT64_C(1000)
#define NOT_READY_NANOSECONDS_MAX UINT64_C(1000000)

/* If the context has died, its work has ended with it, and streams_context_died records that. */
static CUresult ask_driver(struct pool *pool, const struct own_event *event)
{
    if (!context_pin(event->context, event->generation))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    enter_driver();
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    CUresult result = pool->driver->cuEventQuery(event->event);
    relaxed_mode_end(pool->driver, mode);
    leave_driver();
    context_unpin(event->context);
    return result;
}

/* Later events complete no earlier. */
static bool was_not_ready_lately(const struct stream *stream, const struct own_event *event)
{
    lock_must_be_held(&stream->lock);
    return event && stream->not_ready_stamp > stream_done(stream) &&
           event->stamp >= stream->not_ready_stamp && monotonic_now() < stream->not_ready_until;
}

static void note_answer(struct stream *stream, uint64_t stamp, CUresult result)
{
    lock_must_be_held(&stream->lock);
    if (result != CUDA_ERROR_NOT_READY) {
        stream->not_ready_ns = 0;
        stream->not_ready_stamp = 0;
        return;
    }
    uint64_t longer = 2 * stream->not_ready_ns;
    if (longer == 0)
        longer = NOT_READY_NANOSECONDS_MIN;
    stream->not_ready_ns = longer < NOT_READY_NANOSECONDS_MAX ? longer : NOT_READY_NANOSECONDS_MAX;
    stream->not_ready_stamp = stamp;
    stream->not_ready_until = monotonic_now() + stream->not_ready_ns;
}

static CUresult ask(struct pool *pool, struct stream *stream, uint64_t stamp, bool sparingly)
{
    lock_take(&stream->lock, LOCK_STREAM);
    struct own_event *event = stream->oldest;
    while (event && event->stamp < stamp)
        event = event->next;
    uint64_t covered = event ? event->stamp : 0;
    bool vain = sparingly && was_not_ready_lately(stream, event);
    if (event && !vain)
        event->users++;
    lock_give(&stream->lock);
    if (vain)
        return CUDA_ERROR_NOT_READY;
    if (!event)
        return stream_done(stream) >= stamp ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    CUresult result = ask_driver(pool, event);
    lock_take(&stream->lock, LOCK_STREAM);
    if (result == CUDA_SUCCESS)
        own_events_complete(stream, covered);
    note_answer(stream, covered, result);
    own_event_drop(stream, event);
    own_events_apply_done(stream);
    lock_give(&stream->lock);
    return result;
}

CUresult own_events_ask(struct pool *pool, struct stream *stream, uint64_t stamp)
{
    return ask(pool, stream, stamp, false);
}

bool own_events_query_sparingly(struct pool *pool, struct stream *stream, uint64_t stamp)
{
    return ask(pool, stream, stamp, true) == CUDA_SUCCESS;
}

bool own_events_query(struct pool *pool, struct stream *stream, uint64_t stamp)
{
    return own_events_ask(pool, stream, stamp) == CUDA_SUCCESS;
}

CUresult own_events_synchronise(struct pool *pool, struct stream *stream, uint64_t stamp)
{
    uint64_t started = monotonic_now();
    CUresult result;
    while ((result = own_events_ask(pool, stream, stamp)) == CUDA_ERROR_NOT_READY)
        patient_nap(started);
    return result;
}

uint64_t own_events_newest(const struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    return stream->newest ? stream->newest->stamp : 0;
}

static bool may_be_waited_for(const struct own_event *event)
{
    return event->in_free;
}

struct own_event *own_events_first_in_free(const struct stream *stream, uint64_t stamp)
{
    lock_must_be_held(&stream->lock);
    struct own_event *event = stream->oldest;
    while (event && (event->stamp < stamp || !may_be_waited_for(event)))
        event = event->next;
    return event;
}

struct own_event *own_events_last_in_free(const struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    struct own_event *last = NULL;
    for (struct own_event *event = stream->oldest; event; event = event->next)
        if (may_be_waited_for(event))
            last = event;
    return last;
}
