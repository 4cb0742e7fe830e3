/*
 * Captured streams that allocate with cuMemAllocAsync: with captures.memory_nodes "pool" they get
 * blocks that their graphs keep, without it memory nodes. Cases whose names are those of the plain
 * driver's run in both ways.
 */
#include <stdatomic.h>

#include "pool.h"

#define WORDS 4096u
#define BYTES (WORDS * 4u)

static struct kernels kernels;
static CUdeviceptr wrong;
static CUcontext context;

static void open_device(void)
{
    context = open_primary();
    load_kernels(&kernels);
    wrong = new_counter();
}

static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                            CU_STREAM_CAPTURE_MODE_RELAXED};
#define MODES (sizeof modes / sizeof *modes)

/* Settles what destructors in threads of the driver's have still to tell. */
static void settle(void)
{
    for (int i = 0; i < 100; i++) {
        size_t left, total;
        CU(cuCtxSynchronize());
        CU(cuMemGetInfo_v2(&left, &total));
        sleep_ms(1);
    }
}

static void nothing_is_held(void)
{
    settle();
    CHECK(!has_pool() || pool_bytes().live <= 4096);
}

static void begin(CUstream stream, CUstreamCaptureMode mode)
{
    CU(cuStreamBeginCapture_v2(stream, mode));
}

static CUgraph end(CUstream stream)
{
    CUgraph graph;
    CU(cuStreamEndCapture(stream, &graph));
    return graph;
}

static CUgraphExec instantiate(CUgraph graph)
{
    CUgraphExec executable;
    CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
    return executable;
}

/* The second stream's next work comes after the first one's so far. */
static void order(CUstream first, CUstream second)
{
    CUevent event;
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(cuEventRecord(event, first));
    CU(cuStreamWaitEvent(second, event, 0));
    CU(cuEventDestroy_v2(event));
}

static size_t count_nodes(CUgraph graph, CUgraphNodeType type)
{
    CUgraphNode nodes[256];
    size_t count = 256, found = 0;
    CU(cuGraphGetNodes(graph, nodes, &count));
    for (size_t i = 0; i < count; i++) {
        CUgraphNodeType is;
        CU(cuGraphNodeGetType(nodes[i], &is));
        found += is == type;
    }
    return found;
}

/* --- one stream --------------------------------------------------------------------------------*/

/* A chain of blocks, each written, checked and freed on the stream. */
static CUgraph capture_chain(CUstream stream, CUstreamCaptureMode mode, CUdeviceptr blocks[8])
{
    begin(stream, mode);
    for (unsigned i = 0; i < 8; i++) {
        CU(cuMemAllocAsync(&blocks[i], BYTES, stream));
        fill(&kernels, stream, blocks[i], WORDS, i + 1);
        verify(&kernels, stream, blocks[i], WORDS, i + 1, wrong);
        CU(cuMemFreeAsync(blocks[i], stream));
    }
    return end(stream);
}

static void churn(CUstream stream)
{
    CUdeviceptr blocks[4];
    for (int i = 0; i < 4; i++) {
        blocks[i] = take(BYTES);
        fill(&kernels, stream, blocks[i], WORDS, 99);
    }
    for (int i = 0; i < 4; i++)
        CU(cuMemFree_v2(blocks[i]));
}

static void replays(void)
{
    CUdeviceptr blocks[8];
    open_device();
    CUstream stream = new_stream(), other = new_stream();
    for (unsigned i = 0; i < MODES; i++) {
        CUgraph graph = capture_chain(stream, modes[i], blocks);
        EQUAL(16, count_nodes(graph, CU_GRAPH_NODE_TYPE_KERNEL));
        EQUAL(has_pool() ? 0 : 8, count_nodes(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC));
        EQUAL(has_pool() ? 0 : 8, count_nodes(graph, CU_GRAPH_NODE_TYPE_MEM_FREE));
        for (unsigned j = 1; has_pool() && j < 8; j++)
            CHECK(blocks[j] == blocks[0]);
        CUgraphExec executable = instantiate(graph);
        CU(cuGraphDestroy(graph));
        for (int n = 0; n < 50; n++) {
            churn(other);
            CU(cuGraphLaunch(executable, stream));
        }
        EQUAL(0, read_counter(wrong));
        CU(cuGraphExecDestroy(executable));
    }
    nothing_is_held();
}

/* The thread's own stream, by its handle and as what NULL means in functions for it. */
static void own_stream(void)
{
    CUdeviceptr block, again, blocks[8];
    CUgraph graph;
    open_device();
    CUstream stream = CU_STREAM_PER_THREAD;
    CU(cuGraphDestroy(capture_chain(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, blocks)));
    CU(cuStreamBeginCapture_v2_ptsz(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU(cuMemAllocAsync_ptsz(&block, BYTES, NULL));
    fill(&kernels, stream, block, WORDS, 1);
    CU(cuMemFreeAsync_ptsz(block, NULL));
    CU(cuMemAllocAsync(&again, BYTES, stream));
    CHECK(!has_pool() || again == block);
    fill(&kernels, stream, again, WORDS, 2);
    verify(&kernels, stream, again, WORDS, 2, wrong);
    CU(cuMemFreeAsync_ptsz(again, NULL));
    CU(cuStreamEndCapture_ptsz(NULL, &graph));
    EQUAL(has_pool() ? 0 : 2, count_nodes(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC));
    CUgraphExec executable = instantiate(graph);
    CU(cuGraphDestroy(graph));
    for (int n = 0; n < 20; n++)
        CU(cuGraphLaunch(executable, stream));
    EQUAL(0, read_counter(wrong));
    CU(cuGraphExecDestroy(executable));
    nothing_is_held();
}

/* What the graph leaves to the program is freed each time, on a stream or plainly. */
static void relaunched(void)
{
    CUdeviceptr result;
    open_device();
    CUstream stream = new_stream();
    begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CU(cuMemAllocAsync(&result, BYTES, stream));
    fill(&kernels, stream, result, WORDS, 7);
    CUgraph graph = end(stream);
    CUgraphExec executable = instantiate(graph);
    for (int n = 0; n < 20; n++) {
        CU(cuGraphLaunch(executable, stream));
        verify(&kernels, stream, result, WORDS, 7, wrong);
        if (n % 2) {
            CU(cuMemFreeAsync(result, stream));
        } else {
            CU(cuStreamSynchronize(stream));
            CU(cuMemFree_v2(result));
        }
        ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(result, stream));
        churn(stream);
    }
    /* Left to the program, it outlives the graph. */
    CU(cuGraphLaunch(executable, stream));
    CU(cuGraphExecDestroy(executable));
    CU(cuGraphDestroy(graph));
    settle();
    churn(stream);
    verify(&kernels, stream, result, WORDS, 7, wrong);
    CU(cuMemFreeAsync(result, stream));
    EQUAL(0, read_counter(wrong));
    nothing_is_held();
}

/* With the pool: again before what it has left is freed. */
static void launched_twice(void)
{
    CUdeviceptr result;
    CHECK(has_pool());
    open_device();
    CUstream stream = new_stream();
    begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CU(cuMemAllocAsync(&result, BYTES, stream));
    fill(&kernels, stream, result, WORDS, 7);
    CUgraph graph = end(stream);
    CUgraphExec executable = instantiate(graph);
    for (int n = 0; n < 5; n++) {
        CU(cuGraphLaunch(executable, stream));
        verify(&kernels, stream, result, WORDS, 7, wrong);
    }
    CU(cuMemFreeAsync(result, stream));
    CU(cuGraphExecDestroy(executable));
    CU(cuGraphDestroy(graph));
    EQUAL(0, read_counter(wrong));
    nothing_is_held();
}

/* What is free of the device once a graph with memory has come and gone. */
static size_t come_and_go(CUstream stream)
{
    size_t before, during, after, total;
    CUdeviceptr block;
    settle();
    CU(cuMemGetInfo_v2(&before, &total));
    begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CU(cuMemAllocAsync(&block, 16 * MIB, stream));
    fill(&kernels, stream, block, WORDS, 2);
    CU(cuMemFreeAsync(block, stream));
    CUgraph graph = end(stream), clone;
    CU(cuGraphClone(&clone, graph));
    CU(cuGraphDestroy(graph));
    CUgraphExec executable = instantiate(clone);
    CU(cuGraphDestroy(clone));
    CU(cuGraphLaunch(executable, stream));
    settle();
    CU(cuMemGetInfo_v2(&during, &total));
    CHECK(during + 16 * MIB <= before);
    CU(cuGraphExecDestroy(executable));
    settle();
    CU(cuMemGetInfo_v2(&after, &total));
    return after;
}

/* The first one leaves memory of the driver's own behind, too. */
static void comes_back(void)
{
    open_device();
    CUstream stream = new_stream();
    size_t first = come_and_go(stream);
    EQUAL(first, come_and_go(stream));
}

/* --- several streams, graphs -------------------------------------------------------------------*/

/* Two branches at once: neither has the other's memory, and who comes after both may have it. */
static void branches(void)
{
    CUdeviceptr first, second, third;
    open_device();
    CUstream stream = new_stream(), other = new_stream();
    begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    order(stream, other);
    CU(cuMemAllocAsync(&first, BYTES, stream));
    fill(&kernels, stream, first, WORDS, 1);
    verify(&kernels, stream, first, WORDS, 1, wrong);
    CU(cuMemFreeAsync(first, stream));
    CU(cuMemAllocAsync(&second, BYTES, other));
    CHECK(second != first);
    fill(&kernels, other, second, WORDS, 2);
    verify(&kernels, other, second, WORDS, 2, wrong);
    order(stream, other);
    CU(cuMemAllocAsync(&third, BYTES, other));
    CHECK(!has_pool() || third == first);
    fill(&kernels, other, third, WORDS, 3);
    verify(&kernels, other, third, WORDS, 3, wrong);
    CU(cuMemFreeAsync(second, other));
    CU(cuMemFreeAsync(third, other));
    order(other, stream);
    CUgraph graph = end(stream);
    CUgraphExec executable = instantiate(graph);
    for (int n = 0; n < 50; n++)
        CU(cuGraphLaunch(executable, stream));
    EQUAL(0, read_counter(wrong));
    CU(cuGraphExecDestroy(executable));
    CU(cuGraphDestroy(graph));
    nothing_is_held();
}

/* With the pool: a graph with such memory is a part of another one, which keeps it. */
static void child(void)
{
    CUdeviceptr blocks[8];
    CUgraph parent;
    CUgraphNode node;
    CHECK(has_pool());
    open_device();
    CUstream stream = new_stream(), other = new_stream();
    CUgraph graph = capture_chain(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, blocks);
    CU(cuGraphCreate(&parent, 0));
    CU(cuGraphAddChildGraphNode(&node, parent, NULL, 0, graph));
    CU(cuGraphDestroy(graph));
    CUgraphExec executable = instantiate(parent);
    CU(cuGraphDestroy(parent));
    settle();
    for (int n = 0; n < 20; n++) {
        churn(other);
        CUdeviceptr next = take(BYTES);
        CHECK(next != blocks[0]);
        CU(cuMemFree_v2(next));
        CU(cuGraphLaunch(executable, stream));
    }
    EQUAL(0, read_counter(wrong));
    CU(cuGraphExecDestroy(executable));
    nothing_is_held();
}

/* One graph allocates, another one frees. */
static void other_graph(void)
{
    CUdeviceptr block;
    open_device();
    CUstream stream = new_stream();
    begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CU(cuMemAllocAsync(&block, BYTES, stream));
    fill(&kernels, stream, block, WORDS, 3);
    CUgraph graph = end(stream);
    CUgraphExec first = instantiate(graph);
    CU(cuGraphDestroy(graph));
    begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    verify(&kernels, stream, block, WORDS, 3, wrong);
    CU(cuMemFreeAsync(block, stream));
    graph = end(stream);
    CUgraphExec second = instantiate(graph);
    CU(cuGraphDestroy(graph));
    for (int n = 0; n < 20; n++) {
        CU(cuGraphLaunch(first, stream));
        CU(cuGraphLaunch(second, stream));
        churn(stream);
    }
    EQUAL(0, read_counter(wrong));
    CU(cuGraphExecDestroy(first));
    CU(cuGraphExecDestroy(second));
    settle();
}

/* Whether an allocation of the same size gets this memory within the next few. */
static bool is_given_again(CUdeviceptr block, CUstream stream)
{
    CUdeviceptr others[8];
    bool found = false;
    for (int i = 0; i < 8; i++) {
        others[i] = take_on(stream, BYTES);
        found = found || others[i] == block;
        fill(&kernels, stream, others[i], WORDS, 99);
    }
    for (int i = 0; i < 8; i++)
        CU(cuMemFreeAsync(others[i], stream));
    CU(cuStreamSynchronize(stream));
    return found;
}

/* With the pool: what the stream allocated before its capture is freed in it, and the graph has it
 * until it goes. */
static void before(void)
{
    CUdeviceptr base;
    size_t bytes;
    CHECK(has_pool());
    open_device();
    CUstream stream = new_stream();
    for (unsigned i = 0; i < MODES; i++) {
        CUdeviceptr block = take_on(stream, BYTES);
        begin(stream, modes[i]);
        fill(&kernels, stream, block, WORDS, 5);
        verify(&kernels, stream, block, WORDS, 5, wrong);
        CU(cuMemFreeAsync(block, stream));
        ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(block, stream));
        ANSWERS(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &bytes, block));
        CUgraph graph = end(stream);
        CUgraphExec executable = instantiate(graph);
        CU(cuGraphDestroy(graph));
        settle();
        for (int n = 0; n < 20; n++) {
            CHECK(!is_given_again(block, stream));
            CU(cuGraphLaunch(executable, stream));
        }
        ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(block, stream));
        CU(cuGraphExecDestroy(executable));
        settle();
        ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(block, stream));
    }
    EQUAL(0, read_counter(wrong));
    nothing_is_held();
}

/* What was to be done with such memory before the capture goes on when the graph goes, which was
 * never launched. */
static void before_and_used(void)
{
    CHECK(has_pool());
    open_device();
    CUstream stream = new_stream(), others = new_stream();
    for (unsigned i = 0; i < MODES; i++) {
        CUdeviceptr block = take_on(stream, BYTES), next[4];
        spin(&kernels, stream, 50000000);
        fill(&kernels, stream, block, WORDS, 1);
        begin(others, modes[i]);
        CU(cuMemFreeAsync(block, others));
        CU(cuGraphDestroy(end(others)));
        /* The driver's own free would lean on the program to have waited. */
        CHECK(pool_bytes().pending + pool_bytes().cached >= BYTES);
        for (unsigned j = 0; j < 4; j++) {
            next[j] = take_on(others, BYTES);
            fill(&kernels, others, next[j], WORDS, 2);
        }
        CU(cuCtxSynchronize());
        for (unsigned j = 0; j < 4; j++) {
            verify(&kernels, others, next[j], WORDS, 2, wrong);
            CU(cuMemFreeAsync(next[j], others));
        }
    }
    EQUAL(0, read_counter(wrong));
    nothing_is_held();
}

/* The context ends while a graph has such memory; the next one's is none of it. */
static void before_and_context_ends(void)
{
    CUcontext second;
    CHECK(has_pool());
    open_device();
    CU(cuCtxCreate_v2(&second, 0, 0));
    CUstream stream = new_stream();
    CUdeviceptr block = take_on(stream, BYTES);
    begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CU(cuMemFreeAsync(block, stream));
    CUgraph graph = end(stream);
    CU(cuCtxDestroy_v2(second));
    CU(cuCtxSetCurrent(context));
    stream = new_stream();
    CUdeviceptr next = take_on(stream, BYTES);
    CU(cuGraphDestroy(graph));
    settle();
    fill(&kernels, stream, next, WORDS, 1);
    CU(cuMemFreeAsync(next, stream));
    nothing_is_held();
}

/* --- captures that leave no graph --------------------------------------------------------------*/

static void fails(void)
{
    open_device();
    CUstream stream = new_stream();
    for (unsigned i = 0; i < MODES; i++) {
        CUgraph graph = NULL;
        CUdeviceptr held, freed, none;
        begin(stream, modes[i]);
        CU(cuMemAllocAsync(&held, BYTES, stream));
        CU(cuMemAllocAsync(&freed, BYTES, stream));
        CU(cuMemFreeAsync(freed, stream));
        ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxSynchronize());
        ANSWERS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuMemAllocAsync(&none, BYTES, stream));
        ANSWERS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuMemFreeAsync(held, stream));
        ANSWERS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
        CHECK(graph == NULL);
        settle();
        ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(held, stream));
        ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(freed));
        spin(&kernels, stream, 1000);
        CU(cuStreamSynchronize(stream));
    }
    nothing_is_held();
}

static void abandoned(void)
{
    open_device();
    for (unsigned i = 0; i < MODES; i++) {
        CUstream stream = new_stream();
        CUdeviceptr held, freed;
        begin(stream, modes[i]);
        CU(cuMemAllocAsync(&held, BYTES, stream));
        CU(cuMemAllocAsync(&freed, BYTES, stream));
        CU(cuMemFreeAsync(freed, stream));
        CU(cuStreamDestroy_v2(stream));
        CU(cuMemFree_v2(take(BYTES)));
        CU(cuCtxSynchronize());
    }
    nothing_is_held();
}

static void pointers(void)
{
    CUdeviceptr block, held, base;
    size_t bytes;
    CHECK(has_pool());
    open_device();
    CUstream stream = new_stream();
    begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CU(cuMemAllocAsync(&block, 1000, stream));
    CU(cuMemAllocAsync(&held, 4096, stream));
    CU(cuMemGetAddressRange_v2(&base, &bytes, block + 500));
    EQUAL(block, base);
    EQUAL(1000, bytes);
    CU(cuMemFreeAsync(block, stream));
    ANSWERS(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &bytes, block));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(block, stream));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(held + 256, stream));
    ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&base, (size_t)1 << 45, stream));
    CUgraph graph = end(stream);
    CUgraphExec executable = instantiate(graph);
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(block));
    CU(cuMemFree_v2(held));
    ANSWERS(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &bytes, held));
    CU(cuGraphLaunch(executable, stream));
    CU(cuMemGetAddressRange_v2(&base, &bytes, held + 4095));
    EQUAL(held, base);
    EQUAL(4096, bytes);
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(block));
    CU(cuMemFreeAsync(held, stream));
    CU(cuGraphExecDestroy(executable));
    CU(cuGraphDestroy(graph));
    nothing_is_held();
}

/* --- threads -----------------------------------------------------------------------------------*/

static void *capture_and_launch(void *unused)
{
    CUdeviceptr blocks[8];
    (void)unused;
    CU(cuCtxSetCurrent(context));
    CUstream stream = new_stream();
    for (int n = 0; n < 30; n++) {
        CUgraph graph = capture_chain(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, blocks);
        CUgraphExec executable = instantiate(graph);
        CU(cuGraphDestroy(graph));
        for (int i = 0; i < 5; i++)
            CU(cuGraphLaunch(executable, stream));
        CU(cuGraphExecDestroy(executable));
    }
    CU(cuStreamSynchronize(stream));
    return NULL;
}

/* Each captures and launches on its own. */
static void threads(void)
{
    pthread_t others[3];
    open_device();
    for (int i = 0; i < 3; i++)
        pthread_create(&others[i], NULL, capture_and_launch, NULL);
    for (int i = 0; i < 3; i++)
        pthread_join(others[i], NULL);
    EQUAL(0, read_counter(wrong));
    nothing_is_held();
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"replays", replays},
        {"own_stream", own_stream},
        {"relaunched", relaunched},
        {"launched_twice", launched_twice},
        {"comes_back", comes_back},
        {"branches", branches},
        {"child", child},
        {"other_graph", other_graph},
        {"before", before},
        {"before_and_used", before_and_used},
        {"before_and_context_ends", before_and_context_ends},
        {"fails", fails},
        {"abandoned", abandoned},
        {"pointers", pointers},
        {"threads", threads},
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
