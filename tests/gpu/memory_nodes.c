/*
 * Graphs of kernels that take memory on the way, with cuMemAllocAsync and cuMemFreeAsync in the
 * capture: what a launch and a replay of 20 and of 64 such kernels cost with memory nodes, with
 * captures.memory_nodes at "pool", with one block made before the capture, and of an executable
 * that was updated by a second capture; and whether every word is right.
 *
 * The right-and-wrong part: two branches, each a chain of blocks written, verified and freed, that
 * join into a third chain, and a block that the graph leaves to the program, which frees it each
 * time; launched while other threads allocate, write, verify and free blocks of the same size.
 *
 * Arguments: replays=20000 threads=4
 */
#include "gpu.h"

#include <stdatomic.h>

enum { WORDS = 16384, BYTES = WORDS * 4, CHAIN = 6, ROUND = 100 };

static CUcontext context;
static struct kernels kernels;
static CUstream stream, branch;
static atomic_bool stop;
static atomic_ulong wrong_meanwhile;

static CUdeviceptr take_on(CUstream on)
{
    CUdeviceptr block;
    CHECK(cuMemAllocAsync(&block, BYTES, on));
    return block;
}

static CUgraphExec end_and_instantiate(CUgraph *graph)
{
    CUgraphExec executable;
    CHECK(cuStreamEndCapture(stream, graph));
    CHECK(cuGraphInstantiateWithFlags(&executable, *graph, 0));
    return executable;
}

/* ---- what it costs ---- */

/* once: a block made before the capture; 0: each kernel takes one of its own. */
static void capture_chain(unsigned int length, CUdeviceptr once)
{
    CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (unsigned int i = 0; i < length; i++) {
        CUdeviceptr block = once ? once : take_on(stream);
        fill(&kernels, stream, block, WORDS, i);
        if (!once)
            CHECK(cuMemFreeAsync(block, stream));
    }
}

/* A capture of the same shape takes the place of the one that the executable was made of. Not with
 * memory nodes: these keep their addresses, and the kernels would have those of the other capture.
 */
static void update(CUgraphExec executable, CUgraph *graph, unsigned int length, CUdeviceptr once)
{
    CUgraphExecUpdateResultInfo info;
    CHECK(cuGraphDestroy(*graph));
    capture_chain(length, once);
    CHECK(cuStreamEndCapture(stream, graph));
    CHECK(cuGraphExecUpdate_v2(executable, *graph, &info));
}

static void time_chain(unsigned int length, unsigned long replays, CUdeviceptr once, bool updated)
{
    CUgraph graph;
    size_t nodes = 0;
    double begun = now_ms(), calls = 0;
    capture_chain(length, once);
    CUgraphExec executable = end_and_instantiate(&graph);
    CHECK(cuGraphGetNodes(graph, NULL, &nodes));
    updated = updated && nodes == length;
    if (updated)
        update(executable, &graph, length, once);
    double captured = now_ms();
    CHECK(cuGraphLaunch(executable, stream));
    CHECK(cuStreamSynchronize(stream));
    double first = now_ms();
    for (unsigned long i = 0; i < replays; i++) {
        double before = now_ms();
        CHECK(cuGraphLaunch(executable, stream));
        calls += now_ms() - before;
        if (i % ROUND == ROUND - 1)
            CHECK(cuStreamSynchronize(stream));
    }
    CHECK(cuStreamSynchronize(stream));
    double all = now_ms() - first;
    printf("%u kernels%s%s: %zu nodes, captured in %.3f ms, first launch %.3f ms, "
           "then %.2f us a call, %.2f us a replay\n",
           length, once ? ", made once" : "", updated ? ", updated" : "", nodes, captured - begun,
           first - captured, 1000 * calls / (double)replays, 1000 * all / (double)replays);
    CHECK(cuGraphExecDestroy(executable));
    CHECK(cuGraphDestroy(graph));
}

/* ---- whether it is right ---- */

/* Waiting for a stream would spoil a capture in global mode: none goes on meanwhile. */
static void other_thread(unsigned int index)
{
    CUstream own;
    unsigned int value = 1000 * (index + 1);
    unsigned long long wrong;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    CUdeviceptr counter = new_counter();
    while (!atomic_load(&stop)) {
        CUdeviceptr block;
        CHECK(cuMemAlloc_v2(&block, BYTES));
        fill(&kernels, own, block, WORDS, ++value);
        verify(&kernels, own, block, WORDS, value, counter);
        CHECK(cuMemFree_v2(block));
    }
    CHECK(cuStreamSynchronize(own));
    CHECK(cuMemcpyDtoH_v2(&wrong, counter, sizeof wrong));
    atomic_fetch_add(&wrong_meanwhile, wrong);
}

static void chain_on(CUstream on, unsigned int value, CUdeviceptr counter)
{
    for (unsigned int i = 0; i < CHAIN; i++) {
        CUdeviceptr block = take_on(on);
        fill(&kernels, on, block, WORDS, value + i);
        verify(&kernels, on, block, WORDS, value + i, counter);
        CHECK(cuMemFreeAsync(block, on));
    }
}

static void order(CUstream first, CUstream second)
{
    CUevent event;
    CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CHECK(cuEventRecord(event, first));
    CHECK(cuStreamWaitEvent(second, event, 0));
    CHECK(cuEventDestroy_v2(event));
}

static unsigned long long launch_branches(unsigned long replays, unsigned long threads)
{
    struct worker others[MAX_WORKERS];
    CUgraph graph;
    CUdeviceptr counter = new_counter();
    CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    order(stream, branch);
    chain_on(stream, 100, counter);
    chain_on(branch, 200, counter);
    order(branch, stream);
    chain_on(stream, 300, counter);
    CUdeviceptr left = take_on(stream);
    fill(&kernels, stream, left, WORDS, 400);
    CUgraphExec executable = end_and_instantiate(&graph);
    for (unsigned int i = 0; i < threads; i++)
        start_worker(&others[i], other_thread, i);
    for (unsigned long i = 0; i < replays; i++) {
        CHECK(cuGraphLaunch(executable, stream));
        verify(&kernels, stream, left, WORDS, 400, counter);
        CHECK(cuMemFreeAsync(left, stream));
        if (i % ROUND == ROUND - 1)
            CHECK(cuStreamSynchronize(stream));
    }
    CHECK(cuStreamSynchronize(stream));
    atomic_store(&stop, true);
    for (unsigned int i = 0; i < threads; i++)
        join_worker(&others[i]);
    CHECK(cuGraphExecDestroy(executable));
    CHECK(cuGraphDestroy(graph));
    return read_counter(counter) + atomic_load(&wrong_meanwhile);
}

int main(int argc, char **argv)
{
    unsigned long replays = argument(argc, argv, "replays", 20000);
    unsigned long threads = argument(argc, argv, "threads", 4);
    if (threads > MAX_WORKERS)
        FAIL("threads=%lu: at most %d", threads, MAX_WORKERS);
    context = open_primary();
    load_kernels(&kernels);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&branch, CU_STREAM_NON_BLOCKING));
    /* What is loaded at its first launch is not to be loaded in a capture. */
    CUdeviceptr counter = new_counter(), block;
    CHECK(cuMemAlloc_v2(&block, BYTES));
    fill(&kernels, stream, block, WORDS, 1);
    verify(&kernels, stream, block, WORDS, 1, counter);
    CHECK(cuStreamSynchronize(stream));
    double begun = now_ms();
    for (unsigned int length = 20; length <= 64; length += 44) {
        time_chain(length, replays, block, false);
        time_chain(length, replays, 0, false);
        time_chain(length, replays, block, true);
        time_chain(length, replays, 0, true);
    }
    CHECK(cuMemFree_v2(block));
    unsigned long long wrong = launch_branches(replays, threads);
    printf("memory_nodes: %.2f ms, %lu replays beside %lu threads, %llu wrong words\n",
           now_ms() - begun, replays, threads, wrong);
    return wrong == 0 ? 0 : 1;
}
