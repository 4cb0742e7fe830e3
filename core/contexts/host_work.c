#include "host_work.h"

#include <search.h>
#include <stdlib.h>

#include "context.h"
#include "core/base/clock.h"
#include "core/driver/calls.h"
#include "pool_state.h"
#include "registry.h"

/* ---- submitting ---- */

/* The context of the stream's work. A stream that belongs to the calling thread or its context
 * means the current context. So does a stream whose context the driver does not report. */
static struct context *context_of_stream(struct pool *pool, CUstream stream)
{
    CUcontext handle = NULL;
    bool green;
    if (!stream_is_created(stream) || !pool->driver->cuStreamGetCtx ||
        pool->driver->cuStreamGetCtx(stream, &handle) != CUDA_SUCCESS || !handle)
        return context_current(pool, &green);
    if (thread_state.handle == handle &&
        thread_state.generation == registry_generation(&pool->registry))
        return thread_state.context;
    struct context *context = context_named(pool, handle);
    return context ? context : context_current(pool, &green);
}

/* The newest epoch whose fence has been recorded. No fence up to it can wait for what is submitted
 * from now on. */
static uint64_t newest_recorded(const struct epochs *epochs)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    return epochs->newest ? epochs->newest->epoch : epoch_clean(epochs);
}

/* Waits for driver calls that wait for all work with the driver's lock held. Such a call might come
 * to wait for the work submitted here, while its thread holds a lock that this work needs. Then
 * neither would end. Releases and retakes the lock. */
static void await_frees(struct context *context)
{
    lock_must_be_held(&context->lock);
    uint64_t started = monotonic_now();
    while (context->epochs.host_work.freeing) {
        context_unlock(context);
        patient_nap(started);
        context_lock(context);
    }
}

struct host_submission host_work_begin(struct pool *pool, CUstream stream)
{
    no_lock_may_be_held();
    struct host_submission submission = {.context = context_of_stream(pool, stream)};
    struct context *context = submission.context;
    if (!context)
        return submission;
    context_lock(context);
    await_frees(context);
    struct host_work *work = &context->epochs.host_work;
    submission.generation = context_generation(context);
    submission.before = newest_recorded(&context->epochs);
    host_work_submitting(work, submission.before);
    TELL_KINDS(context, host_work_changed, context);
    context_unlock(context);
    return submission;
}

void host_work_end(const struct host_submission *submission)
{
    no_lock_may_be_held();
    struct context *context = submission->context;
    if (!context)
        return;
    context_lock(context);
    struct host_work *work = &context->epochs.host_work;
    host_work_submitted(work);
    if (context_generation(context) == submission->generation)
        host_work_mark(work, submission->before, epoch_current(&context->epochs), true);
    TELL_KINDS(context, host_work_changed, context);
    context_unlock(context);
}

/* ---- graphs ---- */

static bool holds_host_work(struct pool *pool, CUgraph graph);

/* Node types that are not known here count, since they may be anything. Also notes nodes that
 * allocate. */
static bool is_host_work(struct pool *pool, CUgraphNode node)
{
    const struct driver *driver = pool->driver;
    CUgraphNodeType type;
    CUgraph child;
    if (driver->cuGraphNodeGetType(node, &type) != CUDA_SUCCESS)
        return true;
    switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
    case CU_GRAPH_NODE_TYPE_MEMCPY:
    case CU_GRAPH_NODE_TYPE_MEMSET:
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return false;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        atomic_store_explicit(&pool->graphs_allocate, true, memory_order_relaxed);
        return false;
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return driver->cuGraphChildGraphNodeGetGraph(node, &child) != CUDA_SUCCESS ||
               holds_host_work(pool, child);
    default:
        return true;
    }
}

static bool holds_host_work(struct pool *pool, CUgraph graph)
{
    const struct driver *driver = pool->driver;
    size_t count = 0;
    if (!driver->cuGraphGetNodes || !driver->cuGraphNodeGetType ||
        !driver->cuGraphChildGraphNodeGetGraph ||
        driver->cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS)
        return true;
    CUgraphNode *nodes = calloc(count + 1, sizeof *nodes);
    bool known = nodes && driver->cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS;
    bool holds = !known;
    for (size_t i = 0; known && i < count; i++)
        holds |= is_host_work(pool, nodes[i]);
    free(nodes);
    return holds;
}

static int compare(const void *a, const void *b)
{
    uintptr_t first = (uintptr_t)a, second = (uintptr_t)b;
    return (first > second) - (first < second);
}

/* Relaxed, here and below: see struct host_graphs. */
static size_t count_of(const struct host_graphs *graphs)
{
    return atomic_load_explicit(&graphs->count, memory_order_relaxed);
}

void host_graphs_put_back(struct pool *pool, CUgraphExec executable)
{
    no_lock_may_be_held();
    struct host_graphs *graphs = &pool->host_graphs;
    lock_take(&graphs->lock, LOCK_HOST_GRAPHS);
    graphs->every = graphs->every || !tsearch(executable, &graphs->executables, compare);
    atomic_store_explicit(&graphs->count, count_of(graphs) + 1, memory_order_relaxed);
    lock_give(&graphs->lock);
}

void host_graphs_add(struct pool *pool, CUgraphExec executable, CUgraph graph)
{
    no_lock_may_be_held();
    enter_driver();
    bool holds = holds_host_work(pool, graph);
    leave_driver();
    /* The handle may have been that of an executable that was destroyed where the pool did not see
     * it. */
    host_graphs_remove(pool, executable);
    if (holds)
        host_graphs_put_back(pool, executable);
}

bool host_graphs_remove(struct pool *pool, CUgraphExec executable)
{
    no_lock_may_be_held();
    struct host_graphs *graphs = &pool->host_graphs;
    if (count_of(graphs) == 0)
        return false;
    lock_take(&graphs->lock, LOCK_HOST_GRAPHS);
    bool was_there = tdelete(executable, &graphs->executables, compare) != NULL;
    if (was_there)
        atomic_store_explicit(&graphs->count, count_of(graphs) - 1, memory_order_relaxed);
    lock_give(&graphs->lock);
    return was_there;
}

bool host_graphs_has(struct pool *pool, CUgraphExec executable)
{
    no_lock_may_be_held();
    struct host_graphs *graphs = &pool->host_graphs;
    if (count_of(graphs) == 0)
        return false;
    lock_take(&graphs->lock, LOCK_HOST_GRAPHS);
    bool has = graphs->every || tfind(executable, &graphs->executables, compare);
    lock_give(&graphs->lock);
    return has;
}
