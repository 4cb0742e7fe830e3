/*
 * Captures in all modes, while another thread allocates and frees: what succeeds without the pool
 * succeeds with it, what the driver forbids is forbidden, and the graphs compute what they should.
 *
 * In each combination of capture mode and of the other thread's own mode, one thread captures a
 * graph while the other allocates, writes, verifies and frees a block; then the graph is replayed
 * while the other thread goes on.
 *
 * Arguments: rounds=20 replays=20
 */
#include "gpu.h"

#include <stdatomic.h>

enum { WORDS = 65536 };

static const char *const mode_names[] = {"global", "thread-local", "relaxed"};

static CUcontext context;
static struct kernels kernels;
static unsigned long rounds, replays;
static pthread_barrier_t step;

/* Written by the other thread, read after the barrier that follows. */
static CUstreamCaptureMode other_mode;
static CUresult other_alloc_result;
static unsigned long long other_mismatches;
static unsigned int blocks_meanwhile; /* that the other thread has used */

static atomic_bool replays_are_over;

/* One block's life; the answer of its allocation. */
static CUresult use_a_block(CUstream stream, size_t bytes, unsigned int value, CUdeviceptr counter)
{
    CUdeviceptr block;
    CUresult result = cuMemAlloc_v2(&block, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    fill(&kernels, stream, block, 1024, value);
    spin_then_verify(&kernels, stream, 20000, block, 1024, value, counter);
    CHECK(cuMemFree_v2(block));
    return CUDA_SUCCESS;
}

static void other_thread(unsigned int index)
{
    CUstream stream;
    unsigned int value = index;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUdeviceptr counter = new_counter();
    for (;;) {
        pthread_barrier_wait(&step); /* a mode has been set */
        CUstreamCaptureMode mode = other_mode;
        if (mode > CU_STREAM_CAPTURE_MODE_RELAXED)
            break;
        CHECK(cuThreadExchangeStreamCaptureMode(&mode));
        pthread_barrier_wait(&step); /* the capture has begun */
        other_alloc_result = use_a_block(stream, MIB, ++value, counter);
        pthread_barrier_wait(&step); /* the capture may end */
        pthread_barrier_wait(&step); /* it has ended */
        while (!atomic_load(&replays_are_over)) {
            value++;
            CHECK(use_a_block(stream, MIB << (value % 3), value, counter));
        }
        pthread_barrier_wait(&step); /* this round is over */
    }
    blocks_meanwhile = value - index;
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemcpyDtoH_v2(&other_mismatches, counter, sizeof other_mismatches));
}

/* While a capture in global mode goes on, a thread that is not relaxed may not allocate, and its
 * attempt ends the capture. */
static bool allocation_is_forbidden(CUstreamCaptureMode capture, CUstreamCaptureMode other)
{
    return capture == CU_STREAM_CAPTURE_MODE_GLOBAL && other == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

static void expect(const char *what, CUresult found, CUresult expected, CUstreamCaptureMode capture,
                   CUstreamCaptureMode other)
{
    if (found != expected)
        FAIL("capture mode %s, other thread %s: %s answers %u, not %u", mode_names[capture],
             mode_names[other], what, found, expected);
}

/* Captures: fill, verify, fill with another value, verify. Returns the graph, or NULL where the
 * other thread's allocation ended the capture, as it must. */
static CUgraph capture(CUstream stream, CUdeviceptr block, CUdeviceptr counter,
                       CUstreamCaptureMode mode, CUstreamCaptureMode mode_of_other)
{
    CUgraph graph = NULL;
    bool forbidden = allocation_is_forbidden(mode, mode_of_other);
    other_mode = mode_of_other;
    atomic_store(&replays_are_over, false);
    pthread_barrier_wait(&step);
    CHECK(cuStreamBeginCapture_v2(stream, mode));
    fill(&kernels, stream, block, WORDS, 1);
    verify(&kernels, stream, block, WORDS, 1, counter);
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step);
    expect("cuMemAlloc", other_alloc_result,
           forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS, mode, mode_of_other);
    if (!forbidden) {
        fill(&kernels, stream, block, WORDS, 2);
        verify(&kernels, stream, block, WORDS, 2, counter);
    }
    expect("cuStreamEndCapture", cuStreamEndCapture(stream, &graph),
           forbidden ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS, mode, mode_of_other);
    pthread_barrier_wait(&step);
    return forbidden ? NULL : graph;
}

static void replay(CUstream stream, CUgraph graph)
{
    CUgraphExec executable;
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    for (unsigned long i = 0; i < replays; i++)
        CHECK(cuGraphLaunch(executable, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuGraphExecDestroy(executable));
    CHECK(cuGraphDestroy(graph));
}

/* The capturing thread itself: in relaxed mode it may allocate; in the others the attempt fails
 * and ends the capture. */
static void allocate_while_capturing(CUstream stream, CUstreamCaptureMode mode)
{
    CUgraph graph = NULL;
    CUdeviceptr block;
    CUstreamCaptureMode own = mode;
    bool forbidden = mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    CHECK(cuThreadExchangeStreamCaptureMode(&own));
    CHECK(cuStreamBeginCapture_v2(stream, mode));
    expect("cuMemAlloc in the capturing thread", cuMemAlloc_v2(&block, MIB),
           forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS, mode, mode);
    expect("cuStreamEndCapture after that", cuStreamEndCapture(stream, &graph),
           forbidden ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS, mode, mode);
    CHECK(cuThreadExchangeStreamCaptureMode(&own));
    if (!forbidden) {
        CHECK(cuMemFree_v2(block));
        CHECK(cuGraphDestroy(graph));
    }
}

int main(int argc, char **argv)
{
    struct worker other;
    CUstream stream;
    CUdeviceptr block;
    unsigned long graphs = 0, forbidden = 0;
    rounds = argument(argc, argv, "rounds", 20);
    replays = argument(argc, argv, "replays", 20);

    context = open_primary();
    load_kernels(&kernels);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAlloc_v2(&block, WORDS * sizeof(unsigned int)));
    CUdeviceptr counter = new_counter();
    pthread_barrier_init(&step, NULL, 2);
    double start = now_ms();
    start_worker(&other, other_thread, 1000);
    for (unsigned long i = 0; i < rounds; i++) {
        for (CUstreamCaptureMode mode = 0; mode < 3; mode++) {
            for (CUstreamCaptureMode mode_of_other = 0; mode_of_other < 3; mode_of_other++) {
                CUgraph graph = capture(stream, block, counter, mode, mode_of_other);
                if (graph != NULL)
                    replay(stream, graph);
                *(graph != NULL ? &graphs : &forbidden) += 1;
                atomic_store(&replays_are_over, true);
                pthread_barrier_wait(&step);
            }
            allocate_while_capturing(stream, mode);
        }
    }
    other_mode = CU_STREAM_CAPTURE_MODE_RELAXED + 1;
    pthread_barrier_wait(&step);
    join_worker(&other);
    double elapsed = now_ms() - start;
    unsigned long long wrong = read_counter(counter) + other_mismatches;
    printf("capture: %.2f ms, %lu graphs replayed %lu times, %lu captures ended by an allocation, "
           "%u blocks used meanwhile, %llu wrong words\n",
           elapsed, graphs, replays, forbidden, blocks_meanwhile, wrong);
    return wrong == 0 ? 0 : 1;
}
