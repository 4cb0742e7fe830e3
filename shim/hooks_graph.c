/*
 * Graphs and launches: they pass through. Code is loaded lazily, by the first launch too, so all of
 * them may run out of memory; and the pool wants to know whether several threads launch, and which
 * graphs hold work that the host ends.
 */
#include "hooks.h"
#include "hooks_host_work.h"

/* A pool that nothing has started yet needs no launches. */
static struct pool *pool_that_runs(void)
{
    return atomic_load_explicit(&pool_to_use, memory_order_acquire);
}

static void note_launch(void)
{
    struct pool *pool = pool_that_runs();
    if (pool)
        pool_note_launch(pool);
}

/* After the driver has made an executable of the graph. */
static CUresult instantiated(CUresult result, const CUgraphExec *executable, CUgraph graph)
{
    struct pool *pool = result == CUDA_SUCCESS ? the_pool() : NULL;
    if (pool)
        host_graphs_add(pool, *executable, graph);
    return result;
}

HOOK(cuGraphExecDestroy, (CUgraphExec executable))
{
    struct pool *pool = pool_that_runs();
    if (pool)
        host_graphs_remove(pool, executable);
    CUresult result = real_driver()->cuGraphExecDestroy(executable);
    if (pool)
        pool_graphs_may_be_gone(pool);
    return result;
}

HOOK(cuGraphDestroy, (CUgraph graph))
{
    CUresult result = real_driver()->cuGraphDestroy(graph);
    struct pool *pool = pool_that_runs();
    if (pool)
        pool_graphs_may_be_gone(pool);
    return result;
}

HOOK(cuGraphInstantiate,
     (CUgraphExec * executable, CUgraph graph, CUgraphNode *node, char *log, size_t log_bytes))
{
    const struct real_driver *real = real_driver();
    return instantiated(
        WITH_ROOM(real->cuGraphInstantiate(executable, graph, node, log, log_bytes)), executable,
        graph);
}

HOOK(cuGraphInstantiate_v2,
     (CUgraphExec * executable, CUgraph graph, CUgraphNode *node, char *log, size_t log_bytes))
{
    const struct real_driver *real = real_driver();
    return instantiated(
        WITH_ROOM(real->cuGraphInstantiate_v2(executable, graph, node, log, log_bytes)), executable,
        graph);
}

HOOK(cuGraphInstantiateWithFlags,
     (CUgraphExec * executable, CUgraph graph, unsigned long long flags))
{
    const struct real_driver *real = real_driver();
    return instantiated(WITH_ROOM(real->cuGraphInstantiateWithFlags(executable, graph, flags)),
                        executable, graph);
}

HOOK(cuGraphInstantiateWithParams,
     (CUgraphExec * executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters))
{
    const struct real_driver *real = real_driver();
    return instantiated(
        WITH_ROOM(real->cuGraphInstantiateWithParams(executable, graph, parameters)), executable,
        graph);
}

HOOK(cuGraphInstantiateWithParams_ptsz,
     (CUgraphExec * executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters))
{
    const struct real_driver *real = real_driver();
    return instantiated(
        WITH_ROOM(real->cuGraphInstantiateWithParams_ptsz(executable, graph, parameters)),
        executable, graph);
}

static CUresult counted(CUresult result, bool upload)
{
    struct pool *pool = result == CUDA_SUCCESS ? pool_that_runs() : NULL;
    if (pool)
        pool_note_graph_launch(pool, upload);
    return result;
}

HOOK(cuGraphUpload, (CUgraphExec executable, CUstream stream))
{
    const struct real_driver *real = real_driver();
    return counted(WITH_ROOM(real->cuGraphUpload(executable, stream)), true);
}

HOOK(cuGraphUpload_ptsz, (CUgraphExec executable, CUstream stream))
{
    const struct real_driver *real = real_driver();
    return counted(WITH_ROOM(real->cuGraphUpload_ptsz(executable, stream)), true);
}

static bool host_has_a_part_in(CUgraphExec executable)
{
    struct pool *pool = pool_that_runs();
    return pool && host_graphs_has(pool, executable);
}

HOOK(cuGraphLaunch, (CUgraphExec executable, CUstream stream))
{
    note_launch();
    const struct real_driver *real = real_driver();
    if (host_has_a_part_in(executable))
        return counted(HOST_WORK(WITH_ROOM(real->cuGraphLaunch(executable, stream)), stream),
                       false);
    return counted(WITH_ROOM(real->cuGraphLaunch(executable, stream)), false);
}

HOOK(cuGraphLaunch_ptsz, (CUgraphExec executable, CUstream stream))
{
    note_launch();
    const struct real_driver *real = real_driver();
    if (host_has_a_part_in(executable))
        return counted(HOST_WORK(WITH_ROOM(real->cuGraphLaunch_ptsz(executable, stream)), stream),
                       false);
    return counted(WITH_ROOM(real->cuGraphLaunch_ptsz(executable, stream)), false);
}

/* Grid, block and shared memory of a launch, which are handed on as they come. */
#define SHAPE_PARAMETERS                                                                           \
    unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,           \
        unsigned int block_y, unsigned int block_z, unsigned int shared_bytes
#define SHAPE grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes

HOOK(cuLaunchKernel,
     (CUfunction function, SHAPE_PARAMETERS, CUstream stream, void **parameters, void **extra))
{
    note_launch();
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLaunchKernel(function, SHAPE, stream, parameters, extra));
}

HOOK(cuLaunchKernel_ptsz,
     (CUfunction function, SHAPE_PARAMETERS, CUstream stream, void **parameters, void **extra))
{
    note_launch();
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLaunchKernel_ptsz(function, SHAPE, stream, parameters, extra));
}

/* Whether the launch may begin before the one before it in its stream has ended. */
static bool starts_early(const CUlaunchConfig *config)
{
    for (unsigned int i = 0; config && config->attrs && i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
            config->attrs[i].value.programmaticStreamSerializationAllowed)
            return true;
    return false;
}

/* A launch that records an event, when its blocks have begun or say so: what the event stood for
 * before is over with, and what it stands for now is not followed. */
static void note_event(const CUlaunchAttribute *attribute)
{
    struct pool *pool = NULL;
    if (attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT ||
        attribute->id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT)
        pool = pool_that_runs();
    if (!pool || !pool_follows_streams(pool))
        return;
    if (attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT)
        pool_event_lost(pool, attribute->value.programmaticEvent.event);
    else
        pool_event_lost(pool, attribute->value.launchCompletionEvent.event);
}

static void note_events(const CUlaunchConfig *config)
{
    for (unsigned int i = 0; config->attrs && i < config->numAttrs; i++)
        note_event(&config->attrs[i]);
}

/* Before the launch: what is freed from then on is known to be in its way. */
static void note_early_launch(const CUlaunchConfig *config, CUstream stream)
{
    struct pool *pool = starts_early(config) ? pool_that_runs() : NULL;
    if (pool)
        pool_early_launch(pool, stream);
}

HOOK(cuLaunchKernelEx,
     (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra))
{
    note_launch();
    if (config) {
        note_events(config);
        note_early_launch(config, config->hStream);
    }
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLaunchKernelEx(config, function, parameters, extra));
}

HOOK(cuLaunchKernelEx_ptsz,
     (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra))
{
    note_launch();
    if (config) {
        note_events(config);
        note_early_launch(config, config->hStream ? config->hStream : CU_STREAM_PER_THREAD);
    }
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLaunchKernelEx_ptsz(config, function, parameters, extra));
}

HOOK(cuLaunchCooperativeKernel,
     (CUfunction function, SHAPE_PARAMETERS, CUstream stream, void **parameters))
{
    note_launch();
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLaunchCooperativeKernel(function, SHAPE, stream, parameters));
}

HOOK(cuLaunchCooperativeKernel_ptsz,
     (CUfunction function, SHAPE_PARAMETERS, CUstream stream, void **parameters))
{
    note_launch();
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLaunchCooperativeKernel_ptsz(function, SHAPE, stream, parameters));
}

HOOK(cuLaunchCooperativeKernelMultiDevice,
     (CUDA_LAUNCH_PARAMS * launches, unsigned int count, unsigned int flags))
{
    note_launch();
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLaunchCooperativeKernelMultiDevice(launches, count, flags));
}

HOOK(cuLaunch, (CUfunction function))
{
    note_launch();
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLaunch(function));
}

HOOK(cuLaunchGrid, (CUfunction function, int width, int height))
{
    note_launch();
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLaunchGrid(function, width, height));
}

HOOK(cuLaunchGridAsync, (CUfunction function, int width, int height, CUstream stream))
{
    note_launch();
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLaunchGridAsync(function, width, height, stream));
}
