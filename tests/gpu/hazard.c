/*
 * Is memory that is recycled under running kernels ever overwritten too early? The data answers,
 * not the calls' return times.
 *
 * In each round a thread allocates a block, writes a value of its own into it in one of several
 * ways, starts a kernel that waits a while and then looks for that value, and frees the block at
 * once, with the kernel still in front of it. The driver's cuMemFree waits for the kernel; whatever
 * stands in for it must not give the block to anyone who writes before the kernel has looked.
 *
 * With "captures" another thread captures, instantiates and launches graphs all the time. With
 * "reuse-at-once" the program recycles blocks itself, without any wait: that must be seen to fail,
 * or this test sees nothing.
 *
 * Arguments: threads=16 streams=16 rounds=60 us=300 [captures] [reuse-at-once]
 */
#include "gpu.h"

#include <stdatomic.h>

enum { MAX_THREADS = 64, MAX_STREAMS = 64, LARGEST_WORDS = 1 << 19 };

static const unsigned int block_words[] = {128, 5000, 65536, 262144, LARGEST_WORDS};
enum { SIZES = sizeof block_words / sizeof block_words[0] };

static CUcontext context;
static struct kernels kernels;
static unsigned long streams_per_thread, rounds, kernel_us;
static bool with_captures, reuse_at_once;
static unsigned long long mismatches[MAX_THREADS];
static atomic_bool all_done;
static atomic_ulong graphs_launched;

/* The list of the experiment that must fail: one free block of each size, given out at once.
 * The lock guards the list and nothing else. */
static pthread_mutex_t careless_lock = PTHREAD_MUTEX_INITIALIZER;
static CUdeviceptr careless_blocks[SIZES];

static CUdeviceptr take_block(unsigned int size)
{
    CUdeviceptr block = 0;
    if (reuse_at_once) {
        pthread_mutex_lock(&careless_lock);
        block = careless_blocks[size];
        careless_blocks[size] = 0;
        pthread_mutex_unlock(&careless_lock);
        if (block != 0)
            tell_allocated(CUDA_SUCCESS, block, block_words[size] * sizeof(unsigned int));
    }
    if (block == 0)
        CHECK(cuMemAlloc_v2(&block, block_words[size] * sizeof(unsigned int)));
    return block;
}

static void give_block(unsigned int size, CUdeviceptr block)
{
    if (reuse_at_once) {
        tell_freed(block);
        pthread_mutex_lock(&careless_lock);
        CUdeviceptr previous = careless_blocks[size];
        careless_blocks[size] = block;
        pthread_mutex_unlock(&careless_lock);
        block = previous;
    }
    if (block != 0)
        CHECK(cuMemFree_v2(block));
}

static void fill_words(unsigned int *words, unsigned int count, unsigned int value)
{
    for (unsigned int i = 0; i < count; i++)
        words[i] = value;
}

/* Writes value into the whole block, before anything that follows on the stream, in the way that
 * the round asks for. */
static void write_block(CUstream stream, CUdeviceptr block, unsigned int words, unsigned int value,
                        unsigned long round, unsigned int *pageable)
{
    switch (round % 4) {
    case 0:
        fill(&kernels, stream, block, words, value);
        break;
    case 1:
        CHECK(cuMemsetD32Async(block, value, words, stream));
        break;
    case 2:
        fill_words(pageable, words, value);
        CHECK(cuMemcpyHtoDAsync_v2(block, pageable, words * sizeof value, stream));
        break;
    default:
        /* Neither is ordered before a non-blocking stream: that the memset has ended is said by
         * the synchronise. */
        CHECK(cuMemsetD32_v2(block, value, words));
        CHECK(cuStreamSynchronize(CU_STREAM_LEGACY));
    }
}

/* Captured work of other threads forbids cuMemAlloc to those that do not say they know. */
static void allow_calls_during_captures(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CHECK(cuThreadExchangeStreamCaptureMode(&mode));
}

static void work(unsigned int index)
{
    CUstream streams[MAX_STREAMS] = {NULL};
    unsigned int random = index * 7919u + 1;
    unsigned int *pageable = malloc(LARGEST_WORDS * sizeof *pageable);
    if (pageable == NULL)
        FAIL("out of memory");
    CHECK(cuCtxSetCurrent(context));
    if (with_captures)
        allow_calls_during_captures();
    for (unsigned long i = 0; i < streams_per_thread; i++)
        CHECK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    CUdeviceptr counter = new_counter();

    for (unsigned long round = 0; round < rounds; round++) {
        CUstream stream = streams[next_random(&random) % streams_per_thread];
        unsigned int size = next_random(&random) % SIZES;
        unsigned int value = (index << 20 | (unsigned int)round) + 1;
        CUdeviceptr block = take_block(size);
        write_block(stream, block, block_words[size], value, round, pageable);
        spin_then_verify(&kernels, stream, kernel_us * 1000, block, block_words[size], value,
                         counter);
        give_block(size, block);
    }
    for (unsigned long i = 0; i < streams_per_thread; i++)
        CHECK(cuStreamSynchronize(streams[i]));
    CHECK(cuMemcpyDtoH_v2(&mismatches[index], counter, sizeof mismatches[index]));
    CHECK(cuMemFree_v2(counter));
    for (unsigned long i = 0; i < streams_per_thread; i++)
        CHECK(cuStreamDestroy_v2(streams[i]));
    free(pageable);
}

/* Captures a graph that fills and verifies a block, in the given mode, and runs it. */
static void capture_and_launch(CUstream stream, CUstreamCaptureMode mode, CUdeviceptr block,
                               unsigned int value, CUdeviceptr counter)
{
    CUgraph graph;
    CUgraphExec executable;
    CHECK(cuStreamBeginCapture_v2(stream, mode));
    fill(&kernels, stream, block, 4096, value);
    usleep(200);
    verify(&kernels, stream, block, 4096, value, counter);
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    CHECK(cuGraphLaunch(executable, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuGraphExecDestroy(executable));
    CHECK(cuGraphDestroy(graph));
}

static void capture_all_the_time(unsigned int index)
{
    CUstream stream;
    CUdeviceptr block;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAlloc_v2(&block, 4096 * sizeof(unsigned int)));
    CUdeviceptr counter = new_counter();
    unsigned int launches = 0;
    while (!atomic_load(&all_done)) {
        capture_and_launch(stream, launches % 3, block, launches + 1, counter);
        launches++;
    }
    CHECK(cuMemcpyDtoH_v2(&mismatches[index], counter, sizeof mismatches[index]));
    CHECK(cuMemFree_v2(counter));
    CHECK(cuMemFree_v2(block));
    CHECK(cuStreamDestroy_v2(stream));
    atomic_store(&graphs_launched, launches);
}

int main(int argc, char **argv)
{
    unsigned int threads = (unsigned int)argument(argc, argv, "threads", 16);
    struct worker workers[MAX_THREADS], capturer;
    unsigned long long wrong = 0;
    streams_per_thread = argument(argc, argv, "streams", 16);
    rounds = argument(argc, argv, "rounds", 60);
    kernel_us = argument(argc, argv, "us", 300);
    with_captures = asked_for(argc, argv, "captures");
    reuse_at_once = asked_for(argc, argv, "reuse-at-once");
    if (threads < 1 || threads >= MAX_THREADS || streams_per_thread < 1 ||
        streams_per_thread > MAX_STREAMS)
        FAIL("threads=%u must be 1 to %d, streams=%lu 1 to %d", threads, MAX_THREADS - 1,
             streams_per_thread, MAX_STREAMS);

    context = open_primary();
    load_kernels(&kernels);
    double start = now_ms();
    for (unsigned int i = 0; i < threads; i++)
        start_worker(&workers[i], work, i);
    if (with_captures)
        start_worker(&capturer, capture_all_the_time, threads);
    for (unsigned int i = 0; i < threads; i++)
        join_worker(&workers[i]);
    atomic_store(&all_done, true);
    if (with_captures)
        join_worker(&capturer);
    double elapsed = now_ms() - start;
    for (unsigned int i = 0; i <= threads; i++)
        wrong += mismatches[i];
    if (with_captures && atomic_load(&graphs_launched) == 0)
        FAIL("no graph was captured while the threads ran");
    printf("hazard: %.2f ms, %u threads, %lu streams each, %lu rounds, %lu graphs, "
           "%llu wrong words\n",
           elapsed, threads, streams_per_thread, rounds * threads, atomic_load(&graphs_launched),
           wrong);
    return wrong == 0 ? 0 : 1;
}
