/*
 * Streams: created ones, each context's legacy one, and each thread's own in each context. What
 * work of a stream comes after is decided here.
 */
#include <stdlib.h>

#include "sim.h"

struct stream *stream_new(struct context *context, unsigned int flags, int priority)
{
    struct stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        return NULL;
    stream->id = sim.next_id++;
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    stream->next = context->streams;
    context->streams = stream;
    return stream;
}

static bool is_blocking(const struct stream *stream)
{
    return stream->type != STREAM_LEGACY && !(stream->flags & CU_STREAM_NON_BLOCKING);
}

/* Makes the variable hold what comes after its operation and another. */
static void join(struct context *context, struct op **variable, struct op *other)
{
    struct op *op;
    if (op_is_past(other))
        return;
    op = op_new(context, NULL);
    op_after(op, *variable);
    op_after(op, other);
    op_submit(op);
    op_set(variable, op);
    op_drop(op);
}

/* Work that is left runs on. */
void stream_free(struct stream *stream)
{
    struct context *context = stream->context;
    struct stream **link = &context->streams;
    if (stream->capture != NULL) {
        if (stream->capture->origin == stream) {
            capture_discard(stream->capture);
        } else {
            if (!capture_has_joined(stream))
                capture_invalidate(stream->capture);
            capture_leave(stream);
        }
    }
    join(context, &context->orphans, stream->last);
    if (is_blocking(stream))
        join(context, &context->blocking_orphans, stream->last);
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    if (stream->handle != NULL)
        handle_free(KIND_STREAM, stream->handle);
    op_drop(stream->last);
    op_drop(stream->seen);
    if (races_on)
        race_stream_free(stream);
    extent_give(&stream->overhead);
    free(stream->capture_nodes);
    free(stream->capture_handles);
    free(stream);
}

void thread_streams_free(uint64_t thread)
{
    for (struct context *context = sim.contexts; context != NULL; context = context->next)
        for (struct stream *stream = context->streams, *next; stream != NULL; stream = next) {
            next = stream->next;
            if (stream->type == STREAM_PER_THREAD && stream->thread == thread)
                stream_free(stream);
        }
}

static struct stream *per_thread_stream(struct context *context)
{
    uint64_t thread = this_thread()->id;
    struct stream *stream = context->streams;
    while (stream != NULL && !(stream->type == STREAM_PER_THREAD && stream->thread == thread))
        stream = stream->next;
    if (stream == NULL) {
        stream = stream_new(context, 0, 0);
        if (stream == NULL)
            return NULL;
        stream->type = STREAM_PER_THREAD;
        stream->thread = thread;
    }
    return stream;
}

struct stream *stream_of(struct call *call, CUstream handle, CUresult *why_not)
{
    struct stream *stream;
    *why_not = CUDA_ERROR_INVALID_HANDLE;
    if (handle != NULL && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
        stream = handle_object(KIND_STREAM, handle);
        return stream;
    }
    if (call->context == NULL) {
        *why_not = CUDA_ERROR_INVALID_CONTEXT;
        return NULL;
    }
    if (handle == CU_STREAM_PER_THREAD || (handle == NULL && call->per_thread)) {
        *why_not = CUDA_ERROR_OUT_OF_MEMORY;
        return per_thread_stream(call->context);
    }
    return call->context->legacy;
}

/* --- order -------------------------------------------------------------------------------------*/

/* After the stream's own work, and what the legacy stream and blocking ones order. */
static void order_by_streams(struct stream *stream, struct op *op)
{
    if (races_on && race_starts_early(op, stream))
        op_follow(op, stream->last);
    else
        op_after(op, stream->last);
    if (stream->type == STREAM_LEGACY) {
        for (struct stream *other = stream->context->streams; other != NULL; other = other->next)
            if (is_blocking(other))
                op_after(op, other->last);
        op_after(op, stream->context->blocking_orphans);
    } else if (is_blocking(stream)) {
        op_after(op, stream->context->legacy->last);
    }
}

void stream_order(struct stream *stream, struct op *op)
{
    order_by_streams(stream, op);
    op_after(op, stream->context->barrier);
    if (stream->context->root != stream->context)
        op_after(op, stream->context->root->barrier);
}

struct op *stream_tail(struct stream *stream)
{
    struct op *op;
    if (stream->type != STREAM_LEGACY)
        return stream->seen != NULL ? op_hold(stream->seen) : NULL;
    op = op_new(stream->context, NULL);
    order_by_streams(stream, op);
    op_submit(op);
    return op;
}

static void is_last(struct stream *stream, struct op *op, bool seen)
{
    op_set(&stream->last, op);
    if (seen)
        op_set(&stream->seen, op);
}

static CUresult add(struct stream *stream, const struct work *work, struct op **added, bool seen)
{
    struct op *op;
    CUresult result;
    if (added != NULL)
        *added = NULL;
    if (stream->capture != NULL)
        return capture_add(stream, work, NULL);
    if (stream->type == STREAM_LEGACY) {
        result = captures_allow_legacy(stream->context);
        if (result != CUDA_SUCCESS)
            return result;
    }
    op = op_new(stream->context, work);
    stream_order(stream, op);
    allocations_note_use(work, op, stream->context);
    if (races_on)
        race_op_in_stream(op, stream);
    op_submit(op);
    is_last(stream, op, seen);
    if (added != NULL)
        *added = op;
    else
        op_drop(op);
    return CUDA_SUCCESS;
}

CUresult stream_add(struct stream *stream, const struct work *work, struct op **added)
{
    return add(stream, work, added, true);
}

CUresult stream_add_record(struct stream *stream, struct op **added)
{
    return add(stream, &(struct work){.how = TAKES_NO_TIME}, added, false);
}

/* --- the driver's functions --------------------------------------------------------------------*/

static CUresult create(struct call *call, CUstream *handle, unsigned int flags, int priority)
{
    struct stream *stream;
    if (handle == NULL || flags > CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    stream = stream_new(call->context, flags, priority);
    if (stream == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!overhead_take(call->context->device, &stream->overhead)) {
        stream_free(stream);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stream->handle = handle_new(KIND_STREAM, stream);
    *handle = stream->handle;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuStreamCreate, NEEDS_CONTEXT, (CUstream * stream, unsigned int flags), (stream, flags))
{
    return create(call, stream, flags, 0);
}

DRIVER_CALL(cuStreamCreateWithPriority, NEEDS_CONTEXT,
            (CUstream * stream, unsigned int flags, int priority), (stream, flags, priority))
{
    return create(call, stream, flags, priority);
}

static CUresult destroy(CUstream handle)
{
    struct stream *stream = handle_object(KIND_STREAM, handle);
    if (stream == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    stream_free(stream);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuStreamDestroy, IGNORES_ERRORS, (CUstream stream), (stream))
{
    return destroy(stream);
}

DRIVER_CALL(cuStreamDestroy_v2, IGNORES_ERRORS, (CUstream stream), (stream))
{
    return destroy(stream);
}

DRIVER_CALL_PT(cuStreamGetPriority, _ptsz, LIGHT, (CUstream handle, int *priority),
               (handle, priority))
{
    CUresult why_not;
    const struct stream *stream = stream_of(call, handle, &why_not);
    if (priority == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == NULL)
        return why_not;
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

DRIVER_CALL_PT(cuStreamGetFlags, _ptsz, LIGHT, (CUstream handle, unsigned int *flags),
               (handle, flags))
{
    CUresult why_not;
    const struct stream *stream = stream_of(call, handle, &why_not);
    if (flags == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == NULL)
        return why_not;
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

DRIVER_CALL_PT(cuStreamGetId, _ptsz, LIGHT, (CUstream handle, unsigned long long *id), (handle, id))
{
    CUresult why_not;
    const struct stream *stream = stream_of(call, handle, &why_not);
    if (id == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == NULL)
        return why_not;
    /* Unlike cuStreamGetCtx and cuStreamGetFlags, it is no question for a stream that captures, not
     * even in relaxed mode. */
    if (stream->capture != NULL) {
        capture_invalidate(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    *id = stream->id;
    return CUDA_SUCCESS;
}

static CUresult get_context(struct call *call, CUstream handle, CUcontext *context,
                            CUgreenCtx *green)
{
    CUresult why_not;
    const struct stream *stream = stream_of(call, handle, &why_not);
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == NULL)
        return why_not;
    *context = stream->context->handle;
    if (green != NULL) {
        *green = stream->context->green_handle;
        if (*green != NULL)
            *context = NULL;
    }
    return CUDA_SUCCESS;
}

DRIVER_CALL_PT(cuStreamGetCtx, _ptsz, LIGHT, (CUstream stream, CUcontext *context),
               (stream, context))
{
    return get_context(call, stream, context, NULL);
}

DRIVER_CALL_PT(cuStreamGetCtx_v2, _ptsz, LIGHT,
               (CUstream stream, CUcontext *context, CUgreenCtx *green), (stream, context, green))
{
    return get_context(call, stream, context, green);
}

DRIVER_CALL_PT(cuStreamGetDevice, _ptsz, LIGHT, (CUstream handle, CUdevice *device),
               (handle, device))
{
    CUresult why_not;
    const struct stream *stream = stream_of(call, handle, &why_not);
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == NULL)
        return why_not;
    *device = stream->context->device->ordinal;
    return CUDA_SUCCESS;
}

/* Asking a capturing stream, or the legacy one beside a blocking capture, spoils the capture. */
static CUresult may_be_asked(struct stream *stream)
{
    if (stream->capture != NULL) {
        capture_invalidate(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (stream->type == STREAM_LEGACY)
        return captures_allow_legacy(stream->context);
    return captures_allow_unsafe_call();
}

DRIVER_CALL_PT(cuStreamQuery, _ptsz, LIGHT, (CUstream handle), (handle))
{
    CUresult why_not;
    struct stream *stream = stream_of(call, handle, &why_not);
    struct op *tail;
    bool done;
    if (stream == NULL)
        return why_not;
    why_not = may_be_asked(stream);
    if (why_not != CUDA_SUCCESS)
        return why_not;
    tail = stream_tail(stream);
    done = op_is_done(tail);
    if (races_on && done) {
        race_marks_observed(race_marks_of(stream));
        race_observed(tail);
    } else if (races_on) {
        race_polled(tail);
    }
    op_drop(tail);
    if (done && stream->context->root->error != CUDA_SUCCESS)
        return stream->context->root->error;
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

DRIVER_CALL_PT(cuStreamSynchronize, _ptsz, LIGHT, (CUstream handle), (handle))
{
    CUresult why_not;
    struct stream *stream = stream_of(call, handle, &why_not);
    struct context *context;
    struct clock *marks;
    struct op *tail;
    uint64_t id;
    if (stream == NULL)
        return why_not;
    why_not = may_be_asked(stream);
    if (why_not != CUDA_SUCCESS)
        return why_not;
    id = stream->context->id;
    tail = stream_tail(stream);
    marks = races_on ? race_marks_of(stream) : NULL;
    op_wait(tail);
    op_drop(tail);
    if (races_on)
        race_marks_observed(marks);
    pools_trim();
    context = context_with_id(id);
    return context != NULL ? context->root->error : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

void stream_wait(struct stream *stream, struct op *earlier)
{
    struct op *op;
    if (op_is_past(earlier))
        return;
    op = op_new(stream->context, NULL);
    stream_order(stream, op);
    op_after(op, earlier);
    if (races_on)
        race_stream_waits(stream, earlier);
    op_submit(op);
    is_last(stream, op, true);
    op_drop(op);
}

DRIVER_CALL_PT(cuStreamWaitEvent, _ptsz, 0,
               (CUstream handle, CUevent event_handle, unsigned int flags),
               (handle, event_handle, flags))
{
    CUresult why_not;
    struct stream *stream = stream_of(call, handle, &why_not);
    struct event *event = event_of(event_handle);
    if (flags > CU_EVENT_WAIT_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == NULL)
        return why_not;
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture != NULL && flags == CU_EVENT_WAIT_EXTERNAL) {
        struct work work = {.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .event = event_handle};
        return capture_add(stream, &work, NULL);
    }
    if (event->captured != NULL || stream->capture != NULL)
        return capture_join(stream, event);
    stream_wait(stream, event->record);
    return CUDA_SUCCESS;
}

DRIVER_CALL_PT(cuLaunchHostFunc, _ptsz, 0, (CUstream handle, CUhostFn function, void *argument),
               (handle, function, argument))
{
    struct work work = {.how = CALLS_HOST,
                        .type = CU_GRAPH_NODE_TYPE_HOST,
                        .host_function = function,
                        .host_argument = argument};
    CUresult why_not;
    struct stream *stream = stream_of(call, handle, &why_not);
    if (function == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return stream != NULL ? stream_add(stream, &work, NULL) : why_not;
}

DRIVER_CALL_PT(cuStreamAddCallback, _ptsz, 0,
               (CUstream handle, CUstreamCallback callback, void *argument, unsigned int flags),
               (handle, callback, argument, flags))
{
    struct work work = {.how = CALLS_HOST,
                        .type = CU_GRAPH_NODE_TYPE_HOST,
                        .callback = callback,
                        .callback_stream = handle,
                        .host_argument = argument};
    CUresult why_not;
    struct stream *stream = stream_of(call, handle, &why_not);
    if (callback == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == NULL)
        return why_not;
    if (stream->capture != NULL) {
        capture_invalidate(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return stream_add(stream, &work, NULL);
}

DRIVER_CALL_PT(cuStreamAttachMemAsync, _ptsz, 0,
               (CUstream handle, CUdeviceptr address, size_t bytes, unsigned int flags),
               (handle, address, bytes, flags))
{
    const struct allocation *allocation = allocation_at(address);
    CUresult why_not;
    if (stream_of(call, handle, &why_not) == NULL)
        return why_not;
    if (allocation == NULL || allocation->kind != MEMORY_MANAGED ||
        (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
         flags != CU_MEM_ATTACH_SINGLE))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
