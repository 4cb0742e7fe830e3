/*
 * Captures that allocate, before the race detector (SIMCUDA_RACES), which is told of every
 * allocation: a graph may use what its capture has freed, and nobody else may have it meanwhile.
 */
#include <stdlib.h>

#include "pool.h"

#include "../sim/races.h"

enum { WORDS = 1024, BYTES = 4 * WORDS };

static struct kernels kernels;
static CUstream stream, other;

static CUdeviceptr told_block(void)
{
    CUdeviceptr block;
    CU(cuMemAlloc_v2(&block, BYTES));
    return block;
}

/* Writes a block of before and one of its own, and frees both. */
static CUgraph capture_graph(CUdeviceptr *inside)
{
    CUgraph graph;
    CUdeviceptr before = told_block();
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    fill(&kernels, stream, before, WORDS, 1);
    *inside = told_block();
    fill(&kernels, stream, *inside, WORDS, 2);
    CU(cuMemFree_v2(before));
    CU(cuMemFree_v2(*inside));
    CU(cuStreamEndCapture(stream, &graph));
    return graph;
}

static CUgraphExec capture(CUdeviceptr *inside)
{
    CUgraphExec executable;
    CUgraph graph = capture_graph(inside);
    CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
    CU(cuGraphDestroy(graph));
    return executable;
}

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

/* Others take and use blocks of the same size between launches, without waiting for them. */
static void launches(void)
{
    CUdeviceptr inside;
    open_device();
    CUgraphExec executable = capture(&inside);
    /* All that was freed and may be had is clean by now, and taken. */
    CU(cuCtxSynchronize());
    for (int i = 0; i < 16; i++)
        fill(&kernels, other, told_block(), WORDS, 4);
    for (int i = 0; i < 20; i++) {
        CUdeviceptr blocks[4];
        for (int j = 0; j < 4; j++) {
            blocks[j] = told_block();
            fill(&kernels, other, blocks[j], WORDS, 3);
        }
        CU(cuGraphLaunch(executable, stream));
        for (int j = 0; j < 4; j++)
            CU(cuMemFree_v2(blocks[j]));
    }
    CU(cuCtxSynchronize());
    EQUAL(0, hazards());
}

static void use_new_blocks(void)
{
    for (int j = 0; j < 10; j++) {
        CUdeviceptr block = told_block();
        fill(&kernels, other, block, WORDS, 3);
        CU(cuMemFree_v2(block));
        sleep_ms(1);
    }
}

/* The last launch is on its way when the executable goes: who gets the memory comes after it. */
static void last_launch(void)
{
    CUdeviceptr inside;
    open_device();
    for (int i = 0; i < 10; i++) {
        CUgraphExec executable = capture(&inside);
        spin(&kernels, stream, 3000000);
        CU(cuGraphLaunch(executable, stream));
        CU(cuGraphExecDestroy(executable));
        use_new_blocks();
    }
    CU(cuCtxSynchronize());
    EQUAL(0, hazards());
}

/* ... or when it is updated by another graph, whose memory it uses from then on. */
static void last_update(void)
{
    CUdeviceptr inside;
    CUgraphExecUpdateResultInfo info;
    open_device();
    CUgraphExec executable = capture(&inside);
    for (int i = 0; i < 10; i++) {
        CUgraph graph = capture_graph(&inside);
        spin(&kernels, stream, 3000000);
        CU(cuGraphLaunch(executable, stream));
        CU(cuGraphExecUpdate_v2(executable, graph, &info));
        CU(cuGraphDestroy(graph));
        use_new_blocks();
        CU(cuGraphLaunch(executable, stream));
    }
    CU(cuCtxSynchronize());
    EQUAL(0, hazards());
}

/* The detector itself: it hears that someone else has got the graph's memory. */
static void given_away(void)
{
    char report[4096];
    CUdeviceptr inside;
    open_device();
    CUgraphExec executable = capture(&inside);
    CU(cuGraphLaunch(executable, stream));
    CU(cuCtxSynchronize());
    EQUAL(0, hazards());
    simcuda_program_allocated(inside, BYTES, 4711);
    EQUAL(0, hazards());
    CU(cuGraphLaunch(executable, stream));
    CU(cuCtxSynchronize());
    CHECK(hazards() > 0);
    simcuda_last_report(report, sizeof report);
    CHECK(strstr(report, "given to someone else") != NULL);
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {{"launches", launches},
                                             {"last_launch", last_launch},
                                             {"last_update", last_update},
                                             {"given_away", given_away},
                                             {NULL, NULL}};
    return run_case(argc, argv, cases);
}
