/*
 * Rows about captures that go on or end otherwise than by their own cuStreamEndCapture: what
 * becomes of the graph's user objects, and which calls beside a capture fail or spoil it.
 */
#define _GNU_SOURCE
#include <stdio.h>

#include "graphs.h"

static const char *const mode_names[MODES] = {"global", "thread-local", "relaxed"};

/* --- captures into a graph of the program's ----------------------------------------------------*/

static void begin_to_graph(CUgraph graph)
{
    SUCCEEDS(
        cuStreamBeginCaptureToGraph(gpu.a, graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

/* Objects that the graph had before, and that it was given during the capture. */
struct before_and_during {
    struct object *before, *during;
};

static struct before_and_during begin_with_objects(CUgraph graph)
{
    struct before_and_during objects = {object_kept_by(graph), NULL};
    begin_to_graph(graph);
    CHECK(graph_being_captured(gpu.a) == graph);
    objects.during = object_kept_by(graph);
    spin(gpu.a, 0);
    return objects;
}

void captures_to_graphs_keep_objects(void)
{
    CUgraph graph = new_graph(), ended;
    struct before_and_during objects = begin_with_objects(graph);
    ended = end_capture();
    CHECK(ended == graph);
    CHECK(stays(objects.before) && !is_gone(objects.during));
    destroy_graph(graph);
    CHECK(goes(objects.before) && goes(objects.during));
}

/* A capture that fails takes the program's graph with it: its objects go, and the handle must not
 * be used again. */
void spoiled_captures_to_graphs(void)
{
    CUgraph graph = new_graph(), ended = NULL;
    struct before_and_during objects = begin_with_objects(graph);
    EXPECT(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(stays(objects.before) && !is_gone(objects.during));
    EXPECT(cuStreamEndCapture(gpu.a, &ended), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(ended == NULL);
    CHECK(goes(objects.before) && goes(objects.during));
}

void unjoined_captures_to_graphs(void)
{
    CUgraph graph = new_graph(), ended = NULL;
    struct before_and_during objects = begin_with_objects(graph);
    CUevent fork = new_event();
    SUCCEEDS(cuEventRecord(fork, gpu.a));
    SUCCEEDS(cuStreamWaitEvent(gpu.b, fork, 0));
    spin(gpu.b, 0);
    EXPECT(cuStreamEndCapture(gpu.a, &ended), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    CHECK(ended == NULL);
    CHECK(goes(objects.before) && goes(objects.during));
    SUCCEEDS(cuEventDestroy_v2(fork));
}

/* A capture that does not begin, since one goes on, spoils neither the graph nor that one. */
void refused_captures_to_graphs(void)
{
    CUgraph graph = new_graph();
    struct object *object = object_kept_by(graph);
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT(cuStreamBeginCaptureToGraph(gpu.a, graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL),
           CUDA_ERROR_ILLEGAL_STATE);
    destroy_graph(end_capture());
    CHECK(stays(object));
    destroy_graph(graph);
    CHECK(goes(object));
}

/* --- captures that nobody ends -----------------------------------------------------------------*/

/* No capture forbids calls any longer. */
static void all_captures_are_over(void)
{
    SUCCEEDS(cuMemFree_v2(allocate(4096)));
}

void captures_of_destroyed_streams(void)
{
    for (unsigned int mode = 0; mode < MODES; mode++) {
        CUstream stream = new_stream();
        struct object *object;
        SUCCEEDS(cuStreamBeginCapture_v2(stream, mode));
        object = object_kept_by(graph_being_captured(stream));
        spin(stream, 0);
        SUCCEEDS(cuStreamDestroy_v2(stream));
        CHECK(goes(object));
        all_captures_are_over();
    }
}

struct elsewhere {
    CUstream stream;
    unsigned int mode;
    struct object *object;
};

static void begin_elsewhere(void *argument)
{
    struct elsewhere *elsewhere = argument;
    SUCCEEDS(cuStreamBeginCapture_v2(elsewhere->stream, elsewhere->mode));
    elsewhere->object = object_kept_by(graph_being_captured(elsewhere->stream));
    spin(elsewhere->stream, 0);
}

/* The thread that began the capture ends; another one ends the capture, which fails where that is
 * not relaxed, and is its end all the same. */
void captures_of_ended_threads(void)
{
    for (unsigned int mode = 0; mode < MODES; mode++) {
        bool relaxed = mode == CU_STREAM_CAPTURE_MODE_RELAXED;
        struct elsewhere elsewhere = {new_stream(), mode, NULL};
        CUgraph graph = NULL;
        in_another_thread(begin_elsewhere, &elsewhere);
        CHECK(stays(elsewhere.object));
        CHECK(status_of(elsewhere.stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
        EXPECT(cuStreamEndCapture(elsewhere.stream, &graph),
               relaxed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        CHECK((graph != NULL) == relaxed);
        if (graph != NULL)
            destroy_graph(graph);
        CHECK(goes(elsewhere.object));
        SUCCEEDS(cuStreamDestroy_v2(elsewhere.stream));
        all_captures_are_over();
    }
}

/* That spoils the capture, which lives on until it is ended on its own stream. */
void captures_ended_on_the_wrong_stream(void)
{
    CUevent fork = new_event(), join = new_event();
    CUgraph graph = NULL;
    struct object *object;
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    object = object_kept_by(graph_being_captured(gpu.a));
    SUCCEEDS(cuEventRecord(fork, gpu.a));
    SUCCEEDS(cuStreamWaitEvent(gpu.b, fork, 0));
    spin(gpu.b, 0);
    SUCCEEDS(cuEventRecord(join, gpu.b));
    SUCCEEDS(cuStreamWaitEvent(gpu.a, join, 0));
    EXPECT(cuStreamEndCapture(gpu.b, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    CHECK(graph == NULL);
    CHECK(stays(object));
    EXPECT(cuStreamEndCapture(gpu.a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(graph == NULL);
    CHECK(status_of(gpu.a) == CU_STREAM_CAPTURE_STATUS_NONE);
    CHECK(status_of(gpu.b) == CU_STREAM_CAPTURE_STATUS_NONE);
    CHECK(goes(object));
    SUCCEEDS(cuEventDestroy_v2(fork));
    SUCCEEDS(cuEventDestroy_v2(join));
}

struct ending {
    CUgraph graph;
    CUresult result;
};

static void end_elsewhere(void *argument)
{
    struct ending *ending = argument;
    ending->result = cuStreamEndCapture(gpu.a, &ending->graph);
}

/* Another thread than the one that began it; relaxed captures may be ended by any. Others are over,
 * too, and leave no graph. */
void captures_ended_by_the_wrong_thread(void)
{
    for (unsigned int mode = 0; mode < MODES; mode++) {
        bool strict = mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        struct ending ending = {NULL, CUDA_SUCCESS};
        struct object *object;
        begin(mode);
        object = object_kept_by(graph_being_captured(gpu.a));
        in_another_thread(end_elsewhere, &ending);
        EXPECT(ending.result, strict ? CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD : CUDA_SUCCESS);
        CHECK(status_of(gpu.a) == CU_STREAM_CAPTURE_STATUS_NONE);
        CHECK((ending.graph == NULL) == strict);
        if (!strict) {
            CHECK(stays(object));
            destroy_graph(ending.graph);
        }
        CHECK(goes(object));
    }
}

/* --- calls beside captures ---------------------------------------------------------------------*/

/* What the calls use; all made before the capture, and new each time. */
static struct {
    CUdeviceptr block, async;
    CUevent query, recorded;
    struct neighbour other;
    CUevent others_event;
    CUgraph graph;
    struct object *object, *kept;
    void *pinned;
    /* made by the calls */
    CUdeviceptr new_block, new_async;
    CUevent new_event;
    CUstream new_stream;
    void *new_pinned;
} beside;

static CUresult allocates(void)
{
    return cuMemAlloc_v2(&beside.new_block, MIB);
}

static CUresult allocates_pitch(void)
{
    size_t pitch;
    return cuMemAllocPitch_v2(&beside.new_block, &pitch, 1000, 100, 4);
}

static CUresult asks_for_free_memory(void)
{
    size_t available, total;
    return cuMemGetInfo_v2(&available, &total);
}

static CUresult frees(void)
{
    CUresult result = cuMemFree_v2(beside.block);
    if (result == CUDA_SUCCESS)
        beside.block = 0;
    return result;
}

static CUresult allocates_async(void)
{
    return cuMemAllocAsync(&beside.new_async, MIB, gpu.b);
}

static CUresult frees_async(void)
{
    CUresult result = cuMemFreeAsync(beside.async, gpu.b);
    if (result == CUDA_SUCCESS)
        beside.async = 0;
    return result;
}

static CUresult frees_plain_async(void)
{
    CUresult result = cuMemFreeAsync(beside.block, gpu.b);
    if (result == CUDA_SUCCESS)
        beside.block = 0;
    return result;
}

static CUresult queries(void)
{
    return cuEventQuery(beside.query);
}

static CUresult queries_stream(void)
{
    return cuStreamQuery(gpu.b);
}

static CUresult records(void)
{
    return cuEventRecord(beside.recorded, gpu.b);
}

static CUresult pins(void)
{
    return cuMemHostAlloc(&beside.new_pinned, 4096, 0);
}

static CUresult copies_from_pinned(void)
{
    return cuMemcpyHtoDAsync_v2(beside.block, beside.pinned, 64, gpu.b);
}

static CUresult waits(void)
{
    return cuStreamWaitEvent(gpu.b, beside.query, 0);
}

static CUresult creates_event(void)
{
    return cuEventCreate(&beside.new_event, CU_EVENT_DISABLE_TIMING);
}

static CUresult creates_stream(void)
{
    return cuStreamCreate(&beside.new_stream, CU_STREAM_NON_BLOCKING);
}

static CUresult fences_another_context(void)
{
    return cuCtxRecordEvent(beside.other.context, beside.others_event);
}

static CUresult synchronizes_stream(void)
{
    return cuStreamSynchronize(gpu.b);
}

static CUresult creates_object(void)
{
    beside.object = new_object();
    return CUDA_SUCCESS;
}

static CUresult retains_object(void)
{
    return cuGraphRetainUserObject(beside.graph, beside.object->handle, 1, 0);
}

static CUresult releases_object(void)
{
    return cuGraphReleaseUserObject(beside.graph, beside.kept->handle, 1);
}

/* Whether the call may be made beside a capture that is not relaxed, by a thread that is not, and
 * spares the capture; or fails and spoils it. A thread-local capture minds only the calls of its
 * own thread. */
enum safety { SAFE, UNSAFE };

static const struct call {
    const char *name;
    CUresult (*make)(void);
    enum safety safety;
} calls[] = {
    {"cuMemAlloc", allocates, UNSAFE},
    {"cuMemAllocPitch", allocates_pitch, UNSAFE},
    {"cuMemFree", frees, UNSAFE},
    {"cuMemGetInfo", asks_for_free_memory, SAFE},
    {"cuMemAllocAsync on another stream", allocates_async, UNSAFE},
    {"cuMemFreeAsync on another stream", frees_async, UNSAFE},
    {"cuMemFreeAsync of plain memory on another stream", frees_plain_async, UNSAFE},
    {"cuEventQuery", queries, UNSAFE},
    {"cuStreamQuery of another stream", queries_stream, UNSAFE},
    {"cuEventRecord on another stream", records, SAFE},
    {"cuMemHostAlloc", pins, UNSAFE},
    {"cuMemcpyHtoDAsync from pinned memory on another stream", copies_from_pinned, SAFE},
    {"cuStreamWaitEvent on another stream", waits, SAFE},
    {"cuEventCreate", creates_event, SAFE},
    {"cuStreamCreate", creates_stream, SAFE},
    {"cuCtxRecordEvent on another context", fences_another_context, SAFE},
    {"cuStreamSynchronize of another stream", synchronizes_stream, UNSAFE},
    {"cuUserObjectCreate", creates_object, SAFE},
    {"cuGraphRetainUserObject on another graph", retains_object, SAFE},
    {"cuGraphReleaseUserObject on another graph", releases_object, SAFE},
};

static void prepare(void)
{
    beside.block = allocate(MIB);
    SUCCEEDS(cuMemAllocAsync(&beside.async, MIB, gpu.b));
    SUCCEEDS(cuMemHostAlloc(&beside.pinned, 4096, 0));
    beside.query = new_event();
    beside.recorded = new_event();
    beside.graph = new_graph();
    beside.object = new_object();
    beside.kept = object_kept_by(beside.graph);
    SUCCEEDS(cuEventRecord(beside.query, gpu.b));
    SUCCEEDS(cuStreamSynchronize(gpu.b));
}

static void tidy(struct object *first)
{
    if (beside.block != 0)
        SUCCEEDS(cuMemFree_v2(beside.block));
    if (beside.new_block != 0)
        SUCCEEDS(cuMemFree_v2(beside.new_block));
    if (beside.async != 0)
        SUCCEEDS(cuMemFreeAsync(beside.async, gpu.b));
    if (beside.new_async != 0)
        SUCCEEDS(cuMemFreeAsync(beside.new_async, gpu.b));
    if (beside.new_pinned != NULL)
        SUCCEEDS(cuMemFreeHost(beside.new_pinned));
    SUCCEEDS(cuMemFreeHost(beside.pinned));
    if (beside.new_event != NULL)
        SUCCEEDS(cuEventDestroy_v2(beside.new_event));
    if (beside.new_stream != NULL)
        SUCCEEDS(cuStreamDestroy_v2(beside.new_stream));
    SUCCEEDS(cuEventDestroy_v2(beside.query));
    SUCCEEDS(cuEventDestroy_v2(beside.recorded));
    destroy_graph(beside.graph);
    SUCCEEDS(cuUserObjectRelease(first->handle, 1));
    if (beside.object != first)
        SUCCEEDS(cuUserObjectRelease(beside.object->handle, 1));
    SUCCEEDS(cuStreamSynchronize(gpu.b));
    beside.new_block = beside.new_async = 0;
    beside.new_event = NULL;
    beside.new_pinned = NULL;
    beside.new_stream = NULL;
}

struct making {
    const struct call *call;
    bool relaxed;
    CUresult result;
};

static void make(void *argument)
{
    struct making *making = argument;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (making->relaxed)
        SUCCEEDS(cuThreadExchangeStreamCaptureMode(&mode));
    making->result = making->call->make();
    if (making->relaxed)
        SUCCEEDS(cuThreadExchangeStreamCaptureMode(&mode));
}

/* The call in its thread's own mode or in a relaxed one, by the capturing thread or another. */
static void try_call(const struct call *call, unsigned int mode, bool elsewhere, bool relaxed)
{
    bool allowed = call->safety == SAFE || mode == CU_STREAM_CAPTURE_MODE_RELAXED || relaxed ||
                   (elsewhere && mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    struct making making = {call, relaxed, CUDA_SUCCESS};
    struct object *object;
    CUgraph graph = NULL;
    CUresult ended;
    char how[160];
    prepare();
    object = beside.object;
    begin(mode);
    spin(gpu.a, 0);
    if (elsewhere)
        in_another_thread(make, &making);
    else
        make(&making);
    ended = cuStreamEndCapture(gpu.a, &graph);
    snprintf(how, sizeof how, "%s beside a %s capture%s%s", call->name, mode_names[mode],
             elsewhere ? " of another thread" : "", relaxed ? ", relaxed" : "");
    if (making.result != (allowed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED))
        fail("%s: %s", how, name_of(making.result));
    if (ended != (allowed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED))
        fail("ending the capture after %s: %s", how, name_of(ended));
    if (graph != NULL)
        destroy_graph(graph);
    tidy(object);
}

static void try_all_calls(bool elsewhere, bool relaxed)
{
    beside.other = open_neighbour();
    SUCCEEDS(cuCtxSetCurrent(beside.other.context));
    beside.others_event = new_event();
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (unsigned int mode = 0; mode < MODES; mode++)
            try_call(&calls[i], mode, elsewhere, relaxed);
    close_neighbour(&beside.other);
}

void calls_beside_captures(void)
{
    try_all_calls(false, false);
}

void calls_beside_other_threads_captures(void)
{
    try_all_calls(true, false);
}

void relaxed_calls_beside_captures(void)
{
    try_all_calls(false, true);
}

void relaxed_calls_beside_other_threads_captures(void)
{
    try_all_calls(true, true);
}

/* --- allocating beside captures in relaxed mode, as a pool may ---------------------------------*/

static void allocate_and_free_relaxed(void *unused)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUdeviceptr block = 0;
    (void)unused;
    SUCCEEDS(cuThreadExchangeStreamCaptureMode(&mode));
    SUCCEEDS(cuMemAlloc_v2(&block, MIB));
    SUCCEEDS(cuMemFree_v2(block));
    SUCCEEDS(cuThreadExchangeStreamCaptureMode(&mode));
}

/* They work, and the capture is spoiled no more than it was. */
void relaxed_allocations_beside_spoiled_captures(void)
{
    for (unsigned int mode = 0; mode < MODES; mode++) {
        CUgraph graph = NULL;
        struct object *object;
        begin(mode);
        object = object_kept_by(graph_being_captured(gpu.a));
        EXPECT(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        allocate_and_free_relaxed(NULL);
        in_another_thread(allocate_and_free_relaxed, NULL);
        CHECK(status_of(gpu.a) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        CHECK(stays(object));
        EXPECT(cuStreamEndCapture(gpu.a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        CHECK(graph == NULL && goes(object));
        all_captures_are_over();
    }
}

/* What is captured may use it at once, and launches find it where it was. */
void captures_use_memory_allocated_meanwhile(void)
{
    enum { WORDS = 4096 };
    for (unsigned int mode = 0; mode < MODES; mode++) {
        CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
        CUdeviceptr block = 0;
        CUgraphExec exec;
        CUgraph graph;
        begin(mode);
        SUCCEEDS(cuThreadExchangeStreamCaptureMode(&relaxed));
        SUCCEEDS(cuMemAlloc_v2(&block, WORDS * 4));
        SUCCEEDS(cuThreadExchangeStreamCaptureMode(&relaxed));
        fill(gpu.a, block, WORDS, mode + 1);
        spin_then_verify(gpu.a, 0, block, WORDS, mode + 1);
        graph = end_capture();
        exec = instantiate(graph);
        destroy_graph(graph);
        for (int i = 0; i < 3; i++)
            launch_and_wait(exec);
        CHECK(wrong_words() == 0);
        destroy_exec(exec);
        SUCCEEDS(cuMemFree_v2(block));
    }
}

/* The thread's own stream by its handle, in functions that are not for it in particular. */
void captures_of_the_threads_own_stream(void)
{
    for (unsigned int mode = 0; mode < MODES; mode++) {
        CUgraph graph = NULL;
        struct object *object;
        SUCCEEDS(cuStreamBeginCapture_v2(CU_STREAM_PER_THREAD, mode));
        object = object_kept_by(graph_being_captured(CU_STREAM_PER_THREAD));
        spin(CU_STREAM_PER_THREAD, 0);
        SUCCEEDS(cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph));
        CHECK(stays(object));
        destroy_graph(graph);
        CHECK(goes(object));
    }
}

/* The destructor may run while a capture goes on, which it spares. */
void objects_that_go_beside_captures(void)
{
    for (unsigned int mode = 0; mode < MODES; mode++) {
        struct object *object;
        begin(mode);
        object = new_object();
        SUCCEEDS(cuUserObjectRelease(object->handle, 1));
        CHECK(goes(object));
        CHECK(status_of(gpu.a) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
        destroy_graph(end_capture());
    }
}

static CUgraphExec executable_with_object(struct object **object, bool launched)
{
    CUgraph graph = kernel_graph(0);
    *object = object_kept_by(graph);
    CUgraphExec exec = instantiate(graph);
    destroy_graph(graph);
    if (launched)
        launch_and_wait(exec);
    return exec;
}

/* Where the mode forbids such calls it is refused and ends the capture; the executable stays. */
static void destroy_beside_capture(unsigned int mode, bool launched)
{
    bool strict = mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    struct object *kept_on;
    CUgraph captured = NULL;
    CUgraphExec exec = executable_with_object(&kept_on, launched);
    begin(mode);
    EXPECT(cuGraphExecDestroy(exec), strict ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS);
    EXPECT(cuStreamEndCapture(gpu.a, &captured),
           strict ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
    if (strict) {
        CHECK(stays(kept_on));
        destroy_exec(exec);
    } else {
        destroy_graph(captured);
    }
    CHECK(goes(kept_on));
}

/* A graph that is destroyed beside a capture lets go of its objects then. */
void graphs_that_go_beside_captures(void)
{
    for (unsigned int mode = 0; mode < MODES; mode++) {
        CUgraph graph = new_graph();
        struct object *object = object_kept_by(graph);
        begin(mode);
        destroy_graph(graph);
        CHECK(goes(object));
        CHECK(status_of(gpu.a) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
        destroy_graph(end_capture());
        destroy_beside_capture(mode, false);
        destroy_beside_capture(mode, true);
    }
}
