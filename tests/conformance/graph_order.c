/*
 * Rows about what captured streams come after: which nodes the driver tells, and the way back
 * through a graph that is being captured. The pool asks so whether one use of a block comes after
 * another.
 */
#include "graphs.h"

struct standing {
    cuuint64_t capture;
    CUgraph graph;
    size_t count;
    CUgraphNode nodes[4];
};

/* Where the stream stands, without the data of edges, as both versions tell it. */
static struct standing standing_of(CUstream stream)
{
    struct standing standing = {.count = 0}, again = {.count = 0};
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUgraphNode *nodes = NULL, *told = NULL;
    SUCCEEDS(cuStreamGetCaptureInfo_v2(stream, &status, &standing.capture, &standing.graph, &nodes,
                                       &standing.count));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && standing.count <= 4);
    for (size_t i = 0; i < standing.count && i < 4; i++)
        standing.nodes[i] = nodes[i];
    SUCCEEDS(cuStreamGetCaptureInfo_v3(stream, &status, &again.capture, &again.graph, &told, NULL,
                                       &again.count));
    CHECK(again.capture == standing.capture && again.graph == standing.graph &&
          again.count == standing.count);
    return standing;
}

static bool stands_at(const struct standing *standing, CUgraphNode node)
{
    bool found = false;
    for (size_t i = 0; i < standing->count && i < 4; i++)
        found = found || standing->nodes[i] == node;
    return found;
}

/* How many nodes it comes after directly, and the first of them. */
static size_t before(CUgraphNode node, CUgraphNode *first)
{
    CUgraphNode nodes[4] = {NULL, NULL, NULL, NULL};
    size_t count = 0, room = 4;
    SUCCEEDS(cuGraphNodeGetDependencies(node, NULL, &count));
    SUCCEEDS(cuGraphNodeGetDependencies(node, nodes, &room));
    CHECK(room == count && count <= 4);
    *first = nodes[0];
    return count;
}

static void order(CUstream first, CUstream second)
{
    CUevent event = new_event();
    SUCCEEDS(cuEventRecord(event, first));
    SUCCEEDS(cuStreamWaitEvent(second, event, 0));
    SUCCEEDS(cuEventDestroy_v2(event));
}

/* After nothing, a node, and the next one, which comes after that. Asking spares the capture, in
 * every mode. */
void captured_streams_tell_their_nodes(void)
{
    for (unsigned int mode = 0; mode < MODES; mode++) {
        struct standing standing;
        CUgraphNode first, found = NULL;
        begin(mode);
        CHECK(standing_of(gpu.a).count == 0);
        spin(gpu.a, 0);
        standing = standing_of(gpu.a);
        CHECK(standing.count == 1);
        first = standing.nodes[0];
        CHECK(before(first, &found) == 0);
        spin(gpu.a, 0);
        standing = standing_of(gpu.a);
        CHECK(standing.count == 1 && standing.nodes[0] != first);
        CHECK(before(standing.nodes[0], &found) == 1 && found == first);
        destroy_graph(end_capture());
    }
}

/* A stream that forks stands where the event was recorded, and one that joins at both ends. */
void forks_and_joins_tell_their_nodes(void)
{
    struct standing fork, here, there;
    CUgraphNode found = NULL;
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    spin(gpu.a, 0);
    order(gpu.a, gpu.b);
    fork = standing_of(gpu.b);
    CHECK(fork.count == 1 && fork.nodes[0] == standing_of(gpu.a).nodes[0]);
    CHECK(fork.capture == standing_of(gpu.a).capture);
    spin(gpu.a, 0);
    spin(gpu.b, 0);
    here = standing_of(gpu.a);
    there = standing_of(gpu.b);
    CHECK(here.nodes[0] != there.nodes[0]);
    CHECK(before(here.nodes[0], &found) == 1 && found == fork.nodes[0]);
    CHECK(before(there.nodes[0], &found) == 1 && found == fork.nodes[0]);
    order(gpu.b, gpu.a);
    fork = standing_of(gpu.a);
    CHECK(fork.count == 2 && stands_at(&fork, here.nodes[0]) && stands_at(&fork, there.nodes[0]));
    CHECK(standing_of(gpu.b).count == 1);
    spin(gpu.a, 0);
    CHECK(before(standing_of(gpu.a).nodes[0], &found) == 2);
    destroy_graph(end_capture());
}

/* No two captures have the same number, one after the other or side by side. */
void captures_have_numbers(void)
{
    CUstream stream = new_stream();
    cuuint64_t first, second;
    CUgraph graph;
    begin(CU_STREAM_CAPTURE_MODE_RELAXED);
    first = standing_of(gpu.a).capture;
    SUCCEEDS(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    second = standing_of(stream).capture;
    CHECK(first != second);
    SUCCEEDS(cuStreamEndCapture(stream, &graph));
    destroy_graph(graph);
    destroy_graph(end_capture());
    begin(CU_STREAM_CAPTURE_MODE_RELAXED);
    CHECK(standing_of(gpu.a).capture != first && standing_of(gpu.a).capture != second);
    destroy_graph(end_capture());
    SUCCEEDS(cuStreamDestroy_v2(stream));
}

/* A stream that the program sets back stands where it has been set. */
void streams_that_are_set_back_tell_so(void)
{
    struct standing at;
    CUgraph graph = NULL;
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    spin(gpu.a, 0);
    at = standing_of(gpu.a);
    spin(gpu.a, 0);
    SUCCEEDS(
        cuStreamUpdateCaptureDependencies(gpu.a, at.nodes, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    CHECK(standing_of(gpu.a).count == 1 && standing_of(gpu.a).nodes[0] == at.nodes[0]);
    fact(cuStreamEndCapture(gpu.a, &graph), "ending a capture whose stream was set back");
    if (graph != NULL)
        destroy_graph(graph);
}

/* Which memory pool a device has, and the context of a stream that captures, may be asked in
 * relaxed mode beside any capture, by the thread that captures. */
void questions_about_pools_spare_captures(void)
{
    for (unsigned int mode = 0; mode < MODES; mode++) {
        CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
        CUmemoryPool standard = NULL, current = NULL;
        CUcontext context = NULL;
        begin(mode);
        SUCCEEDS(cuThreadExchangeStreamCaptureMode(&relaxed));
        SUCCEEDS(cuDeviceGetDefaultMemPool(&standard, gpu.device));
        SUCCEEDS(cuDeviceGetMemPool(&current, gpu.device));
        SUCCEEDS(cuStreamGetCtx(gpu.a, &context));
        SUCCEEDS(cuThreadExchangeStreamCaptureMode(&relaxed));
        CHECK(standard == current && context == gpu.context);
        CHECK(status_of(gpu.a) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
        destroy_graph(end_capture());
    }
}

static void spin_early(CUstream stream)
{
    unsigned long long nanoseconds = 0;
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION};
    CUlaunchConfig config = {.gridDimX = 1,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 1,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = stream,
                             .attrs = &attribute,
                             .numAttrs = 1};
    attribute.value.programmaticStreamSerializationAllowed = 1;
    SUCCEEDS(cuLaunchKernelEx(&config, gpu.spin, (void *[]){&nanoseconds}, NULL));
}

/* A kernel that may begin before the one before it has ended comes after that by an edge with data:
 * whether the driver refuses to tell what it comes after, so that nobody takes it to be behind. The
 * simulated driver has no such edges. */
void early_launches_in_captures(void)
{
    struct standing standing;
    size_t count = 0;
    begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    spin(gpu.a, 0);
    spin_early(gpu.a);
    standing = standing_of(gpu.a);
    CHECK(standing.count == 1);
    fact(cuGraphNodeGetDependencies(standing.nodes[0], NULL, &count),
         "asking what a kernel that may begin early comes after");
    fact((long long)count, "what it comes after");
    destroy_graph(end_capture());
}
