/*
 * An example: two graphs that never run at the same time, and share the memory that they use on the
 * way. It is the one of docs/graph_pools.md, which shows the part between the lines of dashes.
 *
 * graph_pools example    with the pool, and captures.memory_nodes "pool"
 * graph_pools without    the same where that is off, or there is no pool
 * graph_pools answers    what the functions answer to what they cannot do
 */
#include <dlfcn.h>
#include <stdio.h>

#include "pool.h"

#define WORDS 65536u
#define BYTES (WORDS * 4u)

static struct kernels kernels;
static CUdeviceptr wrong;
static CUstream stream;

static void open_device(void)
{
    open_primary();
    load_kernels(&kernels);
    wrong = new_counter();
    stream = new_stream();
}

/* A step of a program: it takes memory for the time of a few kernels. */
static CUdeviceptr step(unsigned int value)
{
    CUdeviceptr scratch;
    CU(cuMemAllocAsync(&scratch, BYTES, stream));
    fill(&kernels, stream, scratch, WORDS, value);
    verify(&kernels, stream, scratch, WORDS, value, wrong);
    CU(cuMemFreeAsync(scratch, stream));
    return scratch;
}

/* -------------------------------------------------------------------------------------------------
 */

/* Looked up, so that the program runs without the pool, too: then there are no functions. */
struct graph_pools {
    cudapool_graph_pool (*create)(void);
    int (*use)(cudapool_graph_pool pool, void *stream);
    int (*seal)(cudapool_graph_pool pool);
    int (*clear)(cudapool_graph_pool pool);
    int (*get_bytes)(cudapool_graph_pool pool, struct cudapool_bytes *bytes);
    int (*destroy)(cudapool_graph_pool pool);
};

static struct graph_pools find_graph_pools(void)
{
    return (struct graph_pools){
        (cudapool_graph_pool(*)(void))dlsym(RTLD_DEFAULT, "cudapool_graph_pool_create"),
        (int (*)(cudapool_graph_pool, void *))dlsym(RTLD_DEFAULT, "cudapool_graph_pool_use"),
        (int (*)(cudapool_graph_pool))dlsym(RTLD_DEFAULT, "cudapool_graph_pool_seal"),
        (int (*)(cudapool_graph_pool))dlsym(RTLD_DEFAULT, "cudapool_graph_pool_clear"),
        (int (*)(cudapool_graph_pool, struct cudapool_bytes *))dlsym(
            RTLD_DEFAULT, "cudapool_graph_pool_get_bytes"),
        (int (*)(cudapool_graph_pool))dlsym(RTLD_DEFAULT, "cudapool_graph_pool_destroy")};
}

/* Captures what work does on the stream, with the memory of the pool; 0: with its own. */
static CUgraphExec capture(const struct graph_pools *pools, cudapool_graph_pool pool,
                           CUdeviceptr (*work)(unsigned int), unsigned int value, CUdeviceptr *used)
{
    CUgraph graph;
    CUgraphExec executable;
    if (pool)
        CU((CUresult)pools->use(pool, stream));
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    *used = work(value);
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
    CU(cuGraphDestroy(graph));
    return executable;
}

/* Two graphs, launched one after the other on one stream. */
static void run(CUdeviceptr used[2])
{
    struct graph_pools pools = find_graph_pools();
    cudapool_graph_pool pool = pools.create ? pools.create() : 0;
    CUgraphExec first = capture(&pools, pool, step, 1, &used[0]);
    CUgraphExec second = capture(&pools, pool, step, 2, &used[1]);
    if (pool) {
        struct cudapool_bytes bytes;
        CU((CUresult)pools.get_bytes(pool, &bytes));
        printf("both graphs: %llu bytes\n", (unsigned long long)bytes.cached);
        /* Nobody captures any more. What the graphs use stays theirs. */
        CU((CUresult)pools.destroy(pool));
    }
    for (int i = 0; i < 100; i++) {
        CU(cuGraphLaunch(first, stream));
        CU(cuGraphLaunch(second, stream));
    }
    CU(cuStreamSynchronize(stream));
    CU(cuGraphExecDestroy(first));
    CU(cuGraphExecDestroy(second));
}

/* -------------------------------------------------------------------------------------------------
 */

static void example(void)
{
    CUdeviceptr used[2];
    open_device();
    run(used);
    CHECK(used[0] == used[1]);
    EQUAL(0, read_counter(wrong));
}

static void without(void)
{
    CUdeviceptr used[2];
    open_device();
    run(used);
    EQUAL(0, read_counter(wrong));
    struct graph_pools pools = find_graph_pools();
    if (!pools.create)
        return;
    struct cudapool_bytes bytes;
    EQUAL(0, pools.create());
    ANSWERS(CUDA_ERROR_NOT_SUPPORTED, (CUresult)pools.use(1, stream));
    ANSWERS(CUDA_ERROR_NOT_SUPPORTED, (CUresult)pools.use(0, stream));
    ANSWERS(CUDA_ERROR_NOT_SUPPORTED, (CUresult)pools.seal(1));
    ANSWERS(CUDA_ERROR_NOT_SUPPORTED, (CUresult)pools.clear(1));
    ANSWERS(CUDA_ERROR_NOT_SUPPORTED, (CUresult)pools.get_bytes(1, &bytes));
    ANSWERS(CUDA_ERROR_NOT_SUPPORTED, (CUresult)pools.destroy(1));
}

static void not_while_captured(const struct graph_pools *pools, cudapool_graph_pool pool)
{
    CUgraph graph;
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, (CUresult)pools->use(pool, stream));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphDestroy(graph));
}

static void answers(void)
{
    struct graph_pools pools = find_graph_pools();
    struct cudapool_bytes bytes;
    CUdeviceptr used[3];
    open_device();
    cudapool_graph_pool pool = pools.create();
    CHECK(pool != 0 && pools.create() != pool);
    ANSWERS(CUDA_ERROR_INVALID_HANDLE, (CUresult)pools.use(pool, NULL));
    ANSWERS(CUDA_ERROR_INVALID_HANDLE, (CUresult)pools.use(pool, (void *)2));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, (CUresult)pools.use(4711, stream));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, (CUresult)pools.seal(4711));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, (CUresult)pools.clear(0));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, (CUresult)pools.get_bytes(0, &bytes));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, (CUresult)pools.get_bytes(pool, NULL));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, (CUresult)pools.destroy(4711));
    CUgraphExec first = capture(&pools, pool, step, 1, &used[0]);
    CU((CUresult)pools.get_bytes(pool, &bytes));
    CHECK(bytes.live == 0 && bytes.cached >= BYTES && bytes.pending == 0);
    CU((CUresult)pools.clear(pool));
    CU((CUresult)pools.get_bytes(pool, &bytes));
    CHECK(bytes.live == 0 && bytes.cached == 0 && bytes.pending >= BYTES);
    CUgraphExec second = capture(&pools, pool, step, 2, &used[1]);
    CHECK(used[1] != used[0]);
    CU((CUresult)pools.seal(pool));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, (CUresult)pools.use(pool, stream));
    CUgraphExec third = capture(&pools, 0, step, 3, &used[2]);
    not_while_captured(&pools, pools.create());
    CHECK(used[2] != used[1] && used[2] != used[0]);
    CU(cuGraphLaunch(first, stream));
    CU(cuGraphLaunch(second, stream));
    CU(cuGraphLaunch(third, stream));
    EQUAL(0, read_counter(wrong));
    CU(cuGraphExecDestroy(first));
    CU(cuGraphExecDestroy(second));
    CU(cuGraphExecDestroy(third));
    for (int i = 0; i < 100 && bytes.pending; i++) {
        size_t left, total;
        CU(cuMemGetInfo_v2(&left, &total));
        CU((CUresult)pools.get_bytes(pool, &bytes));
        sleep_ms(1);
    }
    CHECK(bytes.live == 0 && bytes.cached == 0 && bytes.pending == 0);
    CU((CUresult)pools.destroy(pool));
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"example", example}, {"without", without}, {"answers", answers}, {NULL, NULL}};
    return run_case(argc, argv, cases);
}
