#include "stream_pending.h"

#include "core/base/clock.h"
#include "core/contexts/capture.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"
#include "own_event_query.h"
#include "own_event_record.h"
#include "own_events.h"
#include "stream_merge.h"
#include "stream_order.h"
#include "stream_release.h"
#include "stream_sums.h"

/* ---- by asking ---- */

static uint64_t newest_stamp(struct stream *stream)
{
    lock_take(&stream->lock, LOCK_STREAM);
    own_events_apply_done(stream);
    uint64_t stamp = stream_is_unclean(stream) && stream->newest ? stream->newest->stamp : 0;
    lock_give(&stream->lock);
    return stamp;
}

void stream_pending_query_by(struct pool *pool, const struct device *device,
                             bool (*query)(struct pool *, struct stream *, uint64_t))
{
    struct streams *streams = streams_of(pool);
    for (unsigned i = 0; streams && i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        if ((device && stream->device != device) ||
            (counter_get(&stream->free_bytes) == 0 && !stream_has_unclean_spare(stream)))
            continue;
        uint64_t stamp = newest_stamp(stream);
        /* The newest event is asked about first. If it has completed, everything has. */
        if (stamp && !query(pool, stream, stamp))
            while (newest_stamp(stream) && query(pool, stream, 1))
                continue;
    }
}

void stream_pending_query(struct pool *pool, const struct device *device)
{
    stream_pending_query_by(pool, device, own_events_query);
    stream_merge_all(pool, device, NULL);
}

/* ---- by waiting ---- */

bool stream_pending_in_context(struct pool *pool, const struct context *context)
{
    struct streams *streams = streams_of(pool);
    bool pending = false;
    for (unsigned i = 0; i < stream_count(streams) && !pending; i++) {
        struct stream *stream = stream_at(streams, i);
        lock_take(&stream->lock, LOCK_STREAM);
        own_events_apply_done(stream);
        pending = stream->context == context && stream->pending.first;
        lock_give(&stream->lock);
    }
    return pending;
}

/* Whether an event of the pool's own stands for the first pending block of the stream, which is in
 * this context. */
static bool has_event(struct stream *stream, const struct context *context)
{
    lock_take(&stream->lock, LOCK_STREAM);
    own_events_apply_done(stream);
    bool has = stream->context == context && stream->pending.first && stream->newest &&
               stream->newest->stamp >= counter_get(&stream->pending.first->epoch);
    lock_give(&stream->lock);
    return has;
}

bool stream_pending_has_events(struct pool *pool, const struct context *context)
{
    struct streams *streams = streams_of(pool);
    bool awaited = false;
    for (unsigned i = 0; i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        CUresult result = CUDA_SUCCESS;
        while (result == CUDA_SUCCESS && has_event(stream, context))
            result = own_events_ask(pool, stream, 1);
        awaited = awaited || result == CUDA_ERROR_NOT_READY;
    }
    return awaited;
}

bool stream_pending_record_context(struct pool *pool, struct context *context, CUevent *event)
{
    const struct driver *driver = pool->driver;
    bool pushed, recorded = false;
    if (!driver->cuCtxRecordEvent || !context_push(pool, context, &pushed))
        return false;
    if (driver->cuEventCreate(event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS) {
        lock_take(&pool->fence_lock, LOCK_FENCE);
        recorded = !program_captures(&pool->captures) &&
                   driver->cuCtxRecordEvent(context->handle, *event) == CUDA_SUCCESS;
        lock_give(&pool->fence_lock);
        if (!recorded)
            driver->cuEventDestroy_v2(*event);
    }
    context_pop(pool, pushed);
    return recorded;
}

static bool visit_begin(const struct visit *visit)
{
    return visit->ends || context_pin(visit->context, visit->generation);
}

static void visit_end(const struct visit *visit)
{
    if (!visit->ends)
        context_unpin(visit->context);
}

/* Asks the driver about the event. While it is not known whether the context ends, the event counts
 * as not completed. */
static CUresult ask(struct pool *pool, const struct visit *visit, CUevent event)
{
    if (!visit_begin(visit))
        return context_generation(visit->context) == visit->generation
                   ? CUDA_ERROR_NOT_READY
                   : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    enter_driver();
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    CUresult result = pool->driver->cuEventQuery(event);
    relaxed_mode_end(pool->driver, mode);
    leave_driver();
    visit_end(visit);
    return result;
}

void stream_pending_destroy_event(struct pool *pool, const struct visit *visit, CUevent event)
{
    if (!visit_begin(visit))
        return;
    enter_driver();
    pool->driver->cuEventDestroy_v2(event);
    leave_driver();
    visit_end(visit);
}

CUresult stream_pending_wait(struct pool *pool, const struct visit *visit, const CUevent *event,
                             uint64_t give_up_at)
{
    struct context *context = visit->context;
    uint64_t started = monotonic_now();
    uint64_t cached = stream_sum(pool, context->device).cached;
    CUresult result = CUDA_ERROR_NOT_READY;
    while (result == CUDA_ERROR_NOT_READY && (stream_pending_has_events(pool, context) || event)) {
        if (event)
            result = ask(pool, visit, *event);
        if (stream_sum(pool, context->device).cached > cached || monotonic_now() >= give_up_at)
            break;
        patient_nap(started);
    }
    thread_state.waited_ns += monotonic_now() - started;
    return result;
}

static void wait_for_context_until(struct pool *pool, const struct visit *visit,
                                   uint64_t give_up_at)
{
    CUevent event;
    struct context *context = visit->context;
    struct order_marks *marks = order_take_context(pool, context);
    if (!marks)
        return;
    own_events_record_missing(pool, context);
    bool recorded = false;
    if (visit_begin(visit)) {
        enter_driver();
        recorded = stream_pending_record_context(pool, context, &event);
        leave_driver();
        visit_end(visit);
    }
    /* If the driver has cuCtxRecordEvent, but no event was recorded, something is wrong. */
    bool waits =
        recorded || (!pool->driver->cuCtxRecordEvent && !program_captures(&pool->captures));
    if (waits &&
        stream_pending_wait(pool, visit, recorded ? &event : NULL, give_up_at) == CUDA_SUCCESS)
        order_context_is_over(marks);
    if (recorded)
        stream_pending_destroy_event(pool, visit, event);
    order_free_marks(marks);
}

void stream_pending_wait_until(struct pool *pool, const struct device *device, uint64_t give_up_at)
{
    struct context *c = streams_of(pool) ? context_next(pool, NULL, changeable(device)) : NULL;
    for (; c; c = context_next(pool, c, changeable(device))) {
        struct visit visit = {c, context_generation(c), false};
        if (stream_pending_in_context(pool, c))
            wait_for_context_until(pool, &visit, give_up_at);
    }
}
