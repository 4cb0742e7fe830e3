/*
 * Executables of graphs whose capture has allocated: they have no user object, which would make
 * their launches slow, and what their graphs keep stays as long as they are there all the same.
 */
#include "pool.h"

#define WORDS 4096u
#define BYTES (WORDS * 4u)

static struct kernels kernels;
static CUdeviceptr wrong;
static CUcontext context;
static CUstream stream;

static void open_device(void)
{
    context = open_primary();
    load_kernels(&kernels);
    wrong = new_counter();
    stream = new_stream();
}

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

static uint64_t live(void)
{
    settle();
    return pool_bytes().live;
}

/* A new block is written, verified and freed. */
static void work(unsigned int value)
{
    CUdeviceptr block = take(BYTES);
    fill(&kernels, stream, block, WORDS, value);
    verify(&kernels, stream, block, WORDS, value, wrong);
    CU(cuMemFree_v2(block));
}

static CUgraph capture(unsigned int value)
{
    CUgraph graph;
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    work(value);
    CU(cuStreamEndCapture(stream, &graph));
    return graph;
}

static CUgraphExec instantiate(CUgraph graph)
{
    CUgraphExec executable;
    CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
    return executable;
}

static void launch(CUgraphExec executable)
{
    for (int i = 0; i < 10; i++) {
        CU(cuGraphLaunch(executable, stream));
        work(77);
    }
    EQUAL(0, read_counter(wrong));
}

/* ---- whichever way they are made ---- */

static void made(void)
{
    CUDA_GRAPH_INSTANTIATE_PARAMS parameters = {.flags = 0};
    CUgraphExec executables[5];
    open_device();
    uint64_t before = live();
    CUgraph graph = capture(1);
    CU(cuGraphInstantiate(&executables[0], graph, NULL, NULL, 0));
    CU(cuGraphInstantiate_v2(&executables[1], graph, NULL, NULL, 0));
    CU(cuGraphInstantiateWithFlags(&executables[2], graph, 0));
    CU(cuGraphInstantiateWithParams(&executables[3], graph, &parameters));
    CU(cuGraphInstantiateWithParams_ptsz(&executables[4], graph, &parameters));
    EQUAL(1, simcuda_objects_of_graph(graph));
    CU(cuGraphDestroy(graph));
    for (int i = 0; i < 5; i++) {
        EQUAL(0, simcuda_objects_of_executable(executables[i]));
        launch(executables[i]);
        CHECK(live() > before);
        CU(cuGraphExecDestroy(executables[i]));
    }
    EQUAL(before, live());
}

/* What is copied from the graph after that has its object. */
static void copied(void)
{
    CUgraph parent, clone;
    CUgraphNode node;
    open_device();
    uint64_t before = live();
    CUgraph graph = capture(1);
    CUgraphExec executable = instantiate(graph), of_clone, of_parent;
    CU(cuGraphClone(&clone, graph));
    CU(cuGraphCreate(&parent, 0));
    CU(cuGraphAddChildGraphNode(&node, parent, NULL, 0, graph));
    CU(cuGraphDestroy(graph));
    CU(cuGraphExecDestroy(executable));
    of_clone = instantiate(clone);
    of_parent = instantiate(parent);
    CU(cuGraphDestroy(clone));
    CU(cuGraphDestroy(parent));
    EQUAL(1, simcuda_objects_of_executable(of_clone));
    EQUAL(1, simcuda_objects_of_executable(of_parent));
    launch(of_clone);
    CU(cuGraphExecDestroy(of_clone));
    launch(of_parent);
    CHECK(live() > before);
    CU(cuGraphExecDestroy(of_parent));
    EQUAL(before, live());
}

/* ---- updates ---- */

static void updated(void)
{
    CUgraphExecUpdateResultInfo info;
    CUgraphExecUpdateResult result;
    CUgraphNode node;
    open_device();
    uint64_t before = live();
    CUgraph first = capture(1), second = capture(2), third = capture(3);
    CUgraphExec executable = instantiate(first);
    CU(cuGraphDestroy(first));
    uint64_t three = live();
    launch(executable);
    CU(cuGraphExecUpdate_v2(executable, second, &info));
    CU(cuGraphDestroy(second));
    uint64_t two = live();
    CHECK(two < three);
    launch(executable);
    CU(cuGraphExecUpdate(executable, third, &node, &result));
    CU(cuGraphDestroy(third));
    EQUAL(0, simcuda_objects_of_executable(executable));
    CHECK(live() < two && live() > before);
    launch(executable);
    CU(cuGraphExecDestroy(executable));
    EQUAL(before, live());
}

/* An update that fails leaves everything as it was. */
static void not_updated(void)
{
    CUgraphExecUpdateResultInfo info;
    CUgraph other;
    open_device();
    uint64_t before = live();
    CUgraph graph = capture(1);
    CUgraphExec executable = instantiate(graph);
    CU(cuGraphDestroy(graph));
    uint64_t one = live();
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    work(2);
    work(3);
    CU(cuStreamEndCapture(stream, &other));
    ANSWERS(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate_v2(executable, other, &info));
    EQUAL(1, simcuda_objects_of_graph(other));
    CU(cuGraphDestroy(other));
    EQUAL(one, live());
    launch(executable);
    CU(cuGraphExecDestroy(executable));
    EQUAL(before, live());
}

/* ---- ends that are none ---- */

/* Beside a capture that minds, the driver refuses to destroy the executable, which goes on. */
static void refused(void)
{
    CUgraph none = NULL;
    open_device();
    CUstream other = new_stream();
    uint64_t before = live();
    CUgraph graph = capture(1);
    CUgraphExec executable = instantiate(graph);
    CU(cuGraphDestroy(graph));
    CU(cuStreamBeginCapture_v2(other, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuGraphExecDestroy(executable));
    ANSWERS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(other, &none));
    CHECK(live() > before);
    launch(executable);
    CU(cuGraphExecDestroy(executable));
    EQUAL(before, live());
}

/* ---- graphs whose handles end unseen ---- */

/* Moved into another graph, and gone with it. */
static void moved(void)
{
    CUgraphNodeParams parameters = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
    CUgraph parent;
    CUgraphNode node;
    open_device();
    uint64_t before = live();
    CU(cuGraphCreate(&parent, 0));
    parameters.graph.graph = capture(1);
    parameters.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
    CU(cuGraphAddNode_v2(&node, parent, NULL, NULL, 0, &parameters));
    CUgraphExec executable = instantiate(parent);
    CU(cuGraphDestroy(parent));
    launch(executable);
    CHECK(live() > before);
    CU(cuGraphExecDestroy(executable));
    EQUAL(before, live());
}

/* Captured into again: executables made then have the objects of both captures. */
static void captured_again(void)
{
    CUgraph same;
    open_device();
    uint64_t before = live();
    CUgraph graph = capture(1);
    CUgraphExec first = instantiate(graph), second;
    CU(cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL));
    work(2);
    CU(cuStreamEndCapture(stream, &same));
    CHECK(same == graph);
    second = instantiate(graph);
    CU(cuGraphDestroy(graph));
    EQUAL(0, simcuda_objects_of_executable(first));
    EQUAL(2, simcuda_objects_of_executable(second));
    uint64_t both = live();
    launch(second);
    CU(cuGraphExecDestroy(second));
    CHECK(live() < both && live() > before);
    launch(first);
    CU(cuGraphExecDestroy(first));
    EQUAL(before, live());
}

/* A capture into it fails, and takes it along. */
static void spoilt(void)
{
    CUgraph none = NULL;
    open_device();
    uint64_t before = live();
    CUgraph graph = capture(1);
    CU(cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL));
    work(2);
    ANSWERS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxSynchronize());
    ANSWERS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &none));
    EQUAL(before, live());
}

/* ---- launches that go on ---- */

/* What another context's stream still does with the memory is waited for. */
static void elsewhere(void)
{
    CUcontext second;
    open_device();
    struct kernels theirs;
    uint64_t before = live();
    CUdeviceptr block;
    CUgraph graph;
    CU(cuCtxCreate_v2(&second, 0, 0));
    load_kernels(&theirs);
    CUstream other = new_stream();
    CU(cuStreamBeginCapture_v2(other, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU(cuCtxSetCurrent(context));
    block = take(16 * MIB);
    CU(cuMemFree_v2(block));
    CU(cuCtxSetCurrent(second));
    fill(&theirs, other, block, WORDS, 1);
    CU(cuStreamEndCapture(other, &graph));
    CUgraphExec executable = instantiate(graph);
    CU(cuGraphDestroy(graph));
    struct gate gate = close_gate(&theirs, other);
    CU(cuGraphLaunch(executable, other));
    CU(cuGraphExecDestroy(executable));
    CU(cuCtxSetCurrent(context));
    for (int i = 0; i < 20; i++) {
        CUdeviceptr another = take(16 * MIB);
        CHECK(another != block);
        CU(cuMemFree_v2(another));
        sleep_ms(1);
    }
    open_gate(gate);
    EQUAL(before, live());
}

/* Stream-ordered memory of before goes back behind its own context's work alone, so that the driver
 * has to tell when all launches are over. */
static void held(void)
{
    CUgraph graph;
    open_device();
    CUdeviceptr block = take_on(stream, BYTES);
    CU(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    fill(&kernels, stream, block, WORDS, 1);
    CU(cuMemFreeAsync(block, stream));
    CU(cuStreamEndCapture(stream, &graph));
    CUgraphExec executable = instantiate(graph);
    EQUAL(1, simcuda_objects_of_executable(executable));
    CU(cuGraphDestroy(graph));
    launch(executable);
    CU(cuGraphExecDestroy(executable));
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"made", made},
        {"copied", copied},
        {"updated", updated},
        {"not_updated", not_updated},
        {"refused", refused},
        {"moved", moved},
        {"captured_again", captured_again},
        {"spoilt", spoilt},
        {"elsewhere", elsewhere},
        {"held", held},
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
