/*
 * Stream captures: begun, spread through events, spoiled by calls that conflict, ended.
 *
 * A capture that was spoiled ("invalid") lives on until it is ended; then there is no graph.
 */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

/* --- what captures forbid ----------------------------------------------------------------------*/

static bool forbids(const struct capture *capture, const struct thread *thread)
{
    if (capture->thread == thread->id && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED)
        return true;
    return thread->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
           capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult captures_allow_unsafe_call(void)
{
    const struct thread *thread = this_thread();
    CUresult result = CUDA_SUCCESS;
    if (thread->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    for (struct capture *capture = sim.captures; capture != NULL; capture = capture->next)
        if (forbids(capture, thread)) {
            capture_invalidate(capture);
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    return result;
}

static struct stream *blocking_capture(const struct context *context)
{
    struct stream *stream = context->streams;
    while (stream != NULL && (stream->capture == NULL || (stream->flags & CU_STREAM_NON_BLOCKING)))
        stream = stream->next;
    return stream;
}

CUresult captures_allow_legacy(struct context *context)
{
    struct stream *stream = blocking_capture(context);
    if (stream == NULL)
        return CUDA_SUCCESS;
    capture_invalidate(stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

void capture_invalidate(struct capture *capture)
{
    capture->invalid = true;
}

/* --- streams in a capture ----------------------------------------------------------------------*/

static void set_nodes(struct stream *stream, struct node *const *nodes, size_t count)
{
    struct node **copy = NULL;
    if (count > 0) {
        copy = malloc(count * sizeof(struct node *));
        if (copy == NULL)
            abort();
        memcpy(copy, nodes, count * sizeof(struct node *));
    }
    free(stream->capture_nodes);
    stream->capture_nodes = copy;
    stream->capture_node_count = count;
}

static bool has_node(const struct stream *stream, const struct node *node)
{
    for (size_t i = 0; i < stream->capture_node_count; i++)
        if (stream->capture_nodes[i] == node)
            return true;
    return false;
}

static void add_nodes(struct stream *stream, struct node *const *nodes, size_t count)
{
    size_t total = stream->capture_node_count;
    struct node **all = realloc(stream->capture_nodes, (total + count + 1) * sizeof(struct node *));
    if (all == NULL)
        abort();
    stream->capture_nodes = all;
    for (size_t i = 0; i < count; i++)
        if (!has_node(stream, nodes[i]))
            all[stream->capture_node_count++] = nodes[i];
}

void capture_leave(struct stream *stream)
{
    stream->capture->streams--;
    stream->capture = NULL;
    set_nodes(stream, NULL, 0);
}

CUresult capture_add(struct stream *stream, const struct work *work, struct node **node)
{
    struct node *added;
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    added =
        graph_add(stream->capture->graph, work, stream->capture_nodes, stream->capture_node_count);
    if (added == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (races_on)
        race_captured(&added->work);
    set_nodes(stream, &added, 1);
    if (node != NULL)
        *node = added;
    return CUDA_SUCCESS;
}

static CUresult merge(struct stream *stream, struct event *event)
{
    if (event->captured == NULL) {
        if (event->record == NULL)
            return CUDA_SUCCESS;
        capture_invalidate(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (event->captured != stream->capture) {
        capture_invalidate(stream->capture);
        capture_invalidate(event->captured);
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    add_nodes(stream, event->captured_nodes, event->captured_node_count);
    return CUDA_SUCCESS;
}

CUresult capture_join(struct stream *stream, struct event *event)
{
    if (stream->capture != NULL)
        return merge(stream, event);
    if (stream->type == STREAM_LEGACY) {
        capture_invalidate(event->captured);
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (event->captured->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    stream->capture = event->captured;
    stream->capture->streams++;
    set_nodes(stream, event->captured_nodes, event->captured_node_count);
    return CUDA_SUCCESS;
}

/* --- beginning and ending ----------------------------------------------------------------------*/

static void forget_events(const struct capture *capture)
{
    for (struct context *context = sim.contexts; context != NULL; context = context->next)
        for (struct event *event = context->events; event != NULL; event = event->next)
            if (event->captured == capture)
                event_forget_capture(event);
}

/* The capture is over; its graph, if it made one, is the caller's. */
static struct graph *finish(struct capture *capture)
{
    struct graph *graph = capture->graph;
    struct capture **link = &sim.captures;
    for (struct context *context = sim.contexts; context != NULL; context = context->next)
        for (struct stream *stream = context->streams; stream != NULL; stream = stream->next)
            if (stream->capture == capture)
                capture_leave(stream);
    forget_events(capture);
    while (*link != capture)
        link = &(*link)->next;
    *link = capture->next;
    free(capture);
    return graph;
}

void capture_discard(struct capture *capture)
{
    struct graph *graph = finish(capture);
    if (!graph->is_child)
        graph_free(graph);
}

static CUresult begin(struct stream *stream, CUstreamCaptureMode mode, struct graph *graph)
{
    struct capture *capture;
    if (stream->type == STREAM_LEGACY)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture != NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    capture = calloc(1, sizeof *capture);
    if (capture == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    capture->graph = graph != NULL ? graph : graph_new(false);
    capture->id = sim.next_id++;
    capture->mode = mode;
    capture->thread = this_thread()->id;
    capture->origin = stream;
    capture->streams = 1;
    capture->next = sim.captures;
    sim.captures = capture;
    stream->capture = capture;
    set_nodes(stream, NULL, 0);
    return CUDA_SUCCESS;
}

static CUresult begin_on(struct call *call, CUstream handle, CUstreamCaptureMode mode)
{
    CUresult why_not;
    struct stream *stream = stream_of(call, handle, &why_not);
    call_note(call, "stream=%p mode=%u", (void *)handle, mode);
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    return stream != NULL ? begin(stream, mode, NULL) : why_not;
}

DRIVER_CALL_PT(cuStreamBeginCapture, _ptsz, NEEDS_CONTEXT, (CUstream stream), (stream))
{
    return begin_on(call, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

DRIVER_CALL_PT(cuStreamBeginCapture_v2, _ptsz, NEEDS_CONTEXT,
               (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
{
    return begin_on(call, stream, mode);
}

static bool all_nodes_of(const struct graph *graph, const CUgraphNode *handles, size_t count,
                         struct node **nodes)
{
    for (size_t i = 0; i < count; i++) {
        nodes[i] = handle_object(KIND_NODE, handles[i]);
        if (nodes[i] == NULL || nodes[i]->graph != graph)
            return false;
    }
    return true;
}

DRIVER_CALL_PT(cuStreamBeginCaptureToGraph, _ptsz, NEEDS_CONTEXT,
               (CUstream handle, CUgraph graph_handle, const CUgraphNode *after,
                const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode),
               (handle, graph_handle, after, edges, count, mode))
{
    struct graph *graph = handle_object(KIND_GRAPH, graph_handle);
    CUresult result;
    struct stream *stream = stream_of(call, handle, &result);
    struct node *nodes[MOST_NAMED];
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED || graph == NULL || (count > 0 && after == NULL) ||
        count > MOST_NAMED || !all_nodes_of(graph, after, count, nodes))
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == NULL)
        return result;
    result = begin(stream, mode, graph);
    if (result == CUDA_SUCCESS)
        set_nodes(stream, nodes, count);
    return result;
}

static void unmark(const struct graph *graph)
{
    for (struct node *node = graph->nodes; node != NULL; node = node->next)
        node->marked = false;
}

/* Marks the nodes that the stream's next work would come after, directly or not, as well. */
static void mark_predecessors(const struct graph *graph, const struct stream *stream)
{
    for (struct node *node = graph->nodes; node != NULL; node = node->next)
        node->marked = node->marked || has_node(stream, node);
    for (struct node *node = graph->last; node != NULL; node = node->previous)
        for (size_t i = 0; node->marked && i < node->after_count; i++)
            node->after[i]->marked = true;
}

static bool all_marked(const struct stream *stream)
{
    for (size_t i = 0; i < stream->capture_node_count; i++)
        if (!stream->capture_nodes[i]->marked)
            return false;
    return true;
}

/* Has the origin stream waited for all that other streams captured? */
static bool all_joined(const struct capture *capture)
{
    unmark(capture->graph);
    mark_predecessors(capture->graph, capture->origin);
    for (struct context *context = sim.contexts; context != NULL; context = context->next)
        for (struct stream *stream = context->streams; stream != NULL; stream = stream->next)
            if (stream->capture == capture && !all_marked(stream))
                return false;
    return true;
}

bool capture_has_joined(const struct stream *stream)
{
    const struct capture *capture = stream->capture;
    unmark(capture->graph);
    for (struct context *context = sim.contexts; context != NULL; context = context->next)
        for (struct stream *other = context->streams; other != NULL; other = other->next)
            if (other != stream && other->capture == capture)
                mark_predecessors(capture->graph, other);
    return all_marked(stream);
}

DRIVER_CALL_PT(cuStreamEndCapture, _ptsz, NEEDS_CONTEXT, (CUstream handle, CUgraph *graph),
               (handle, graph))
{
    CUresult why_not;
    struct stream *stream = stream_of(call, handle, &why_not);
    struct capture *capture;
    call_note(call, "stream=%p", (void *)handle);
    if (graph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = NULL;
    if (stream == NULL)
        return why_not;
    capture = stream->capture;
    if (capture == NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != this_thread()->id) {
        capture_discard(capture);
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    if (capture->origin != stream) {
        capture_invalidate(capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (capture->invalid) {
        capture_discard(capture);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (!all_joined(capture)) {
        capture_discard(capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
    *graph = finish(capture)->handle;
    return CUDA_SUCCESS;
}

/* --- asking ------------------------------------------------------------------------------------*/

DRIVER_CALL(cuThreadExchangeStreamCaptureMode, LIGHT, (CUstreamCaptureMode * mode), (mode))
{
    struct thread *thread = this_thread();
    CUstreamCaptureMode before = thread->capture_mode;
    if (mode == NULL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    thread->capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* The stream, unless it is the legacy one beside a blocking capture: that has no answer. */
static CUresult ask(struct call *call, CUstream handle, struct stream **stream,
                    CUstreamCaptureStatus *status)
{
    CUresult why_not;
    *stream = stream_of(call, handle, &why_not);
    if (*stream == NULL)
        return why_not;
    if ((*stream)->type == STREAM_LEGACY && blocking_capture((*stream)->context) != NULL)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = (*stream)->capture == NULL    ? CU_STREAM_CAPTURE_STATUS_NONE
              : (*stream)->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                            : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

DRIVER_CALL_PT(cuStreamIsCapturing, _ptsz, LIGHT, (CUstream handle, CUstreamCaptureStatus *status),
               (handle, status))
{
    struct stream *stream;
    return status != NULL ? ask(call, handle, &stream, status) : CUDA_ERROR_INVALID_VALUE;
}

static const CUgraphNode *node_handles(struct stream *stream)
{
    CUgraphNode *handles =
        realloc(stream->capture_handles, (stream->capture_node_count + 1) * sizeof(CUgraphNode));
    if (handles == NULL)
        abort();
    stream->capture_handles = handles;
    for (size_t i = 0; i < stream->capture_node_count; i++)
        handles[i] = stream->capture_nodes[i]->handle;
    return handles;
}

static CUresult get_info(struct call *call, CUstream handle, CUstreamCaptureStatus *status,
                         cuuint64_t *id, CUgraph *graph, const CUgraphNode **nodes, size_t *count)
{
    struct stream *stream;
    CUresult result;
    if (status == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    result = ask(call, handle, &stream, status);
    if (result != CUDA_SUCCESS || stream->capture == NULL)
        return result;
    if (id != NULL)
        *id = stream->capture->id;
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_SUCCESS;
    if (graph != NULL)
        *graph = stream->capture->graph->handle;
    if (nodes != NULL)
        *nodes = node_handles(stream);
    if (count != NULL)
        *count = stream->capture_node_count;
    return CUDA_SUCCESS;
}

DRIVER_CALL_PT(cuStreamGetCaptureInfo, _ptsz, LIGHT,
               (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id),
               (stream, status, id))
{
    return get_info(call, stream, status, id, NULL, NULL, NULL);
}

DRIVER_CALL_PT(cuStreamGetCaptureInfo_v2, _ptsz, LIGHT,
               (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                const CUgraphNode **nodes, size_t *count),
               (stream, status, id, graph, nodes, count))
{
    return get_info(call, stream, status, id, graph, nodes, count);
}

DRIVER_CALL_PT(cuStreamGetCaptureInfo_v3, _ptsz, LIGHT,
               (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                const CUgraphNode **nodes, const CUgraphEdgeData **edges, size_t *count),
               (stream, status, id, graph, nodes, edges, count))
{
    if (edges != NULL)
        *edges = NULL;
    return get_info(call, stream, status, id, graph, nodes, count);
}

DRIVER_CALL_PT(cuStreamUpdateCaptureDependencies, _ptsz, 0,
               (CUstream handle, CUgraphNode *handles, size_t count, unsigned int flags),
               (handle, handles, count, flags))
{
    CUresult why_not;
    struct stream *stream = stream_of(call, handle, &why_not);
    struct node *nodes[MOST_NAMED];
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (count > 0 && handles == NULL) ||
        count > MOST_NAMED)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == NULL)
        return why_not;
    if (stream->capture == NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (!all_nodes_of(stream->capture->graph, handles, count, nodes))
        return CUDA_ERROR_INVALID_VALUE;
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        set_nodes(stream, nodes, count);
    else
        add_nodes(stream, nodes, count);
    return CUDA_SUCCESS;
}
