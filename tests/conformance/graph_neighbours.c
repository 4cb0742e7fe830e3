/*
 * Rows about what may be done and asked beside a capture without its minding, on whichever kind of
 * stream it is, and about contexts that end while their graphs hold objects.
 */
#include "graphs.h"

/* ---- captures on blocking streams, and on the thread's own
 * -------------------------------------*/

static CUstream neighbours_stream;

/* Memory of all kinds comes and goes in relaxed mode, also on a stream of one's own. */
static void use_memory_relaxed(void *unused)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUdeviceptr block = 0;
    (void)unused;
    SUCCEEDS(cuThreadExchangeStreamCaptureMode(&mode));
    SUCCEEDS(cuMemAlloc_v2(&block, MIB));
    SUCCEEDS(cuMemFree_v2(block));
    SUCCEEDS(cuMemAlloc_v2(&block, MIB));
    SUCCEEDS(cuMemFreeAsync(block, neighbours_stream));
    SUCCEEDS(cuStreamSynchronize(neighbours_stream));
    SUCCEEDS(cuThreadExchangeStreamCaptureMode(&mode));
}

static void use_memory_beside_capture(CUstream stream, unsigned int mode)
{
    CUgraph graph = NULL;
    SUCCEEDS(cuStreamBeginCapture_v2(stream, mode));
    spin(stream, 0);
    use_memory_relaxed(NULL);
    in_another_thread(use_memory_relaxed, NULL);
    CHECK(status_of(stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    SUCCEEDS(cuStreamEndCapture(stream, &graph));
    destroy_graph(graph);
}

void relaxed_allocations_beside_blocking_captures(void)
{
    CUstream blocking = NULL;
    SUCCEEDS(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    neighbours_stream = new_stream();
    for (unsigned int mode = 0; mode < MODES; mode++)
        use_memory_beside_capture(blocking, mode);
    SUCCEEDS(cuStreamDestroy_v2(neighbours_stream));
    SUCCEEDS(cuStreamDestroy_v2(blocking));
}

void relaxed_allocations_beside_captures_of_the_threads_own(void)
{
    neighbours_stream = new_stream();
    for (unsigned int mode = 0; mode < MODES; mode++)
        use_memory_beside_capture(CU_STREAM_PER_THREAD, mode);
    SUCCEEDS(cuStreamDestroy_v2(neighbours_stream));
}

/* The legacy stream does not tell of its captures beside that, and the question spoils nothing. */
void asking_the_legacy_stream_spares_blocking_captures(void)
{
    CUstream blocking = NULL;
    SUCCEEDS(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    for (unsigned int mode = 0; mode < MODES; mode++) {
        CUstreamCaptureStatus status;
        cuuint64_t number;
        CUgraph graph = NULL;
        SUCCEEDS(cuStreamBeginCapture_v2(blocking, mode));
        EXPECT(cuStreamGetCaptureInfo_v2(CU_STREAM_LEGACY, &status, &number, NULL, NULL, NULL),
               CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        CHECK(status_of(blocking) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
        SUCCEEDS(cuStreamEndCapture(blocking, &graph));
        destroy_graph(graph);
    }
    SUCCEEDS(cuStreamDestroy_v2(blocking));
}

/* ---- questions
 * ---------------------------------------------------------------------------------*/

static CUstreamCaptureStatus found_elsewhere;

static void ask_elsewhere(void *unused)
{
    (void)unused;
    found_elsewhere = status_of(gpu.a);
}

/* Whoever asks whether a stream is captured, or its capture has failed, spoils nothing. */
void asking_about_captures_spares_them(void)
{
    for (unsigned int mode = 0; mode < MODES; mode++) {
        CUgraph graph = NULL;
        begin(mode);
        in_another_thread(ask_elsewhere, NULL);
        CHECK(found_elsewhere == CU_STREAM_CAPTURE_STATUS_ACTIVE);
        CHECK(status_of(gpu.b) == CU_STREAM_CAPTURE_STATUS_NONE);
        destroy_graph(end_capture());
        begin(mode);
        EXPECT(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        in_another_thread(ask_elsewhere, NULL);
        CHECK(found_elsewhere == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        EXPECT(cuStreamEndCapture(gpu.a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
}

/* What a thread may ask in its own mode while it captures. */
void questions_about_memory_spare_captures(void)
{
    CUdeviceptr block = allocate(MIB), base = 0;
    for (unsigned int mode = 0; mode < MODES; mode++) {
        CUdevice device = -1;
        size_t bytes = 0;
        begin(mode);
        SUCCEEDS(cuMemGetAddressRange_v2(&base, &bytes, block + 100));
        SUCCEEDS(cuCtxGetDevice(&device));
        CHECK(base == block && bytes == MIB && device == gpu.device);
        CHECK(status_of(gpu.a) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
        destroy_graph(end_capture());
    }
    SUCCEEDS(cuMemFree_v2(block));
}

/* An address inside a block, which the driver refuses anyway: whether the capture is looked at
 * first, and spoilt. What is cut out of a segment begins at such an address, and its free asks the
 * driver so. */
void interior_frees_beside_captures(void)
{
    CUdeviceptr block = allocate(MIB);
    for (unsigned int mode = 0; mode < MODES; mode++) {
        bool relaxed = mode == CU_STREAM_CAPTURE_MODE_RELAXED;
        CUgraph graph = NULL;
        begin(mode);
        EXPECT(cuMemFree_v2(block + 4096),
               relaxed ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        CHECK(status_of(gpu.a) ==
              (relaxed ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_INVALIDATED));
        EXPECT(cuStreamEndCapture(gpu.a, &graph),
               relaxed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        if (graph != NULL)
            destroy_graph(graph);
    }
    SUCCEEDS(cuMemFree_v2(block));
}

/* ---- contexts that end
 * -------------------------------------------------------------------------*/

/* Neither graph nor executable is used after that, not even to destroy it. */
void objects_of_graphs_whose_context_ends(void)
{
    CUcontext context = NULL;
    CUgraph graph = NULL;
    struct object *object;
    SUCCEEDS(cuCtxCreate_v2(&context, 0, gpu.device));
    CUstream stream = new_stream();
    SUCCEEDS(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    object = object_kept_by(graph_being_captured(stream));
    SUCCEEDS(cuStreamEndCapture(stream, &graph));
    SUCCEEDS(cuCtxDestroy_v2(context));
    SUCCEEDS(cuCtxSetCurrent(gpu.context));
    fact(goes(object), "objects that go with the context of their graph");
}
