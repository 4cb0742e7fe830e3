/*
 * Hooks of streams. Creating a stream may run out of memory, so the call is retried after the pool
 * has made room. The pool must also know when a stream is destroyed, and when a capture begins and
 * ends.
 */
#include "core/graph_memory/graph_objects.h"
#include "hooks.h"

HOOK(cuStreamCreate, (CUstream * stream, unsigned int flags))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuStreamCreate(stream, flags));
}

HOOK(cuStreamCreateWithPriority, (CUstream * stream, unsigned int flags, int priority))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuStreamCreateWithPriority(stream, flags, priority));
}

HOOK(cuGreenCtxStreamCreate,
     (CUstream * stream, CUgreenCtx green, unsigned int flags, int priority))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuGreenCtxStreamCreate(stream, green, flags, priority));
}

/* Destroying a capturing stream also ends its capture. */
static CUresult destroy_beside_captures(struct pool *pool, CUresult (*driver)(CUstream),
                                        CUstream stream)
{
    if (!pool_captures_under_way(pool))
        return driver(stream);
    pool_captures_lock(pool);
    CUresult result = driver(stream);
    if (result == CUDA_SUCCESS)
        pool_capture_stream_destroyed(pool, stream);
    pool_captures_unlock(pool);
    pool_graphs_may_be_gone(pool);
    return result;
}

static CUresult destroy(CUresult (*driver)(CUstream), CUstream stream)
{
    struct pool *pool = pool_to_tell();
    if (pool && pool_follows_streams(pool))
        pool_stream_ending(pool, stream);
    pool = the_pool();
    return pool ? destroy_beside_captures(pool, driver, stream) : driver(stream);
}

HOOK(cuStreamDestroy, (CUstream stream))
{
    return destroy(real_driver()->cuStreamDestroy, stream);
}

HOOK(cuStreamDestroy_v2, (CUstream stream))
{
    return destroy(real_driver()->cuStreamDestroy_v2, stream);
}

/* ---- captures ---- */

/* The captures lock is held across the driver's begin, so that no fence is recorded before the pool
 * knows of the capture. */
#define BEGIN_CAPTURE(call, stream, per_thread)                                                    \
    BEGIN_AND_TELL(call, stream, pool_capture_began(pool_, stream, per_thread))

#define BEGIN_AND_TELL(call, stream, tell)                                                         \
    ({                                                                                             \
        struct pool *pool_ = the_pool();                                                           \
        if (pool_) {                                                                               \
            pool_capture_about_to_begin(pool_, stream);                                            \
            pool_captures_lock(pool_);                                                             \
        }                                                                                          \
        CUresult result_ = (call);                                                                 \
        if (pool_ && result_ == CUDA_SUCCESS)                                                      \
            tell;                                                                                  \
        if (pool_) {                                                                               \
            pool_captures_unlock(pool_);                                                           \
            pool_capture_has_come(pool_);                                                          \
        }                                                                                          \
        result_;                                                                                   \
    })

static CUresult ended(CUresult result, CUstream stream, bool per_thread, const CUgraph *graph)
{
    struct pool *pool = the_pool();
    if (!pool || !pool_captures_under_way(pool))
        return result;
    pool_captures_lock(pool);
    pool_capture_perhaps_ended(pool, stream, per_thread,
                               result == CUDA_SUCCESS && graph ? *graph : NULL);
    pool_captures_unlock(pool);
    pool_graphs_may_be_gone(pool);
    return result;
}

HOOK(cuStreamBeginCapture, (CUstream stream))
{
    return BEGIN_CAPTURE(real_driver()->cuStreamBeginCapture(stream), stream, false);
}

HOOK(cuStreamBeginCapture_ptsz, (CUstream stream))
{
    return BEGIN_CAPTURE(real_driver()->cuStreamBeginCapture_ptsz(stream), stream, true);
}

HOOK(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode))
{
    return BEGIN_CAPTURE(real_driver()->cuStreamBeginCapture_v2(stream, mode), stream, false);
}

HOOK(cuStreamBeginCapture_v2_ptsz, (CUstream stream, CUstreamCaptureMode mode))
{
    return BEGIN_CAPTURE(real_driver()->cuStreamBeginCapture_v2_ptsz(stream, mode), stream, true);
}

/* Called after a capture has perhaps begun into a graph that the program already has. */
static CUresult shared(CUresult result, CUgraph graph)
{
    struct pool *pool = pool_to_tell();
    if (pool)
        graph_objects_share(pool, graph);
    return result;
}

HOOK(cuStreamBeginCaptureToGraph,
     (CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
      size_t count, CUstreamCaptureMode mode))
{
    return shared(BEGIN_CAPTURE(real_driver()->cuStreamBeginCaptureToGraph(
                                    stream, graph, dependencies, edges, count, mode),
                                stream, false),
                  graph);
}

HOOK(cuStreamBeginCaptureToGraph_ptsz,
     (CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
      size_t count, CUstreamCaptureMode mode))
{
    return shared(BEGIN_CAPTURE(real_driver()->cuStreamBeginCaptureToGraph_ptsz(
                                    stream, graph, dependencies, edges, count, mode),
                                stream, true),
                  graph);
}

HOOK(cuStreamBeginRecaptureToGraph,
     (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, void *callback, void *argument))
{
    return shared(BEGIN_AND_TELL(real_driver()->cuStreamBeginRecaptureToGraph(stream, mode, graph,
                                                                              callback, argument),
                                 stream, pool_capture_began_again(pool_, stream)),
                  graph);
}

HOOK(cuStreamEndCapture, (CUstream stream, CUgraph *graph))
{
    return ended(real_driver()->cuStreamEndCapture(stream, graph), stream, false, graph);
}

HOOK(cuStreamEndCapture_ptsz, (CUstream stream, CUgraph *graph))
{
    return ended(real_driver()->cuStreamEndCapture_ptsz(stream, graph), stream, true, graph);
}
