/*
 * Hooks of graphs and launches, which pass through to the driver. The driver loads code lazily,
 * even in the first launch, so each call is retried when memory is short. The pool learns whether
 * several threads launch, and which graphs hold work that ends only if the host acts.
 */
#include "core/graph_memory/graph_objects.h"
#include "hooks.h"
#include "hooks_host_work.h"

/* Does not start the pool: a pool that is not running needs to know of no launches. */
static struct pool *pool_that_runs(void)
{
    return atomic_load_explicit(&pool_to_use, memory_order_acquire);
}

static void note_launch(CUstream stream)
{
    struct pool *pool = pool_that_runs();
    if (pool)
        pool_note_launch(pool, stream);
}

static void graph_launch_begins(CUgraphExec executable, CUstream stream)
{
    struct pool *pool = pool_that_runs();
    note_launch(stream);
    if (pool)
        pool_graph_launch_begins(pool, executable);
}

/* ---- executables ---- */

static struct graph_making making_begins(CUgraph graph)
{
    struct pool *pool = pool_that_runs();
    return pool ? graph_making_begin(pool, graph) : (struct graph_making){0};
}

/* executable: NULL where the call has failed. */
static void making_ends(const struct graph_making *making, CUgraphExec executable)
{
    struct pool *pool = pool_that_runs();
    if (!pool)
        return;
    graph_making_end(pool, making, executable);
    pool_graphs_may_be_gone(pool);
}

static CUresult instantiated(CUresult result, const struct graph_making *making,
                             const CUgraphExec *executable, CUgraph graph)
{
    struct pool *pool = result == CUDA_SUCCESS ? the_pool() : NULL;
    if (pool)
        host_graphs_add(pool, *executable, graph);
    making_ends(making, result == CUDA_SUCCESS ? *executable : NULL);
    return result;
}

/* Wraps the driver call that makes an executable. */
#define INSTANTIATE(call, executable, graph)                                                       \
    ({                                                                                             \
        const struct real_driver *real = real_driver();                                            \
        struct graph_making making_ = making_begins(graph);                                        \
        instantiated(WITH_ROOM(real->call), &making_, executable, graph);                          \
    })

HOOK(cuGraphInstantiate,
     (CUgraphExec * executable, CUgraph graph, CUgraphNode *node, char *log, size_t log_bytes))
{
    return INSTANTIATE(cuGraphInstantiate(executable, graph, node, log, log_bytes), executable,
                       graph);
}

HOOK(cuGraphInstantiate_v2,
     (CUgraphExec * executable, CUgraph graph, CUgraphNode *node, char *log, size_t log_bytes))
{
    return INSTANTIATE(cuGraphInstantiate_v2(executable, graph, node, log, log_bytes), executable,
                       graph);
}

HOOK(cuGraphInstantiateWithFlags,
     (CUgraphExec * executable, CUgraph graph, unsigned long long flags))
{
    return INSTANTIATE(cuGraphInstantiateWithFlags(executable, graph, flags), executable, graph);
}

HOOK(cuGraphInstantiateWithParams,
     (CUgraphExec * executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters))
{
    return INSTANTIATE(cuGraphInstantiateWithParams(executable, graph, parameters), executable,
                       graph);
}

HOOK(cuGraphInstantiateWithParams_ptsz,
     (CUgraphExec * executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters))
{
    return INSTANTIATE(cuGraphInstantiateWithParams_ptsz(executable, graph, parameters), executable,
                       graph);
}

/* Wraps an update. The new graph has the same nodes as the old one, so it holds host work if the
 * old one did. */
#define UPDATE(call, executable, graph)                                                            \
    ({                                                                                             \
        const struct real_driver *real = real_driver();                                            \
        struct graph_making making_ = making_begins(graph);                                        \
        CUresult updated_ = WITH_ROOM(real->call);                                                 \
        making_ends(&making_, updated_ == CUDA_SUCCESS ? (executable) : NULL);                     \
        updated_;                                                                                  \
    })

HOOK(cuGraphExecUpdate, (CUgraphExec executable, CUgraph graph, CUgraphNode *error_node,
                         CUgraphExecUpdateResult *outcome))
{
    return UPDATE(cuGraphExecUpdate(executable, graph, error_node, outcome), executable, graph);
}

HOOK(cuGraphExecUpdate_v2,
     (CUgraphExec executable, CUgraph graph, CUgraphExecUpdateResultInfo *outcome))
{
    return UPDATE(cuGraphExecUpdate_v2(executable, graph, outcome), executable, graph);
}

/* ---- ends ---- */

static void ended(const struct graph_ending *ending, CUresult result)
{
    struct pool *pool = pool_that_runs();
    if (!pool)
        return;
    graph_ending_end(pool, ending, result == CUDA_SUCCESS);
    pool_graphs_may_be_gone(pool);
}

HOOK(cuGraphExecDestroy, (CUgraphExec executable))
{
    struct pool *pool = pool_that_runs();
    struct graph_ending ending = {0};
    bool held_host_work = false;
    if (pool) {
        held_host_work = host_graphs_remove(pool, executable);
        ending = graph_executable_ending_begin(pool, executable);
    }
    CUresult result = real_driver()->cuGraphExecDestroy(executable);
    if (held_host_work && result != CUDA_SUCCESS)
        host_graphs_put_back(pool, executable);
    ended(&ending, result);
    return result;
}

HOOK(cuGraphDestroy, (CUgraph graph))
{
    struct pool *pool = pool_that_runs();
    struct graph_ending ending = {0};
    if (pool)
        ending = graph_ending_begin(pool, graph);
    CUresult result = real_driver()->cuGraphDestroy(graph);
    ended(&ending, result);
    return result;
}

HOOK(cuDeviceGraphMemTrim, (CUdevice device))
{
    CUresult result = real_driver()->cuDeviceGraphMemTrim(device);
    struct pool *pool = pool_that_runs();
    if (pool)
        pool_graphs_may_be_gone(pool);
    return result;
}

/* ---- launches ---- */

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
    graph_launch_begins(executable, stream);
    const struct real_driver *real = real_driver();
    if (host_has_a_part_in(executable))
        return counted(HOST_WORK(WITH_ROOM(real->cuGraphLaunch(executable, stream)), stream),
                       false);
    return counted(WITH_ROOM(real->cuGraphLaunch(executable, stream)), false);
}

HOOK(cuGraphLaunch_ptsz, (CUgraphExec executable, CUstream stream))
{
    graph_launch_begins(executable, per_thread(stream));
    const struct real_driver *real = real_driver();
    if (host_has_a_part_in(executable))
        return counted(HOST_WORK(WITH_ROOM(real->cuGraphLaunch_ptsz(executable, stream)), stream),
                       false);
    return counted(WITH_ROOM(real->cuGraphLaunch_ptsz(executable, stream)), false);
}

/* Grid, block and shared memory of a launch, which are passed on unchanged. */
#define SHAPE_PARAMETERS                                                                           \
    unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,           \
        unsigned int block_y, unsigned int block_z, unsigned int shared_bytes
#define SHAPE grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes

HOOK(cuLaunchKernel,
     (CUfunction function, SHAPE_PARAMETERS, CUstream stream, void **parameters, void **extra))
{
    note_launch(stream);
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLaunchKernel(function, SHAPE, stream, parameters, extra));
}

HOOK(cuLaunchKernel_ptsz,
     (CUfunction function, SHAPE_PARAMETERS, CUstream stream, void **parameters, void **extra))
{
    note_launch(per_thread(stream));
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLaunchKernel_ptsz(function, SHAPE, stream, parameters, extra));
}

/* Whether the launch may begin before the previous launch on its stream has completed. */
static bool starts_early(const CUlaunchConfig *config)
{
    for (unsigned int i = 0; config && config->attrs && i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
            config->attrs[i].value.programmaticStreamSerializationAllowed)
            return true;
    return false;
}

/* Called before the launch, so that every later free on the stream takes the early launch into
 * account. */
static void note_early_launch(const CUlaunchConfig *config, CUstream stream)
{
    struct pool *pool = starts_early(config) ? pool_that_runs() : NULL;
    if (pool)
        pool_early_launch(pool, stream);
}

HOOK(cuLaunchKernelEx,
     (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra))
{
    if (config) {
        note_launch(config->hStream);
        note_early_launch(config, config->hStream);
    }
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLaunchKernelEx(config, function, parameters, extra));
}

HOOK(cuLaunchKernelEx_ptsz,
     (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra))
{
    if (config) {
        note_launch(per_thread(config->hStream));
        note_early_launch(config, per_thread(config->hStream));
    }
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLaunchKernelEx_ptsz(config, function, parameters, extra));
}

HOOK(cuLaunchCooperativeKernel,
     (CUfunction function, SHAPE_PARAMETERS, CUstream stream, void **parameters))
{
    note_launch(stream);
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLaunchCooperativeKernel(function, SHAPE, stream, parameters));
}

HOOK(cuLaunchCooperativeKernel_ptsz,
     (CUfunction function, SHAPE_PARAMETERS, CUstream stream, void **parameters))
{
    note_launch(per_thread(stream));
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLaunchCooperativeKernel_ptsz(function, SHAPE, stream, parameters));
}

HOOK(cuLaunchCooperativeKernelMultiDevice,
     (CUDA_LAUNCH_PARAMS * launches, unsigned int count, unsigned int flags))
{
    note_launch(CU_STREAM_LEGACY);
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLaunchCooperativeKernelMultiDevice(launches, count, flags));
}

HOOK(cuLaunch, (CUfunction function))
{
    note_launch(CU_STREAM_LEGACY);
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLaunch(function));
}

HOOK(cuLaunchGrid, (CUfunction function, int width, int height))
{
    note_launch(CU_STREAM_LEGACY);
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLaunchGrid(function, width, height));
}

HOOK(cuLaunchGridAsync, (CUfunction function, int width, int height, CUstream stream))
{
    note_launch(stream);
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuLaunchGridAsync(function, width, height, stream));
}

/* ---- child graphs ---- */

/* The beginning of the parameters of a node that holds a child graph. */
struct child_graph_parameters {
    CUgraphNodeType type;
    int reserved[3];
    CUgraph graph;
};

/* The child graph may itself become part of the new graph, and end with it. The type is the first
 * field in the parameters of every kind of node. */
static void note_new_node(const CUgraphNodeParams *parameters)
{
    const struct child_graph_parameters *child = (const void *)parameters;
    struct pool *pool = pool_to_tell();
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
