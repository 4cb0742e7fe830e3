/*
 * Graphs: nodes of work, in an order in which every node follows what it comes after; executable
 * copies; launches. A child graph's node has a graph of its own, a copy of what was given; an
 * executable graph has the nodes of child graphs among its own.
 */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

struct graph *graph_new(bool executable)
{
    struct graph *graph = calloc(1, sizeof *graph);
    if (graph == NULL)
        return NULL;
    if (executable)
        graph->exec_handle = handle_new(KIND_EXEC, graph);
    else
        graph->handle = handle_new(KIND_GRAPH, graph);
    return graph;
}

static void free_node(struct node *node)
{
    graph_memory_drop(node->graph, &node->work);
    if (node->child != NULL)
        graph_free(node->child);
    handle_free(KIND_NODE, node->handle);
    free(node->after);
    free(node);
}

void graph_free(struct graph *graph)
{
    user_references_free(graph);
    while (graph->nodes != NULL) {
        struct node *node = graph->nodes;
        graph->nodes = node->next;
        free_node(node);
    }
    handle_free(KIND_GRAPH, graph->handle);
    handle_free(KIND_EXEC, graph->exec_handle);
    op_drop(graph->last_launch);
    op_drop(graph->last_upload);
    extent_give(&graph->overhead);
    free(graph);
}

struct node *graph_add(struct graph *graph, const struct work *work, struct node *const *after,
                       size_t after_count)
{
    struct node *node = calloc(1, sizeof *node);
    if (node == NULL)
        return NULL;
    node->after = calloc(after_count + 1, sizeof(struct node *));
    if (node->after == NULL) {
        free(node);
        return NULL;
    }
    for (size_t i = 0; i < after_count; i++)
        node->after[i] = after[i];
    node->after_count = after_count;
    node->graph = graph;
    node->work = *work;
    node->handle = handle_new(KIND_NODE, node);
    graph_memory_hold(graph, work);
    node->previous = graph->last;
    if (graph->last != NULL)
        graph->last->next = node;
    else
        graph->nodes = node;
    graph->last = node;
    return node;
}

/* What the copies of the nodes that a node comes after are; to be freed. */
static struct node **copied_predecessors(const struct node *node)
{
    struct node **after = calloc(node->after_count + 1, sizeof(struct node *));
    if (after == NULL)
        return NULL;
    for (size_t i = 0; i < node->after_count; i++)
        after[i] = node->after[i]->clone;
    return after;
}

static struct node *copy_node(struct graph *target, const struct node *node)
{
    struct node **after = copied_predecessors(node), *copy;
    if (after == NULL)
        return NULL;
    copy = node->child != NULL ? graph_add_child(target, node->child, after, node->after_count)
                               : graph_add(target, &node->work, after, node->after_count);
    free(after);
    return copy;
}

bool graph_copy(struct graph *target, const struct graph *source)
{
    for (struct node *node = source->nodes; node != NULL; node = node->next) {
        node->clone = copy_node(target, node);
        if (node->clone == NULL)
            return false;
    }
    user_references_copy(target, 0, source);
    return true;
}

struct node *graph_add_child(struct graph *graph, const struct graph *child,
                             struct node *const *after, size_t after_count)
{
    struct work work = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
    struct node *added = graph_add(graph, &work, after, after_count);
    if (added == NULL)
        return NULL;
    added->child = graph_new(false);
    if (added->child == NULL)
        return NULL;
    added->child->is_child = true;
    return graph_copy(added->child, child) ? added : NULL;
}

/* The child graph's nodes, and one after them all that stands for its node. */
static struct node *flatten_child(struct graph *exec, const struct node *node,
                                  struct node *const *after, size_t after_count)
{
    const struct graph *child = node->child;
    unsigned int part = exec->parts;
    struct node *end, **all;
    size_t count = 0;
    if (!graph_flatten(exec, child, after, after_count))
        return NULL;
    if (child->nodes == NULL) {
        end = graph_add(exec, &node->work, after, after_count);
        if (end != NULL)
            end->part = part;
        return end;
    }
    for (const struct node *inner = child->nodes; inner != NULL; inner = inner->next)
        count++;
    all = calloc(count, sizeof(struct node *));
    if (all == NULL)
        return NULL;
    count = 0;
    for (const struct node *inner = child->nodes; inner != NULL; inner = inner->next)
        all[count++] = inner->clone;
    end = graph_add(exec, &node->work, all, count);
    free(all);
    if (end != NULL)
        end->part = part;
    return end;
}

bool graph_flatten(struct graph *exec, const struct graph *source, struct node *const *after,
                   size_t after_count)
{
    unsigned int part = exec->parts++;
    for (struct node *node = source->nodes; node != NULL; node = node->next) {
        bool first = node->after_count == 0;
        struct node **own = copied_predecessors(node);
        struct node *const *before = first ? after : own;
        size_t count = first ? after_count : node->after_count;
        if (own == NULL)
            return false;
        node->clone = node->child != NULL ? flatten_child(exec, node, before, count)
                                          : graph_add(exec, &node->work, before, count);
        free(own);
        if (node->clone == NULL)
            return false;
        node->clone->origin = node->handle;
        node->clone->disabled = node->disabled;
    }
    user_references_copy(exec, part, source);
    return true;
}

/* --- the driver's functions: graphs ------------------------------------------------------------*/

struct graph *graph_of(CUgraph handle)
{
    return handle_object(KIND_GRAPH, handle);
}

DRIVER_CALL(cuGraphCreate, 0, (CUgraph * handle, unsigned int flags), (handle, flags))
{
    struct graph *graph;
    if (handle == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    graph = graph_new(false);
    if (graph == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = graph->handle;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuGraphClone, 0, (CUgraph * handle, CUgraph original), (handle, original))
{
    struct graph *graph = graph_of(original), *copy;
    if (handle == NULL || graph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (graph_memory_is_in(graph))
        return CUDA_ERROR_NOT_SUPPORTED;
    copy = graph_new(false);
    if (copy == NULL || !graph_copy(copy, graph))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = copy->handle;
    return CUDA_SUCCESS;
}

bool graph_is_being_captured(const struct graph *graph)
{
    const struct capture *capture = sim.captures;
    while (capture != NULL && capture->graph != graph)
        capture = capture->next;
    return capture != NULL;
}

DRIVER_CALL(cuGraphDestroy, IGNORES_ERRORS, (CUgraph handle), (handle))
{
    struct graph *graph = graph_of(handle);
    if (graph == NULL || graph->is_child || graph_is_being_captured(graph))
        return CUDA_ERROR_INVALID_VALUE;
    graph_free(graph);
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuGraphGetNodes, 0, (CUgraph handle, CUgraphNode *nodes, size_t *count),
            (handle, nodes, count))
{
    const struct graph *graph = graph_of(handle);
    size_t found = 0;
    if (graph == NULL || count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (const struct node *node = graph->nodes; node != NULL; node = node->next) {
        if (nodes != NULL && found < *count)
            nodes[found] = node->handle;
        found++;
    }
    for (size_t i = found; nodes != NULL && i < *count; i++)
        nodes[i] = NULL;
    if (nodes == NULL || found < *count)
        *count = found;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuGraphNodeGetType, 0, (CUgraphNode handle, CUgraphNodeType *type), (handle, type))
{
    const struct node *node = handle_object(KIND_NODE, handle);
    if (node == NULL || type == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *type = node->work.type;
    return CUDA_SUCCESS;
}

/* --- executable graphs -------------------------------------------------------------------------*/

static CUresult instantiate(const struct call *call, CUgraphExec *handle, CUgraph graph_handle,
                            unsigned long long flags)
{
    struct graph *graph = graph_of(graph_handle), *exec;
    if (handle == NULL || graph == NULL || graph->is_moved || graph_is_being_captured(graph))
        return CUDA_ERROR_INVALID_VALUE;
    if (graph_memory_is_instantiated(graph))
        return CUDA_ERROR_NOT_SUPPORTED;
    exec = graph_new(true);
    if (exec == NULL || !graph_flatten(exec, graph, NULL, 0))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!overhead_take(call->context->device, &exec->overhead)) {
        graph_free(exec);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    exec->frees_on_launch = flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    *handle = exec->exec_handle;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuGraphInstantiate, NEEDS_CONTEXT,
            (CUgraphExec * exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t bytes),
            (exec, graph, error_node, log, bytes))
{
    return instantiate(call, exec, graph, 0);
}

DRIVER_CALL(cuGraphInstantiate_v2, NEEDS_CONTEXT,
            (CUgraphExec * exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t bytes),
            (exec, graph, error_node, log, bytes))
{
    return instantiate(call, exec, graph, 0);
}

DRIVER_CALL(cuGraphInstantiateWithFlags, NEEDS_CONTEXT,
            (CUgraphExec * exec, CUgraph graph, unsigned long long flags), (exec, graph, flags))
{
    return flags <= 15 ? instantiate(call, exec, graph, flags) : CUDA_ERROR_INVALID_VALUE;
}

DRIVER_CALL_PT(cuGraphInstantiateWithParams, _ptsz, NEEDS_CONTEXT,
               (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters),
               (exec, graph, parameters))
{
    if (parameters == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    parameters->hErrNode_out = NULL;
    parameters->result_out = 0;
    return instantiate(call, exec, graph, parameters->flags);
}

DRIVER_CALL(cuGraphExecDestroy, IGNORES_ERRORS | UNSAFE, (CUgraphExec handle), (handle))
{
    struct graph *exec = handle_object(KIND_EXEC, handle);
    if (exec == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    graph_free(exec);
    return CUDA_SUCCESS;
}

static void order_node(struct node *node, struct op *begin)
{
    struct event *event;
    for (size_t i = 0; i < node->after_count; i++)
        op_after(node->op, node->after[i]->op);
    if (node->after_count == 0)
        op_after(node->op, begin);
    if (node->work.type != CU_GRAPH_NODE_TYPE_WAIT_EVENT &&
        node->work.type != CU_GRAPH_NODE_TYPE_EVENT_RECORD)
        return;
    event = event_of(node->work.event);
    if (event == NULL)
        return;
    if (node->work.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT)
        op_after(node->op, event->record);
    else
        op_set(&event->record, node->op);
}

static void launch(struct graph *exec, struct stream *stream)
{
    struct op *begin = op_new(stream->context, NULL), *end;
    stream_order(stream, begin);
    op_after(begin, exec->last_launch);
    op_submit(begin);
    for (struct node *node = exec->nodes; node != NULL; node = node->next) {
        node->op = op_new(stream->context, node->disabled ? NULL : &node->work);
        order_node(node, begin);
        if (races_on)
            race_op_in_graph(node->op, stream, node->after_count > 0 ? node->after[0]->op : begin);
        if (!node->disabled)
            allocations_note_use(&node->work, node->op, stream->context);
        op_submit(node->op);
    }
    end = op_new(stream->context, NULL);
    for (struct node *node = exec->nodes; node != NULL; node = node->next) {
        op_after(end, node->op);
        op_drop(node->op);
        node->op = NULL;
    }
    op_after(end, begin);
    if (races_on)
        race_op_in_stream(end, stream);
    op_submit(end);
    op_set(&stream->last, end);
    op_set(&stream->seen, end);
    op_set(&exec->last_launch, end);
    graph_memory_launched(exec, end);
    op_drop(begin);
    op_drop(end);
}

/* A launch or an upload: neither may be captured. */
static CUresult may_use(const struct stream *stream)
{
    if (stream->capture != NULL) {
        if (stream->capture->invalid)
            return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        capture_invalidate(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return stream->type == STREAM_LEGACY ? captures_allow_legacy(stream->context) : CUDA_SUCCESS;
}

DRIVER_CALL_PT(cuGraphLaunch, _ptsz, NEEDS_CONTEXT, (CUgraphExec handle, CUstream stream_handle),
               (handle, stream_handle))
{
    struct graph *exec = handle_object(KIND_EXEC, handle);
    CUresult result;
    struct stream *stream = stream_of(call, stream_handle, &result);
    if (exec == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == NULL)
        return result;
    result = may_use(stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!graph_memory_allows_launch(exec))
        return CUDA_ERROR_INVALID_VALUE;
    launch(exec, stream);
    return CUDA_SUCCESS;
}

/* In its stream's order, and after what the executable graph did before. */
static void upload(struct graph *exec, struct stream *stream)
{
    struct op *op = op_new(stream->context, NULL);
    stream_order(stream, op);
    op_after(op, exec->last_launch);
    op_after(op, exec->last_upload);
    if (races_on)
        race_op_in_stream(op, stream);
    op_submit(op);
    op_set(&stream->last, op);
    op_set(&stream->seen, op);
    op_set(&exec->last_upload, op);
    op_drop(op);
}

DRIVER_CALL_PT(cuGraphUpload, _ptsz, NEEDS_CONTEXT, (CUgraphExec handle, CUstream stream_handle),
               (handle, stream_handle))
{
    struct graph *exec = handle_object(KIND_EXEC, handle);
    CUresult result;
    struct stream *stream = stream_of(call, stream_handle, &result);
    if (exec == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == NULL)
        return result;
    result = may_use(stream);
    if (result == CUDA_SUCCESS)
        upload(exec, stream);
    return result;
}
