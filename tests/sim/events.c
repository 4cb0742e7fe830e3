/*
 * Events: recorded in a stream or over a context, asked, waited for.
 */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

struct event *event_of(CUevent handle)
{
    return handle_object(KIND_EVENT, handle);
}

void event_forget_capture(struct event *event)
{
    free(event->captured_nodes);
    event->captured_nodes = NULL;
    event->captured_node_count = 0;
    event->captured = NULL;
}

void event_free(struct event *event)
{
    if (event->next != NULL)
        event->next->link = event->link;
    *event->link = event->next;
    event_forget_capture(event);
    handle_free(KIND_EVENT, event->handle);
    op_drop(event->record);
    free(event);
}

DRIVER_CALL(cuEventCreate, NEEDS_CONTEXT, (CUevent * handle, unsigned int flags), (handle, flags))
{
    struct event *event;
    if (handle == NULL || flags > 7 ||
        ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    event = calloc(1, sizeof *event);
    if (event == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->context = call->context;
    event->flags = flags;
    event->next = call->context->events;
    event->link = &call->context->events;
    if (event->next != NULL)
        event->next->link = &event->next;
    call->context->events = event;
    event->handle = handle_new(KIND_EVENT, event);
    *handle = event->handle;
    return CUDA_SUCCESS;
}

static CUresult destroy(CUevent handle)
{
    struct event *event = event_of(handle);
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    event_free(event);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuEventDestroy, IGNORES_ERRORS, (CUevent event), (event))
{
    return destroy(event);
}

DRIVER_CALL(cuEventDestroy_v2, IGNORES_ERRORS, (CUevent event), (event))
{
    return destroy(event);
}

/* The event stands for the nodes that the stream's next captured work would come after. */
static CUresult record_in_capture(struct event *event, struct stream *stream)
{
    size_t bytes = stream->capture_node_count * sizeof(struct node *);
    struct node **nodes;
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    nodes = malloc(bytes + 1);
    if (nodes == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (bytes > 0)
        memcpy(nodes, stream->capture_nodes, bytes);
    event_forget_capture(event);
    event->captured = stream->capture;
    event->captured_nodes = nodes;
    event->captured_node_count = stream->capture_node_count;
    return CUDA_SUCCESS;
}

static CUresult record(struct call *call, CUevent handle, CUstream stream_handle,
                       unsigned int flags)
{
    struct event *event = event_of(handle);
    CUresult result;
    struct stream *stream = stream_of(call, stream_handle, &result);
    struct op *op;
    if (flags > CU_EVENT_RECORD_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == NULL)
        return result;
    if (event == NULL || event->context->root != stream->context->root)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture != NULL && flags == CU_EVENT_RECORD_EXTERNAL) {
        struct work work = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .event = handle};
        return capture_add(stream, &work, NULL);
    }
    if (stream->capture != NULL)
        return record_in_capture(event, stream);
    result = stream_add_record(stream, &op);
    if (result != CUDA_SUCCESS)
        return result;
    event_forget_capture(event);
    op_set(&event->record, op);
    if (races_on)
        race_fence_recorded();
    op_drop(op);
    return CUDA_SUCCESS;
}

DRIVER_CALL_PT(cuEventRecord, _ptsz, 0, (CUevent event, CUstream stream), (event, stream))
{
    return record(call, event, stream, 0);
}

DRIVER_CALL_PT(cuEventRecordWithFlags, _ptsz, 0,
               (CUevent event, CUstream stream, unsigned int flags), (event, stream, flags))
{
    return record(call, event, stream, flags);
}

/* A captured event cannot be asked; other events cannot be while captures forbid it. */
static CUresult may_be_asked(struct event *event)
{
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->captured != NULL) {
        capture_invalidate(event->captured);
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    return captures_allow_unsafe_call();
}

DRIVER_CALL(cuEventQuery, LIGHT, (CUevent handle), (handle))
{
    struct event *event = event_of(handle);
    CUresult result = may_be_asked(event);
    if (result != CUDA_SUCCESS)
        return result;
    if (!op_is_done(event->record)) {
        if (races_on)
            race_polled(event->record);
        return CUDA_ERROR_NOT_READY;
    }
    if (races_on)
        race_observed(event->record);
    return event->context->root->error;
}

DRIVER_CALL(cuEventSynchronize, LIGHT, (CUevent handle), (handle))
{
    struct event *event = event_of(handle);
    CUresult result = may_be_asked(event);
    struct context *context;
    uint64_t id;
    if (result != CUDA_SUCCESS)
        return result;
    id = event->context->id;
    op_wait(event->record);
    pools_trim();
    context = context_with_id(id);
    return context != NULL ? context->root->error : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static CUresult elapsed(float *milliseconds, CUevent begin, CUevent end)
{
    const struct event *first = event_of(begin), *second = event_of(end);
    if (milliseconds == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (first == NULL || second == NULL || first->record == NULL || second->record == NULL ||
        ((first->flags | second->flags) & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!op_is_done(first->record) || !op_is_done(second->record))
        return CUDA_ERROR_NOT_READY;
    if (races_on) {
        race_observed(first->record);
        race_observed(second->record);
    }
    *milliseconds =
        (float)((double)(int64_t)(second->record->end_ns - first->record->end_ns) / 1e6);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuEventElapsedTime, LIGHT, (float *milliseconds, CUevent begin, CUevent end),
            (milliseconds, begin, end))
{
    return elapsed(milliseconds, begin, end);
}

DRIVER_CALL(cuEventElapsedTime_v2, LIGHT, (float *milliseconds, CUevent begin, CUevent end),
            (milliseconds, begin, end))
{
    return elapsed(milliseconds, begin, end);
}
