/*
 * Nodes of graphs that a program adds itself, and what can be changed of an executable graph: what
 * its nodes do, never which nodes there are, nor of which type.
 */
#include <stdlib.h>

#include "sim.h"

bool graph_nodes_of(const struct graph *graph, const CUgraphNode *handles, size_t count,
                    struct node **nodes)
{
    if (graph == NULL || count > MOST_NAMED || (count > 0 && handles == NULL))
        return false;
    for (size_t i = 0; i < count; i++) {
        nodes[i] = handle_object(KIND_NODE, handles[i]);
        if (nodes[i] == NULL || nodes[i]->graph != graph)
            return false;
    }
    return true;
}

/* --- adding ------------------------------------------------------------------------------------*/

static CUresult add(CUgraphNode *handle, CUgraph graph_handle, const CUgraphNode *after,
                    size_t count, const struct work *work)
{
    struct graph *graph = graph_of(graph_handle);
    struct node *nodes[MOST_NAMED], *node;
    if (handle == NULL || !graph_nodes_of(graph, after, count, nodes))
        return CUDA_ERROR_INVALID_VALUE;
    node = graph_add(graph, work, nodes, count);
    if (node == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = node->handle;
    return CUDA_SUCCESS;
}

static CUresult host_work(const CUDA_HOST_NODE_PARAMS *parameters, struct work *work)
{
    if (parameters == NULL || parameters->fn == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *work = (struct work){.how = CALLS_HOST,
                          .type = CU_GRAPH_NODE_TYPE_HOST,
                          .host_function = parameters->fn,
                          .host_argument = parameters->userData};
    return CUDA_SUCCESS;
}

static CUresult batch_work(const CUDA_BATCH_MEM_OP_NODE_PARAMS *parameters, struct work *work)
{
    if (parameters == NULL || context_of(parameters->ctx) == NULL || parameters->flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return memory_operations_work(parameters->paramArray, parameters->count, work);
}

DRIVER_CALL(cuGraphAddEmptyNode, 0,
            (CUgraphNode * handle, CUgraph graph, const CUgraphNode *after, size_t count),
            (handle, graph, after, count))
{
    return add(handle, graph, after, count, &(struct work){.type = CU_GRAPH_NODE_TYPE_EMPTY});
}

static CUresult copy_child(struct graph *graph, const struct graph *child,
                           struct node *const *after, size_t count, CUgraphNode *handle)
{
    struct node *node;
    if (graph_memory_is_in(child))
        return CUDA_ERROR_NOT_SUPPORTED;
    node = graph_add_child(graph, child, after, count);
    if (node == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = node->handle;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuGraphAddChildGraphNode, 0,
            (CUgraphNode * handle, CUgraph graph_handle, const CUgraphNode *after, size_t count,
             CUgraph child_handle),
            (handle, graph_handle, after, count, child_handle))
{
    struct graph *graph = graph_of(graph_handle), *child = graph_of(child_handle);
    struct node *nodes[MOST_NAMED];
    if (handle == NULL || child == NULL || child == graph || child->is_moved ||
        !graph_nodes_of(graph, after, count, nodes))
        return CUDA_ERROR_INVALID_VALUE;
    return copy_child(graph, child, nodes, count, handle);
}

/* The child itself becomes the node's, and is destroyed with it. */
static CUresult move_child(struct graph *graph, struct graph *child, struct node *const *after,
                           size_t count, CUgraphNode *handle)
{
    struct work work = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
    struct node *node = graph_add(graph, &work, after, count);
    if (node == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    node->child = child;
    child->is_child = child->is_moved = true;
    *handle = node->handle;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuGraphAddNode_v2, 0,
            (CUgraphNode * handle, CUgraph graph_handle, const CUgraphNode *after,
             const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *parameters),
            (handle, graph_handle, after, edges, count, parameters))
{
    struct graph *graph = graph_of(graph_handle), *child;
    struct node *nodes[MOST_NAMED];
    if (handle == NULL || parameters == NULL || !graph_nodes_of(graph, after, count, nodes))
        return CUDA_ERROR_INVALID_VALUE;
    if (parameters->type != CU_GRAPH_NODE_TYPE_GRAPH)
        return CUDA_ERROR_NOT_SUPPORTED;
    child = graph_of(parameters->graph.graph);
    if (child == NULL || child == graph || child->is_moved || graph_is_being_captured(child))
        return CUDA_ERROR_INVALID_VALUE;
    if (parameters->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE)
        return child->is_child ? CUDA_ERROR_INVALID_VALUE
                               : move_child(graph, child, nodes, count, handle);
    return copy_child(graph, child, nodes, count, handle);
}

DRIVER_CALL(cuGraphChildGraphNodeGetGraph, 0, (CUgraphNode handle, CUgraph *graph), (handle, graph))
{
    const struct node *node = handle_object(KIND_NODE, handle);
    if (node == NULL || node->child == NULL || graph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = node->child->handle;
    return CUDA_SUCCESS;
}

/* Without room: how many there are. With it, nothing stands where there are fewer than there is
 * room for. */
DRIVER_CALL(cuGraphNodeGetDependencies, 0, (CUgraphNode handle, CUgraphNode *nodes, size_t *count),
            (handle, nodes, count))
{
    const struct node *node = handle_object(KIND_NODE, handle);
    if (node == NULL || count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; nodes != NULL && i < *count; i++)
        nodes[i] = i < node->after_count ? node->after[i]->handle : NULL;
    if (nodes == NULL || *count > node->after_count)
        *count = node->after_count;
    return CUDA_SUCCESS;
}

/* A node whose work the function makes out of its parameters. */
#define ADD_NODE(name, type, make_work)                                                            \
    DRIVER_CALL(name, 0,                                                                           \
                (CUgraphNode * handle, CUgraph graph, const CUgraphNode *after, size_t count,      \
                 const type *parameters),                                                          \
                (handle, graph, after, count, parameters))                                         \
    {                                                                                              \
        struct work work;                                                                          \
        CUresult result = make_work(parameters, &work);                                            \
        return result == CUDA_SUCCESS ? add(handle, graph, after, count, &work) : result;          \
    }

ADD_NODE(cuGraphAddHostNode, CUDA_HOST_NODE_PARAMS, host_work)
ADD_NODE(cuGraphAddBatchMemOpNode, CUDA_BATCH_MEM_OP_NODE_PARAMS, batch_work)
ADD_NODE(cuGraphAddExternalSemaphoresWaitNode, CUDA_EXT_SEM_WAIT_NODE_PARAMS, semaphores_wait_work)
ADD_NODE(cuGraphAddExternalSemaphoresSignalNode, CUDA_EXT_SEM_SIGNAL_NODE_PARAMS,
         semaphores_signal_work)

/* --- changing ----------------------------------------------------------------------------------*/

/* The node's new work must be of the type that it has. */
static CUresult replace(struct node *node, const struct work *work)
{
    if (node == NULL || node->work.type != work->type)
        return CUDA_ERROR_INVALID_VALUE;
    node->work = *work;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuGraphHostNodeSetParams, 0,
            (CUgraphNode handle, const CUDA_HOST_NODE_PARAMS *parameters), (handle, parameters))
{
    struct work work;
    CUresult result = host_work(parameters, &work);
    return result == CUDA_SUCCESS ? replace(handle_object(KIND_NODE, handle), &work) : result;
}

/* The node of an executable graph that was made from this one. */
static struct node *made_from(CUgraphExec handle, CUgraphNode origin)
{
    const struct graph *exec = handle_object(KIND_EXEC, handle);
    struct node *node = exec != NULL && origin != NULL ? exec->nodes : NULL;
    while (node != NULL && node->origin != origin)
        node = node->next;
    return node;
}

#define CHANGE_NODE(name, type, make_work)                                                         \
    DRIVER_CALL(name, 0, (CUgraphExec exec, CUgraphNode node, const type *parameters),             \
                (exec, node, parameters))                                                          \
    {                                                                                              \
        struct work work;                                                                          \
        CUresult result = make_work(parameters, &work);                                            \
        return result == CUDA_SUCCESS ? replace(made_from(exec, node), &work) : result;            \
    }

CHANGE_NODE(cuGraphExecHostNodeSetParams, CUDA_HOST_NODE_PARAMS, host_work)
CHANGE_NODE(cuGraphExecBatchMemOpNodeSetParams, CUDA_BATCH_MEM_OP_NODE_PARAMS, batch_work)

/* Has the second graph, node for node, the first one's types and order? */
static CUgraphExecUpdateResult compare(const struct graph *exec, const struct graph *other)
{
    const struct node *a = exec->nodes, *b = other->nodes;
    for (; a != NULL && b != NULL; a = a->next, b = b->next) {
        if (a->after_count != b->after_count)
            return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        if (a->work.type != b->work.type)
            return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    }
    return a == b ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
}

static bool is_memory_node(const struct node *node)
{
    return node->work.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
           node->work.type == CU_GRAPH_NODE_TYPE_MEM_FREE;
}

static CUgraphExecUpdateResult update(struct graph *exec, const struct graph *graph)
{
    struct graph *other = graph_new(true);
    CUgraphExecUpdateResult result;
    if (other == NULL || !graph_flatten(other, graph, NULL, 0))
        abort();
    result = compare(exec, other);
    if (result == CU_GRAPH_EXEC_UPDATE_SUCCESS) {
        for (struct node *to = exec->nodes, *from = other->nodes; to != NULL;
             to = to->next, from = from->next)
            if (!is_memory_node(to))
                to->work = from->work;
        user_references_swap(exec, other);
    }
    graph_free(other);
    return result;
}

DRIVER_CALL(cuGraphExecUpdate_v2, 0,
            (CUgraphExec handle, CUgraph graph_handle, CUgraphExecUpdateResultInfo *info),
            (handle, graph_handle, info))
{
    struct graph *exec = handle_object(KIND_EXEC, handle), *graph = graph_of(graph_handle);
    if (exec == NULL || graph == NULL || graph->is_moved || info == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *info = (CUgraphExecUpdateResultInfo){.result = update(exec, graph)};
    return info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS
                                                        : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

DRIVER_CALL(cuGraphExecUpdate, 0,
            (CUgraphExec handle, CUgraph graph_handle, CUgraphNode *error_node,
             CUgraphExecUpdateResult *outcome),
            (handle, graph_handle, error_node, outcome))
{
    struct graph *exec = handle_object(KIND_EXEC, handle), *graph = graph_of(graph_handle);
    if (exec == NULL || graph == NULL || graph->is_moved || outcome == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (error_node != NULL)
        *error_node = NULL;
    *outcome = update(exec, graph);
    return *outcome == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS
                                                    : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

static bool same_types(const struct graph *a, const struct graph *b)
{
    const struct node *one = a->nodes, *other = b->nodes;
    for (; one != NULL && other != NULL; one = one->next, other = other->next)
        if (one->work.type != other->work.type || one->after_count != other->after_count ||
            (one->child != NULL && !same_types(one->child, other->child)))
            return false;
    return one == other;
}

/* The part of the executable graph that was made from the old child graph becomes as the new one.
 */
static void take_over(CUgraphExec exec, unsigned int part, const struct graph *old,
                      const struct graph *new)
{
    const struct node *from = new->nodes;
    user_references_replace(handle_object(KIND_EXEC, exec), part, new);
    for (const struct node *node = old->nodes; node != NULL; node = node->next, from = from->next) {
        struct node *made = made_from(exec, node->handle);
        if (node->child != NULL && made != NULL)
            take_over(exec, made->part, node->child, from->child);
        else if (made != NULL && !is_memory_node(made))
            made->work = from->work;
    }
}

DRIVER_CALL(cuGraphExecChildGraphNodeSetParams, 0,
            (CUgraphExec exec, CUgraphNode handle, CUgraph child_handle),
            (exec, handle, child_handle))
{
    const struct node *node = handle_object(KIND_NODE, handle), *made = made_from(exec, handle);
    const struct graph *child = graph_of(child_handle);
    if (made == NULL || node == NULL || node->child == NULL || child == NULL ||
        !same_types(node->child, child))
        return CUDA_ERROR_INVALID_VALUE;
    take_over(exec, made->part, node->child, child);
    return CUDA_SUCCESS;
}

static bool can_be_disabled(const struct node *node)
{
    return node != NULL && (node->work.type == CU_GRAPH_NODE_TYPE_KERNEL ||
                            node->work.type == CU_GRAPH_NODE_TYPE_MEMCPY ||
                            node->work.type == CU_GRAPH_NODE_TYPE_MEMSET);
}

DRIVER_CALL(cuGraphNodeSetEnabled, 0, (CUgraphExec exec, CUgraphNode handle, unsigned int enabled),
            (exec, handle, enabled))
{
    struct node *node = made_from(exec, handle);
    if (!can_be_disabled(node))
        return CUDA_ERROR_INVALID_VALUE;
    node->disabled = enabled == 0;
    return CUDA_SUCCESS;
}

DRIVER_CALL(cuGraphNodeGetEnabled, 0, (CUgraphExec exec, CUgraphNode handle, unsigned int *enabled),
            (exec, handle, enabled))
{
    const struct node *node = made_from(exec, handle);
    if (!can_be_disabled(node) || enabled == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *enabled = !node->disabled;
    return CUDA_SUCCESS;
}
