/*
 * Captured streams that allocate from the pool, before the race detector (SIMCUDA_RACES): a block
 * that serves twice in a graph serves the second time behind the first, at every launch.
 */
#include <stdlib.h>

#include "pool.h"

#include "../sim/races.h"

enum { WORDS = 1024, BYTES = 4 * WORDS };

static struct kernels kernels;
static CUstream stream, other;

static void open_device(void)
{
    open_primary();
    load_kernels(&kernels);
    stream = new_stream();
    other = new_stream();
}

static uint64_t hazards(void)
{
    struct simcuda_findings findings;
    simcuda_findings(&findings);
    EQUAL(0, findings.program_errors);
    CHECK(findings.operations > 0 && findings.allocations > 0);
    return findings.hazards;
}

static void order(CUstream first, CUstream second)
{
    CUevent event;
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(cuEventRecord(event, first));
    CU(cuStreamWaitEvent(second, event, 0));
    CU(cuEventDestroy_v2(event));
}

static CUdeviceptr use_one(CUstream on, size_t bytes)
{
    CUdeviceptr block;
    CU(cuMemAllocAsync(&block, bytes, on));
    fill(&kernels, on, block, WORDS, 1);
    CU(cuMemFreeAsync(block, on));
    return block;
}

static void launch_and_end(CUgraph graph)
{
    CUgraphExec executable;
    CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
    CU(cuGraphDestroy(graph));
    for (int i = 0; i < 20; i++) {
        CUdeviceptr blocks[4];
        for (int j = 0; j < 4; j++) {
            CU(cuMemAlloc_v2(&blocks[j], BYTES));
            fill(&kernels, other, blocks[j], WORDS, 3);
        }
        CU(cuGraphLaunch(executable, stream));
        for (int j = 0; j < 4; j++)
            CU(cuMemFree_v2(blocks[j]));
    }
    CU(cuGraphExecDestroy(executable));
    for (int j = 0; j < 10; j++) {
        CUdeviceptr block;
        CU(cuMemAlloc_v2(&block, BYTES));
        fill(&kernels, other, block, WORDS, 3);
        CU(cuMemFree_v2(block));
        sleep_ms(1);
    }
    CU(cuCtxSynchronize());
}

/* One after the other, on one stream: the same memory. */
static void chain(void)
{
    CUgraph graph;
    open_device();
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CUdeviceptr first = use_one(stream, BYTES);
    for (int i = 0; i < 4; i++)
        CHECK(use_one(stream, BYTES) == first);
    CU(cuStreamEndCapture(stream, &graph));
    launch_and_end(graph);
    EQUAL(0, hazards());
}

/* What one branch has freed, another one that nothing orders may not have, and a third that comes
 * after it may. */
static void branches(void)
{
    CUgraph graph;
    open_device();
    CUstream third = new_stream();
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    order(stream, other);
    CUdeviceptr first = use_one(stream, BYTES);
    use_one(other, BYTES);
    order(stream, third);
    CUdeviceptr again = use_one(third, BYTES);
    order(other, stream);
    order(third, stream);
    CU(cuStreamEndCapture(stream, &graph));
    launch_and_end(graph);
    EQUAL(0, hazards());
    CHECK(again == first);
}

/* A stream that the program sets back, with what it would otherwise come after left to another. */
static void set_back(void)
{
    CUgraph graph;
    CUgraphNode before;
    CUstreamCaptureStatus status;
    const CUgraphNode *nodes;
    size_t count;
    cuuint64_t id;
    CUgraph captured;
    open_device();
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    spin(&kernels, stream, 1000);
    CU(cuStreamGetCaptureInfo_v2(stream, &status, &id, &captured, &nodes, &count));
    EQUAL(1, count);
    before = nodes[0];
    use_one(stream, BYTES);
    order(stream, other);
    CU(cuStreamUpdateCaptureDependencies(stream, &before, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    use_one(stream, BYTES);
    order(other, stream);
    CU(cuStreamEndCapture(stream, &graph));
    launch_and_end(graph);
    EQUAL(0, hazards());
}

/* Captures that share nothing, launched side by side. */
static void two_graphs(void)
{
    CUgraph graph;
    CUgraphExec executables[2];
    open_device();
    for (int i = 0; i < 2; i++) {
        CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        use_one(stream, BYTES);
        CU(cuStreamEndCapture(stream, &graph));
        CU(cuGraphInstantiateWithFlags(&executables[i], graph, 0));
        CU(cuGraphDestroy(graph));
    }
    for (int i = 0; i < 20; i++) {
        CU(cuGraphLaunch(executables[0], stream));
        CU(cuGraphLaunch(executables[1], other));
    }
    CU(cuCtxSynchronize());
    EQUAL(0, hazards());
}

/* The detector itself: it hears that two branches have the same memory. */
static void given_twice(void)
{
    char report[4096];
    CUgraph graph;
    open_device();
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    order(stream, other);
    CUdeviceptr first = use_one(stream, BYTES);
    simcuda_program_allocated_async(first, BYTES, 4711, other);
    fill(&kernels, other, first, WORDS, 2);
    order(other, stream);
    CU(cuStreamEndCapture(stream, &graph));
    launch_and_end(graph);
    CHECK(hazards() > 0);
    simcuda_last_report(report, sizeof report);
    CHECK(strstr(report, "given out again while it was in use") != NULL);
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"chain", chain},           {"branches", branches},       {"set_back", set_back},
        {"two_graphs", two_graphs}, {"given_twice", given_twice}, {NULL, NULL}};
    return run_case(argc, argv, cases);
}
