/*
 * Rows about nodes that allocate and free: what cuMemAllocAsync and cuMemFreeAsync become in a
 * capture. Memory of the pool's that takes their place must answer as they do, or better.
 *
 * NVIDIA's programming guide ("Graph Memory Nodes") and the description of cuGraphLaunch say when
 * such memory may be freed and by whom, when a graph may be launched again, and that such graphs
 * are neither cloned nor instantiated twice. With which error, and what the rest of the driver says
 * of such an address, are facts.
 */
#include "graphs.h"

enum { WORDS = 1024 };

static const size_t BYTES = 4 * MIB;

/* A captured allocation that a kernel fills and another one checks. It is left unfreed. */
static CUdeviceptr capture_use(size_t bytes)
{
    CUdeviceptr address = 0;
    SUCCEEDS(cuMemAllocAsync(&address, bytes, gpu.a));
    CHECK(address != 0);
    fill(gpu.a, address, WORDS, 7);
    spin_then_verify(gpu.a, 0, address, WORDS, 7);
    return address;
}

/* An executable, and its graph, with one allocation. */
struct memory_graph {
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr address;
};

static struct memory_graph make_graph(bool frees, unsigned long long flags)
{
    struct memory_graph made = {NULL, NULL, 0};
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    made.address = capture_use(BYTES);
    if (frees)
        SUCCEEDS(cuMemFreeAsync(made.address, gpu.a));
    made.graph = end_capture();
    SUCCEEDS(cuGraphInstantiateWithFlags(&made.exec, made.graph, flags));
    return made;
}

static void drop_graph(const struct memory_graph *made)
{
    destroy_exec(made->exec);
    destroy_graph(made->graph);
    SUCCEEDS(cuDeviceGraphMemTrim(gpu.device));
}

/* --- launches ----------------------------------------------------------------------------------*/

/* Replays use the address that the capture gave, whatever is allocated between. */
void captured_allocations_keep_their_address(void)
{
    struct memory_graph made = make_graph(true, 0);
    for (int i = 0; i < 3; i++) {
        CUdeviceptr other = 0;
        launch_and_wait(made.exec);
        SUCCEEDS(cuMemAllocAsync(&other, BYTES, gpu.a));
        CHECK(other != made.address);
        SUCCEEDS(cuMemsetD8Async(other, 1, BYTES, gpu.a));
        SUCCEEDS(cuMemFreeAsync(other, gpu.a));
    }
    CHECK(wrong_words() == 0);
    drop_graph(&made);
}

/* What its own graph frees, nobody else may, and not twice. */
void captured_allocations_are_freed_once(void)
{
    struct memory_graph made = {NULL, NULL, 0};
    CUresult again, freed;
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    made.address = capture_use(BYTES);
    SUCCEEDS(cuMemFreeAsync(made.address, gpu.a));
    again = cuMemFreeAsync(made.address, gpu.a);
    fact(again, "cuMemFreeAsync of a captured allocation twice in its capture");
    fact(cuStreamEndCapture(gpu.a, &made.graph), "ending the capture after that");
    CHECK(again != CUDA_SUCCESS);
    if (made.graph != NULL)
        destroy_graph(made.graph);
    made = make_graph(true, 0);
    launch_and_wait(made.exec);
    freed = cuMemFreeAsync(made.address, gpu.a);
    fact(freed, "cuMemFreeAsync of what its own graph has freed");
    if (freed != CUDA_SUCCESS)
        fact(cuMemFree_v2(made.address), "cuMemFree of what its own graph has freed");
    drop_graph(&made);
}

void unfreed_allocations_forbid_a_launch(void)
{
    struct memory_graph made = make_graph(false, 0);
    launch_and_wait(made.exec);
    EXPECT(cuGraphLaunch(made.exec, gpu.a), CUDA_ERROR_INVALID_VALUE);
    SUCCEEDS(cuMemFreeAsync(made.address, gpu.a));
    launch_and_wait(made.exec);
    SUCCEEDS(cuMemFreeAsync(made.address, gpu.a));
    CHECK(wrong_words() == 0);
    drop_graph(&made);
}

void launches_may_free_what_the_last_one_left(void)
{
    struct memory_graph made = make_graph(false, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    for (int i = 0; i < 3; i++)
        SUCCEEDS(cuGraphLaunch(made.exec, gpu.a));
    SUCCEEDS(cuMemFreeAsync(made.address, gpu.a));
    SUCCEEDS(cuGraphLaunch(made.exec, gpu.a));
    SUCCEEDS(cuMemFreeAsync(made.address, gpu.a));
    CHECK(wrong_words() == 0);
    drop_graph(&made);
}

/* --- frees outside -----------------------------------------------------------------------------*/

void unfreed_allocations_are_freed_in_order(void)
{
    struct memory_graph made = make_graph(false, 0);
    CUresult again;
    SUCCEEDS(cuGraphLaunch(made.exec, gpu.a));
    SUCCEEDS(cuMemFreeAsync(made.address, gpu.a));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    again = cuMemFreeAsync(made.address, gpu.a);
    fact(again, "cuMemFreeAsync of a graph's memory twice");
    CHECK(again != CUDA_SUCCESS);
    CHECK(wrong_words() == 0);
    drop_graph(&made);
}

/* Beside a kernel: whether cuMemFree waits as it does for plain memory. */
void unfreed_allocations_are_freed_plainly(void)
{
    struct memory_graph made = make_graph(false, 0);
    CUresult again;
    double start;
    launch_and_wait(made.exec);
    spin(gpu.b, 40);
    start = now_ms();
    SUCCEEDS(cuMemFree_v2(made.address));
    note("cuMemFree of a graph's memory beside a kernel of 40 ms took %.1f ms", now_ms() - start);
    SUCCEEDS(cuStreamSynchronize(gpu.b));
    again = cuMemFree_v2(made.address);
    fact(again, "cuMemFree of a graph's memory twice");
    CHECK(again != CUDA_SUCCESS);
    launch_and_wait(made.exec);
    SUCCEEDS(cuMemFree_v2(made.address));
    CHECK(wrong_words() == 0);
    drop_graph(&made);
}

/* What the driver tells of the address; without the pool's help, since the memory is not its. */
static void tell_of_address(CUdeviceptr address, const char *when)
{
    CUdeviceptr base = 0;
    CUcontext context = NULL;
    size_t size = 0;
    unsigned int type = 0;
    int ordinal = -1;
    unsigned long long id = 0;
    CUresult result = cuMemGetAddressRange_v2(&base, &size, address);
    fact(result, "cuMemGetAddressRange %s", when);
    if (result == CUDA_SUCCESS) {
        fact(base == address, "its base is the allocation's %s", when);
        fact((long long)size, "its size %s", when);
    }
    fact(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address),
         "CU_POINTER_ATTRIBUTE_MEMORY_TYPE %s", when);
    fact(type, "the memory's type %s", when);
    fact(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address),
         "CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL %s", when);
    fact(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address),
         "CU_POINTER_ATTRIBUTE_CONTEXT %s", when);
    fact(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address),
         "CU_POINTER_ATTRIBUTE_BUFFER_ID %s", when);
}

void allocations_before_a_launch(void)
{
    struct memory_graph made = {NULL, NULL, 0};
    CUresult freed;
    begin(CU_STREAM_CAPTURE_MODE_RELAXED);
    made.address = capture_use(BYTES);
    tell_of_address(made.address, "in the capture");
    made.graph = end_capture();
    tell_of_address(made.address, "before it is instantiated");
    made.exec = instantiate(made.graph);
    tell_of_address(made.address, "before a launch");
    freed = cuMemFreeAsync(made.address, gpu.a);
    fact(freed, "cuMemFreeAsync of a graph's memory before a launch");
    if (freed != CUDA_SUCCESS)
        fact(cuMemFree_v2(made.address), "cuMemFree of a graph's memory before a launch");
    launch_and_wait(made.exec);
    tell_of_address(made.address, "after a launch");
    SUCCEEDS(cuMemFreeAsync(made.address, gpu.a));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    tell_of_address(made.address, "after it was freed");
    drop_graph(&made);
    tell_of_address(made.address, "after its graph is gone");
}

/* --- several graphs ----------------------------------------------------------------------------*/

void unfreed_allocations_outlive_their_graph(void)
{
    struct memory_graph made = make_graph(false, 0);
    launch_and_wait(made.exec);
    drop_graph(&made);
    fill(gpu.a, made.address, WORDS, 9);
    spin_then_verify(gpu.a, 0, made.address, WORDS, 9);
    SUCCEEDS(cuMemFreeAsync(made.address, gpu.a));
    CHECK(wrong_words() == 0);
    SUCCEEDS(cuDeviceGraphMemTrim(gpu.device));
}

void other_graphs_free_allocations(void)
{
    struct memory_graph made = make_graph(false, 0);
    CUgraph freeing;
    CUgraphExec exec;
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    SUCCEEDS(cuMemFreeAsync(made.address, gpu.a));
    freeing = end_capture();
    exec = instantiate(freeing);
    for (int i = 0; i < 2; i++) {
        launch_and_wait(made.exec);
        launch_and_wait(exec);
    }
    CHECK(wrong_words() == 0);
    destroy_exec(exec);
    destroy_graph(freeing);
    drop_graph(&made);
}

/* Of cuMemAlloc; drivers differ on whether it may be captured. It is launched once. */
void captured_frees_of_plain_memory(void)
{
    CUdeviceptr plain = allocate(BYTES), base = 0;
    size_t size = 0;
    CUgraph graph;
    CUgraphExec exec = NULL;
    CUresult freed, instantiated, known;
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    freed = cuMemFreeAsync(plain, gpu.a);
    fact(freed, "cuMemFreeAsync of plain memory in a capture");
    graph = end_capture();
    instantiated = cuGraphInstantiateWithFlags(&exec, graph, 0);
    fact(instantiated, "instantiating a graph that frees plain memory");
    fact(cuMemGetAddressRange_v2(&base, &size, plain), "its range before a launch");
    if (instantiated == CUDA_SUCCESS) {
        fact(cuGraphLaunch(exec, gpu.a), "launching a graph that frees plain memory");
        SUCCEEDS(cuStreamSynchronize(gpu.a));
        destroy_exec(exec);
    }
    known = cuMemGetAddressRange_v2(&base, &size, plain);
    fact(known, "its range after a launch");
    destroy_graph(graph);
    if (known == CUDA_SUCCESS)
        SUCCEEDS(cuMemFree_v2(plain));
}

void graphs_with_memory_are_not_copied(void)
{
    struct memory_graph made = make_graph(true, 0);
    CUgraph parent = new_graph(), copy = NULL;
    CUgraphNode node = NULL;
    CUresult cloned = cuGraphClone(&copy, made.graph);
    CUresult added = cuGraphAddChildGraphNode(&node, parent, NULL, 0, made.graph);
    fact(cloned, "cuGraphClone of a graph with memory nodes");
    fact(added, "cuGraphAddChildGraphNode of a graph with memory nodes");
    CHECK(cloned != CUDA_SUCCESS && added != CUDA_SUCCESS);
    destroy_graph(parent);
    drop_graph(&made);
}

/* At a time. */
void graphs_with_memory_have_one_executable(void)
{
    struct memory_graph made = make_graph(true, 0);
    CUgraphExec second = NULL;
    CUresult result = cuGraphInstantiateWithFlags(&second, made.graph, 0);
    fact(result, "instantiating a graph with memory nodes twice");
    CHECK(result != CUDA_SUCCESS);
    launch_and_wait(made.exec);
    destroy_exec(made.exec);
    made.exec = instantiate(made.graph);
    launch_and_wait(made.exec);
    CHECK(wrong_words() == 0);
    drop_graph(&made);
}

void graphs_with_memory_in_captures(void)
{
    struct memory_graph made = make_graph(true, 0);
    CUgraph captured = NULL;
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    fact(cuGraphLaunch(made.exec, gpu.a), "a captured launch of a graph with memory nodes");
    fact(cuStreamEndCapture(gpu.a, &captured), "ending the capture of such a launch");
    if (captured != NULL)
        destroy_graph(captured);
    drop_graph(&made);
}

/* The executable keeps its address, or goes to the new graph's; it must not use freed memory. */
void graphs_with_memory_are_updated(void)
{
    struct memory_graph made = make_graph(true, 0);
    CUgraphExecUpdateResultInfo info = {0};
    CUgraph other;
    CUresult updated;
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    SUCCEEDS(cuMemFreeAsync(capture_use(BYTES), gpu.a));
    other = end_capture();
    updated = cuGraphExecUpdate_v2(made.exec, made.graph, &info);
    fact(updated, "cuGraphExecUpdate by the own graph, with memory nodes");
    fact(info.result, "its result");
    updated = cuGraphExecUpdate_v2(made.exec, other, &info);
    fact(updated, "cuGraphExecUpdate by another graph with memory nodes");
    fact(info.result, "the other's result");
    launch_and_wait(made.exec);
    CHECK(wrong_words() == 0);
    drop_graph(&made);
    destroy_graph(other);
}

/* The one way for such a graph to become a child; it wants driver 12.9. */
void moved_child_graphs_with_memory(void)
{
    CUgraph child, parent = new_graph();
    CUgraphNodeParams parameters = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
    CUgraphNode node = NULL;
    CUgraphExec exec = NULL;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;
    int version = 0;
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    SUCCEEDS(cuMemFreeAsync(capture_use(BYTES), gpu.a));
    child = end_capture();
    parameters.graph.graph = child;
    parameters.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
    SUCCEEDS(cuDriverGetVersion(&version));
    if (version >= 12090)
        result = cuGraphAddNode_v2(&node, parent, NULL, NULL, 0, &parameters);
    fact(result, "moving a child graph with memory nodes");
    if (result == CUDA_SUCCESS) {
        exec = instantiate(parent);
        launch_and_wait(exec);
        launch_and_wait(exec);
        CHECK(wrong_words() == 0);
        destroy_exec(exec);
    } else {
        destroy_graph(child);
    }
    destroy_graph(parent);
    SUCCEEDS(cuDeviceGraphMemTrim(gpu.device));
}

void spoiled_captures_give_allocations_back(void)
{
    CUdeviceptr address, base = 0;
    size_t size = 0;
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    address = capture_use(BYTES);
    EXPECT(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    fact(cuMemFreeAsync(address, gpu.a), "cuMemFreeAsync in a spoiled capture");
    END(false, "cuCtxSynchronize", CU_STREAM_CAPTURE_MODE_GLOBAL);
    fact(cuMemGetAddressRange_v2(&base, &size, address),
         "cuMemGetAddressRange of a spoiled capture's allocation");
    fact(cuMemFreeAsync(address, gpu.a), "cuMemFreeAsync of a spoiled capture's allocation");
    SUCCEEDS(cuStreamSynchronize(gpu.a));
}

/* --- how much ----------------------------------------------------------------------------------*/

static cuuint64_t attribute(CUgraphMem_attribute attribute)
{
    cuuint64_t bytes = 0;
    SUCCEEDS(cuDeviceGetGraphMemAttribute(gpu.device, attribute, &bytes));
    return bytes;
}

static void note_bytes(const char *when)
{
    note("%s: used %llu, reserved %llu, free %zu MiB", when,
         (unsigned long long)attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT),
         (unsigned long long)attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT),
         free_memory() / MIB);
}

/* After a launch, what it left is used and reserved; when all is gone and trimmed, no more than
 * before. Between, drivers may keep what they like. */
void graph_memory_is_counted(void)
{
    cuuint64_t used, reserved;
    struct memory_graph made;
    SUCCEEDS(cuDeviceGraphMemTrim(gpu.device));
    used = attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
    reserved = attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
    note_bytes("before");
    made = make_graph(false, 0);
    note_bytes("instantiated");
    launch_and_wait(made.exec);
    note_bytes("launched");
    CHECK(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) >= used + BYTES);
    CHECK(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) >= reserved + BYTES);
    SUCCEEDS(cuMemFreeAsync(made.address, gpu.a));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    note_bytes("freed");
    SUCCEEDS(cuDeviceGraphMemTrim(gpu.device));
    note_bytes("trimmed while the executable lives");
    destroy_exec(made.exec);
    destroy_graph(made.graph);
    note_bytes("destroyed");
    SUCCEEDS(cuDeviceGraphMemTrim(gpu.device));
    note_bytes("trimmed");
    CHECK(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == used);
    CHECK(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == reserved);
    CHECK(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) >= used + BYTES);
}

/* An upload takes what a launch needs, and is no launch: nothing is to be freed after it. */
void uploads_and_graph_memory(void)
{
    struct memory_graph made = make_graph(false, 0);
    SUCCEEDS(cuGraphUpload(made.exec, gpu.a));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    note_bytes("uploaded");
    fact(cuMemFreeAsync(made.address, gpu.a), "cuMemFreeAsync of a graph's memory after an upload");
    launch_and_wait(made.exec);
    SUCCEEDS(cuMemFreeAsync(made.address, gpu.a));
    CHECK(wrong_words() == 0);
    drop_graph(&made);
}
