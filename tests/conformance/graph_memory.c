/*
 * Rows about nodes that allocate and free: what cuMemAllocAsync and cuMemFreeAsync become in a
 * capture. Memory of the pool's that takes their place must answer as they do, or better.
 *
 * NVIDIA's programming guide ("Graph Memory Nodes") and the description of cuGraphLaunch say when
 * such memory may be freed and by whom, when a graph may be launched again, and that such graphs
 * are neither cloned nor instantiated twice. With which error is what an H200 answers. What the
 * rest of the driver says of such an address are facts.
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

static struct memory_graph make_graph_of(size_t bytes, bool frees, unsigned long long flags)
{
    struct memory_graph made = {NULL, NULL, 0};
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    made.address = capture_use(bytes);
    if (frees)
        SUCCEEDS(cuMemFreeAsync(made.address, gpu.a));
    made.graph = end_capture();
    SUCCEEDS(cuGraphInstantiateWithFlags(&made.exec, made.graph, flags));
    return made;
}

static struct memory_graph make_graph(bool frees, unsigned long long flags)
{
    return make_graph_of(BYTES, frees, flags);
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
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    made.address = capture_use(BYTES);
    SUCCEEDS(cuMemFreeAsync(made.address, gpu.a));
    EXPECT(cuMemFreeAsync(made.address, gpu.a), CUDA_ERROR_INVALID_VALUE);
    destroy_graph(end_capture());
    made = make_graph(true, 0);
    launch_and_wait(made.exec);
    EXPECT(cuMemFreeAsync(made.address, gpu.a), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemFree_v2(made.address), CUDA_ERROR_INVALID_VALUE);
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
    SUCCEEDS(cuGraphLaunch(made.exec, gpu.a));
    SUCCEEDS(cuMemFreeAsync(made.address, gpu.a));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    EXPECT(cuMemFreeAsync(made.address, gpu.a), CUDA_ERROR_INVALID_VALUE);
    CHECK(wrong_words() == 0);
    drop_graph(&made);
}

/* Beside a kernel, for which cuMemFree does not wait, as it would for plain memory. */
void unfreed_allocations_are_freed_plainly(void)
{
    struct memory_graph made = make_graph(false, 0);
    double start;
    launch_and_wait(made.exec);
    spin(gpu.b, 40);
    start = now_ms();
    SUCCEEDS(cuMemFree_v2(made.address));
    TOOK(now_ms() - start, 40, false);
    SUCCEEDS(cuStreamSynchronize(gpu.b));
    EXPECT(cuMemFree_v2(made.address), CUDA_ERROR_INVALID_VALUE);
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
    begin(CU_STREAM_CAPTURE_MODE_RELAXED);
    made.address = capture_use(BYTES);
    tell_of_address(made.address, "in the capture");
    made.graph = end_capture();
    tell_of_address(made.address, "before it is instantiated");
    made.exec = instantiate(made.graph);
    tell_of_address(made.address, "before a launch");
    EXPECT(cuMemFreeAsync(made.address, gpu.a), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemFree_v2(made.address), CUDA_ERROR_INVALID_VALUE);
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
    EXPECT(cuGraphClone(&copy, made.graph), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT(cuGraphAddChildGraphNode(&node, parent, NULL, 0, made.graph), CUDA_ERROR_NOT_SUPPORTED);
    destroy_graph(parent);
    drop_graph(&made);
}

/* At a time. */
void graphs_with_memory_have_one_executable(void)
{
    struct memory_graph made = make_graph(true, 0);
    CUgraphExec second = NULL;
    EXPECT(cuGraphInstantiateWithFlags(&second, made.graph, 0), CUDA_ERROR_NOT_SUPPORTED);
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
    EXPECT(cuGraphLaunch(made.exec, gpu.a), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT(cuStreamEndCapture(gpu.a, &captured), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    launch_and_wait(made.exec);
    CHECK(wrong_words() == 0);
    drop_graph(&made);
}

/* The executable keeps its address, or goes to the new graph's; it must not use freed memory. */
void graphs_with_memory_are_updated(void)
{
    struct memory_graph made = make_graph(true, 0);
    CUgraphExecUpdateResultInfo info = {0};
    CUgraph other;
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    SUCCEEDS(cuMemFreeAsync(capture_use(BYTES), gpu.a));
    other = end_capture();
    SUCCEEDS(cuGraphExecUpdate_v2(made.exec, made.graph, &info));
    SUCCEEDS(cuGraphExecUpdate_v2(made.exec, other, &info));
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
    CUgraphExec exec;
    int version = 0;
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    SUCCEEDS(cuMemFreeAsync(capture_use(BYTES), gpu.a));
    child = end_capture();
    parameters.graph.graph = child;
    parameters.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
    SUCCEEDS(cuDriverGetVersion(&version));
    if (version >= 12090) {
        SUCCEEDS(cuGraphAddNode_v2(&node, parent, NULL, NULL, 0, &parameters));
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
    EXPECT(cuMemFreeAsync(address, gpu.a), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    END(false, "cuCtxSynchronize", CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT(cuMemGetAddressRange_v2(&base, &size, address), CUDA_ERROR_NOT_FOUND);
    EXPECT(cuMemFreeAsync(address, gpu.a), CUDA_ERROR_INVALID_VALUE);
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
 * before. Between, drivers may keep what they like. An H200 takes memory for a graph in pieces of
 * 32 MiB, at the first launch or upload, and counts them as used, also after they are freed, until
 * it is told to trim. The simulated driver takes just what the graph allocates, when that is
 * captured, and gives it back with the graph. */
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

/* Asking takes part in no capture, needs no context, and what was reserved is the device's loss. In
 * relaxed mode, trimming takes part in no capture either, and takes nothing that is live. */
void graph_memory_can_be_asked_about_at_any_time(void)
{
    enum { QUESTIONS = 1000 };
    SUCCEEDS(cuDeviceGraphMemTrim(gpu.device));
    cuuint64_t before = attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
    size_t free_before = free_memory();
    struct memory_graph made = make_graph(false, 0);
    launch_and_wait(made.exec);
    cuuint64_t reserved = attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) - before;
    CHECK(reserved >= BYTES);
    note("reserved %llu, the device lost %zu", (unsigned long long)reserved,
         free_before - free_memory());
    for (CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
         mode <= CU_STREAM_CAPTURE_MODE_RELAXED; mode++) {
        begin(mode);
        CHECK(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == before + reserved);
        CUstreamCaptureMode exchanged = CU_STREAM_CAPTURE_MODE_RELAXED;
        SUCCEEDS(cuThreadExchangeStreamCaptureMode(&exchanged));
        SUCCEEDS(cuDeviceGraphMemTrim(gpu.device));
        SUCCEEDS(cuThreadExchangeStreamCaptureMode(&exchanged));
        destroy_graph(end_capture());
    }
    CHECK(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) >= before + BYTES);
    reserved = attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) - before;
    CUcontext context;
    SUCCEEDS(cuCtxPopCurrent_v2(&context));
    CHECK(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == before + reserved);
    SUCCEEDS(cuCtxPushCurrent_v2(context));
    double began = now_ms();
    for (int i = 0; i < QUESTIONS; i++)
        attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
    note("a question takes %.0f ns", (now_ms() - began) * 1e6 / QUESTIONS);
    SUCCEEDS(cuMemFreeAsync(made.address, gpu.a));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    drop_graph(&made);
    CHECK(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == before);
}

/* Trimming takes the memory of graphs that no work uses, and waits for none. One graph's memory is
 * in use by running work, and a second graph is launched behind that. */
void graph_memory_is_trimmed_beside_work(void)
{
    enum { LARGE = 48 << 20 }; /* shares no chunk of the driver's with the others */
    SUCCEEDS(cuDeviceGraphMemTrim(gpu.device));
    struct memory_graph used = make_graph(false, 0);
    struct memory_graph queued = make_graph(true, 0);
    struct memory_graph unused = make_graph_of(LARGE, false, 0);
    struct memory_graph freed_late = make_graph_of(LARGE, false, 0);
    launch_and_wait(used.exec);
    launch_and_wait(freed_late.exec);
    launch_and_wait(queued.exec);
    launch_and_wait(unused.exec);
    SUCCEEDS(cuMemFreeAsync(unused.address, gpu.a));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    cuuint64_t reserved = attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
    spin_then_verify(gpu.a, 100, used.address, WORDS, 7);
    SUCCEEDS(cuGraphLaunch(queued.exec, gpu.a));
    SUCCEEDS(cuMemFreeAsync(freed_late.address, gpu.a));
    double began = now_ms();
    SUCCEEDS(cuDeviceGraphMemTrim(gpu.device));
    double took = now_ms() - began;
    cuuint64_t left = attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
    note("trimming beside work of 100 ms took %.1f ms: reserved %llu, then %llu", took,
         (unsigned long long)reserved, (unsigned long long)left);
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    spin_then_verify(gpu.a, 0, used.address, WORDS, 7);
    CHECK(wrong_words() == 0);
    CHECK(took < 50);
    SUCCEEDS(cuMemFreeAsync(used.address, gpu.a));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    drop_graph(&used);
    drop_graph(&queued);
    drop_graph(&unused);
    drop_graph(&freed_late);
}

/* An upload takes what a launch needs, and is no launch: nothing is to be freed after it. */
void uploads_and_graph_memory(void)
{
    struct memory_graph made = make_graph(false, 0);
    SUCCEEDS(cuGraphUpload(made.exec, gpu.a));
    SUCCEEDS(cuStreamSynchronize(gpu.a));
    note_bytes("uploaded");
    EXPECT(cuMemFreeAsync(made.address, gpu.a), CUDA_ERROR_INVALID_VALUE);
    launch_and_wait(made.exec);
    SUCCEEDS(cuMemFreeAsync(made.address, gpu.a));
    CHECK(wrong_words() == 0);
    drop_graph(&made);
}
