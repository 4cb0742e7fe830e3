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
    fact(ended == graph, "cuStreamEndCapture gives the graph that was captured to");
    CHECK(stays(objects.before) && !is_gone(objects.during));
    destroy_graph(graph);
    CHECK(goes(objects.before) && goes(objects.during));
}

/* After a capture to it has failed. Where the driver has destroyed the graph, its objects are gone,
 * and the handle must not be used again. */
static void tell_of_graph_after(const char *what, CUgraph graph, struct before_and_during objects)
{
    bool before = !goes_soon(objects.before), during = !is_gone(objects.during);
    fact(before, "%s leaves the program's graph its objects", what);
    fact(during, "%s leaves the program's graph the objects of the capture", what);
    if (before) {
        fact(count_type(graph, CU_GRAPH_NODE_TYPE_KERNEL), "kernels in the graph after %s", what);
        destroy_graph(graph);
    }
    CHECK(goes(objects.before) && goes(objects.during));
}

void spoiled_captures_to_graphs(void)
{
    CUgraph graph = new_graph(), ended = NULL;
    struct before_and_during objects = begin_with_objects(graph);
    EXPECT(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    fact(!is_gone(objects.before), "objects of the graph stay while its capture is spoiled");
    EXPECT(cuStreamEndCapture(gpu.a, &ended), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(ended == NULL);
    tell_of_graph_after("a spoiled capture", graph, objects);
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
    tell_of_graph_after("an unjoined capture", graph, objects);
    SUCCEEDS(cuEventDestroy_v2(fork));
}

/* A capture that does not begin, since one goes on, spoils neither the graph nor that one. */
void refused_captures_to_graphs(void)
{
    CUgraph graph = new_graph(), ended = NULL;
    struct object *object = object_kept_by(graph);
    CUresult result;
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    result =
        cuStreamBeginCaptureToGraph(gpu.a, graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL);
    fact(result, "cuStreamBeginCaptureToGraph on a capturing stream");
    CHECK(result != CUDA_SUCCESS);
    fact(cuStreamEndCapture(gpu.a, &ended), "ending the capture that went on");
    if (ended != NULL)
        destroy_graph(ended);
    CHECK(stays(object));
    destroy_graph(graph);
    CHECK(goes(object));
}

/* --- captures that nobody ends -----------------------------------------------------------------*/

/* Whether a capture still forbids calls; a relaxed one forbids none. */
static void tell_if_over(const char *after, unsigned int mode)
{
    CUdeviceptr block = 0;
    CUresult result = cuMemAlloc_v2(&block, 4096);
    fact(result, "cuMemAlloc after %s with a %s capture", after, mode_names[mode]);
    if (result == CUDA_SUCCESS)
        SUCCEEDS(cuMemFree_v2(block));
}

void captures_of_destroyed_streams(void)
{
    for (unsigned int mode = 0; mode < MODES; mode++) {
        CUstream stream = new_stream();
        struct object *object;
        SUCCEEDS(cuStreamBeginCapture_v2(stream, mode));
        object = object_kept_by(graph_being_captured(stream));
        spin(stream, 0);
        fact(cuStreamDestroy_v2(stream), "cuStreamDestroy of a stream with a %s capture",
             mode_names[mode]);
        fact(goes_soon(object), "the %s capture's objects go with its stream", mode_names[mode]);
        tell_if_over("destroying a stream", mode);
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

/* The thread that began the capture ends; another one tries to end the capture, and then destroys
 * the stream. */
void captures_of_ended_threads(void)
{
    for (unsigned int mode = 0; mode < MODES; mode++) {
        struct elsewhere elsewhere = {new_stream(), mode, NULL};
        CUstreamCaptureStatus status = 99;
        CUgraph graph = NULL;
        in_another_thread(begin_elsewhere, &elsewhere);
        fact(stays(elsewhere.object), "the %s capture of an ended thread keeps its objects",
             mode_names[mode]);
        fact(cuStreamIsCapturing(elsewhere.stream, &status),
             "cuStreamIsCapturing of an ended thread's %s capture", mode_names[mode]);
        fact(status, "the status of an ended thread's %s capture", mode_names[mode]);
        fact(cuStreamEndCapture(elsewhere.stream, &graph),
             "another thread's cuStreamEndCapture of an ended thread's %s capture",
             mode_names[mode]);
        if (graph != NULL)
            destroy_graph(graph);
        fact(goes_soon(elsewhere.object), "that was the end of the %s capture's objects",
             mode_names[mode]);
        fact(cuStreamDestroy_v2(elsewhere.stream),
             "cuStreamDestroy after an ended thread's %s capture", mode_names[mode]);
        CHECK(goes(elsewhere.object));
        tell_if_over("the end of a thread", mode);
    }
}

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
    fact(stays(object), "an end on the wrong stream leaves the capture its objects");
    fact(cuStreamEndCapture(gpu.a, &graph), "ending the capture on the right stream after that");
    CHECK(status_of(gpu.a) == CU_STREAM_CAPTURE_STATUS_NONE);
    CHECK(status_of(gpu.b) == CU_STREAM_CAPTURE_STATUS_NONE);
    if (graph != NULL)
        destroy_graph(graph);
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

/* Another thread than the one that began it; relaxed captures may be ended by any. */
void captures_ended_by_the_wrong_thread(void)
{
    for (unsigned int mode = 0; mode < MODES; mode++) {
        bool strict = mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        struct ending ending = {NULL, CUDA_SUCCESS};
        struct object *object;
        begin(mode);
        object = object_kept_by(graph_being_captured(gpu.a));
        in_another_thread(end_elsewhere, &ending);
        CHECK(ending.result == (strict ? CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD : CUDA_SUCCESS));
        if (strict)
            fact(cuStreamEndCapture(gpu.a, &ending.graph),
                 "ending a %s capture after another thread tried", mode_names[mode]);
        CHECK(status_of(gpu.a) == CU_STREAM_CAPTURE_STATUS_NONE);
        CHECK(ending.graph == NULL || stays(object));
        if (ending.graph != NULL)
            destroy_graph(ending.graph);
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
    struct object *object;
    /* made by the calls */
    CUdeviceptr new_block, new_async;
    CUevent new_event;
    CUstream new_stream;
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

/* What is known: whether the call may be made beside a strict capture in its own mode, in which
 * case it spares the capture, or fails and spoils it. In a relaxed capture, or after
 * cuThreadExchangeStreamCaptureMode(RELAXED), unsafe calls are known to succeed. */
enum safety { NOT_KNOWN, SAFE, UNSAFE };

static const struct call {
    const char *name;
    CUresult (*make)(void);
    enum safety safety;
} calls[] = {
    {"cuMemAlloc", allocates, UNSAFE},
    {"cuMemAllocPitch", allocates_pitch, NOT_KNOWN},
    {"cuMemFree", frees, UNSAFE},
    {"cuMemGetInfo", asks_for_free_memory, SAFE},
    {"cuMemAllocAsync on another stream", allocates_async, UNSAFE},
    {"cuMemFreeAsync on another stream", frees_async, NOT_KNOWN},
    {"cuMemFreeAsync of plain memory on another stream", frees_plain_async, NOT_KNOWN},
    {"cuEventQuery", queries, UNSAFE},
    {"cuStreamQuery of another stream", queries_stream, NOT_KNOWN},
    {"cuEventRecord on another stream", records, SAFE},
    {"cuStreamWaitEvent on another stream", waits, SAFE},
    {"cuEventCreate", creates_event, NOT_KNOWN},
    {"cuStreamCreate", creates_stream, SAFE},
    {"cuCtxRecordEvent on another context", fences_another_context, NOT_KNOWN},
    {"cuStreamSynchronize of another stream", synchronizes_stream, NOT_KNOWN},
    {"cuUserObjectCreate", creates_object, NOT_KNOWN},
    {"cuGraphRetainUserObject on another graph", retains_object, NOT_KNOWN},
};

static void prepare(void)
{
    beside.block = allocate(MIB);
    SUCCEEDS(cuMemAllocAsync(&beside.async, MIB, gpu.b));
    beside.query = new_event();
    beside.recorded = new_event();
    beside.graph = new_graph();
    beside.object = new_object();
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
    fact(making.result, "%s", how);
    fact(ended, "ending the capture after %s", how);
    if (call->safety != NOT_KNOWN && (making.result == CUDA_SUCCESS) != allowed)
        fail("%s: expected %s, got %s", how, allowed ? "CUDA_SUCCESS" : "an error",
             name_of(making.result));
    if (call->safety != NOT_KNOWN && (ended == CUDA_SUCCESS) != allowed)
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
