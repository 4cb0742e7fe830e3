/*
 * Hooks of streams and events, as the program orders its work with them. The calls pass through,
 * and the pool learns which work has completed and which work comes after which. While no
 * stream-ordered memory is in use, the pool follows no stream and no event.
 */
#include "core/driver/calls.h"
#include "core/graph_memory/graph_objects.h"
#include "hooks.h"

/* The pool, if stream-ordered memory is in use. Does not start the pool: a pool that is not running
 * has handed nothing out. */
static struct pool *pool_that_follows(void)
{
    struct pool *pool = atomic_load_explicit(&pool_to_use, memory_order_acquire);
    bool follows = pool && !is_inside_driver() && pool_follows_streams(pool);
    return __builtin_expect(follows, 0) ? pool : NULL;
}

/* Notes that the stream has work. The pool does not see copies and the like. But the program waits
 * for them sooner or later, or records an event after them. */
static void note_use(CUstream stream)
{
    struct pool *pool = pool_to_tell();
    if (pool)
        pool_note_stream(pool, stream);
}

/* ---- waits and queries ---- */

#define WAIT_FOR_STREAM(call, stream)                                                              \
    ({                                                                                             \
        struct pool *pool_ = pool_that_follows();                                                  \
        struct order_mark mark_;                                                                   \
        if (pool_)                                                                                 \
            pool_stream_wait_begin(pool_, stream, &mark_);                                         \
        CUresult result_ = (call);                                                                 \
        if (pool_)                                                                                 \
            pool_stream_wait_end(pool_, &mark_, result_);                                          \
        result_;                                                                                   \
    })

/* A wait for one stream says nothing about the other streams of its context. */
HOOK(cuStreamSynchronize, (CUstream stream))
{
    note_use(stream);
    const struct real_driver *real = real_driver();
    return WAIT_FOR_STREAM(real->cuStreamSynchronize(stream), stream);
}

HOOK(cuStreamSynchronize_ptsz, (CUstream stream))
{
    note_use(per_thread(stream));
    const struct real_driver *real = real_driver();
    return WAIT_FOR_STREAM(real->cuStreamSynchronize_ptsz(stream), per_thread(stream));
}

HOOK(cuStreamQuery, (CUstream stream))
{
    const struct real_driver *real = real_driver();
    return WAIT_FOR_STREAM(real->cuStreamQuery(stream), stream);
}

HOOK(cuStreamQuery_ptsz, (CUstream stream))
{
    const struct real_driver *real = real_driver();
    return WAIT_FOR_STREAM(real->cuStreamQuery_ptsz(stream), per_thread(stream));
}

static CUresult wait_for_event(CUresult (*driver)(CUevent), CUevent event)
{
    struct pool *pool = pool_that_follows();
    struct event_look look;
    if (!pool)
        return driver(event);
    pool_event_wait_begin(pool, event, &look);
    CUresult result = driver(event);
    pool_event_wait_end(pool, event, &look, result);
    return result;
}

HOOK(cuEventQuery, (CUevent event))
{
    return wait_for_event(real_driver()->cuEventQuery, event);
}

HOOK(cuEventSynchronize, (CUevent event))
{
    return wait_for_event(real_driver()->cuEventSynchronize, event);
}

typedef CUresult wait_event(CUstream, CUevent, unsigned int);

/* named: the stream as the functions without _ptsz name it. */
static CUresult queue_wait(wait_event *driver, CUstream stream, CUstream named, CUevent event,
                           unsigned int flags)
{
    struct pool *pool = pool_that_follows();
    struct event_look look;
    note_use(named);
    if (!pool)
        return driver(stream, event, flags);
    pool_event_wait_begin(pool, event, &look);
    CUresult result = driver(stream, event, flags);
    pool_event_wait_queued(pool, event, &look, named, result);
    return result;
}

HOOK(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags))
{
    return queue_wait(real_driver()->cuStreamWaitEvent, stream, stream, event, flags);
}

HOOK(cuStreamWaitEvent_ptsz, (CUstream stream, CUevent event, unsigned int flags))
{
    return queue_wait(real_driver()->cuStreamWaitEvent_ptsz, stream, per_thread(stream), event,
                      flags);
}

/* ---- recording ---- */

/* The pool, if it is to follow a record of the event. A thread that the driver has called back from
 * a call of the pool's records without the pool. The pool must still know that the event stands for
 * something else now. */
static struct pool *pool_that_follows_record(CUevent event)
{
    struct pool *pool = pool_to_tell();
    if (__builtin_expect(!pool || !pool_follows_streams(pool), 1))
        return NULL;
    if (!is_inside_driver())
        return pool_that_follows();
    pool_event_lost(pool, event);
    return NULL;
}

/* named: the stream, or NULL where the pool cannot follow the record. */
#define RECORD(call, event, named)                                                                 \
    ({                                                                                             \
        struct pool *pool_ = pool_that_follows_record(event);                                      \
        struct recording recording_;                                                               \
        if (pool_)                                                                                 \
            pool_record_begin(pool_, event, named, &recording_);                                   \
        CUresult result_ = (call);                                                                 \
        if (pool_)                                                                                 \
            pool_record_end(pool_, event, &recording_, result_);                                   \
        result_;                                                                                   \
    })

HOOK(cuEventRecord, (CUevent event, CUstream stream))
{
    const struct real_driver *real = real_driver();
    note_use(stream);
    return RECORD(real->cuEventRecord(event, stream), event, &stream);
}

HOOK(cuEventRecord_ptsz, (CUevent event, CUstream stream))
{
    const struct real_driver *real = real_driver();
    CUstream named = per_thread(stream);
    note_use(named);
    return RECORD(real->cuEventRecord_ptsz(event, stream), event, &named);
}

/* Called when a graph or another process will record an event. */
static void lose_events(void)
{
    struct pool *pool = pool_to_tell();
    if (pool)
        pool_events_are_lost(pool);
}

/* With this flag, a captured record is a node, which each launch of the graph carries out. */
static void note_flags(unsigned int flags)
{
    if (flags & CU_EVENT_RECORD_EXTERNAL)
        lose_events();
}

HOOK(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned int flags))
{
    const struct real_driver *real = real_driver();
    note_flags(flags);
    note_use(stream);
    return RECORD(real->cuEventRecordWithFlags(event, stream, flags), event, &stream);
}

HOOK(cuEventRecordWithFlags_ptsz, (CUevent event, CUstream stream, unsigned int flags))
{
    const struct real_driver *real = real_driver();
    CUstream named = per_thread(stream);
    note_flags(flags);
    note_use(named);
    return RECORD(real->cuEventRecordWithFlags_ptsz(event, stream, flags), event, &named);
}

HOOK(cuCtxRecordEvent, (CUcontext context, CUevent event))
{
    const struct real_driver *real = real_driver();
    return RECORD(real->cuCtxRecordEvent(context, event), event, NULL);
}

HOOK(cuGreenCtxRecordEvent, (CUgreenCtx green, CUevent event))
{
    const struct real_driver *real = real_driver();
    return RECORD(real->cuGreenCtxRecordEvent(green, event), event, NULL);
}

static CUresult destroy(CUresult (*driver)(CUevent), CUevent event)
{
    struct pool *pool = pool_to_tell();
    /* Called before the driver, because afterwards another event may have the handle. */
    if (pool && pool_follows_streams(pool))
        pool_event_destroyed(pool, event);
    return driver(event);
}

HOOK(cuEventDestroy, (CUevent event))
{
    return destroy(real_driver()->cuEventDestroy, event);
}

HOOK(cuEventDestroy_v2, (CUevent event))
{
    return destroy(real_driver()->cuEventDestroy_v2, event);
}

/* ---- events that others record ---- */

HOOK(cuIpcGetEventHandle, (CUipcEventHandle * handle, CUevent event))
{
    lose_events();
    return real_driver()->cuIpcGetEventHandle(handle, event);
}

HOOK(cuIpcOpenEventHandle, (CUevent * event, CUipcEventHandle handle))
{
    lose_events();
    return real_driver()->cuIpcOpenEventHandle(event, handle);
}

HOOK(cuGraphAddEventRecordNode, (CUgraphNode * node, CUgraph graph, const CUgraphNode *dependencies,
                                 size_t count, CUevent event))
{
    lose_events();
    return real_driver()->cuGraphAddEventRecordNode(node, graph, dependencies, count, event);
}

HOOK(cuGraphEventRecordNodeSetEvent, (CUgraphNode node, CUevent event))
{
    lose_events();
    return real_driver()->cuGraphEventRecordNodeSetEvent(node, event);
}

HOOK(cuGraphExecEventRecordNodeSetEvent, (CUgraphExec executable, CUgraphNode node, CUevent event))
{
    lose_events();
    return real_driver()->cuGraphExecEventRecordNodeSetEvent(executable, node, event);
}

/* The type is the first field in the parameters of every kind of node. */
static void note_node(const CUgraphNodeParams *parameters)
{
    const CUgraphNodeType *type = (const void *)parameters;
    if (type && *type == CU_GRAPH_NODE_TYPE_EVENT_RECORD)
        lose_events();
}

/* The beginning of the parameters of a node that holds a child graph. */
struct child_graph_parameters {
    CUgraphNodeType type;
    int reserved[3];
    CUgraph graph;
};

/* The child graph may itself become part of the new graph, and end with it. */
static void note_new_node(const CUgraphNodeParams *parameters)
{
    const struct child_graph_parameters *child = (const void *)parameters;
    struct pool *pool = pool_to_tell();
    note_node(parameters);
    if (pool && child && child->type == CU_GRAPH_NODE_TYPE_GRAPH)
        graph_objects_share(pool, child->graph);
}

HOOK(cuGraphAddNode, (CUgraphNode * node, CUgraph graph, const CUgraphNode *dependencies,
                      size_t count, CUgraphNodeParams *parameters))
{
    note_new_node(parameters);
    return real_driver()->cuGraphAddNode(node, graph, dependencies, count, parameters);
}

HOOK(cuGraphAddNode_v2, (CUgraphNode * node, CUgraph graph, const CUgraphNode *dependencies,
                         const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *parameters))
{
    note_new_node(parameters);
    return real_driver()->cuGraphAddNode_v2(node, graph, dependencies, edges, count, parameters);
}

HOOK(cuGraphNodeSetParams, (CUgraphNode node, CUgraphNodeParams *parameters))
{
    note_node(parameters);
    return real_driver()->cuGraphNodeSetParams(node, parameters);
}

HOOK(cuGraphExecNodeSetParams,
     (CUgraphExec executable, CUgraphNode node, CUgraphNodeParams *parameters))
{
    note_node(parameters);
    return real_driver()->cuGraphExecNodeSetParams(executable, node, parameters);
}
