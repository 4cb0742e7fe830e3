/*
 * How much of the streams' overlap survives: every thread, on a stream of its own, repeats
 * allocating 1 MiB, a kernel of a given time, and the free. With "once" the buffers are made once,
 * which is as fast as it can be.
 *
 * Arguments: threads=16 rounds=200 us=200 [once]
 */
#include "gpu.h"

enum { MAX_THREADS = MAX_WORKERS, CHECKED_WORDS = 4096 };

static CUcontext context;
static struct kernels kernels;
static unsigned long rounds, kernel_us;
static bool buffers_made_once;
static unsigned long long mismatches[MAX_THREADS];

/* The memory that a thread got last still works as memory. */
static unsigned long long check_block(CUstream stream, unsigned int value)
{
    CUdeviceptr block, counter = new_counter();
    unsigned long long wrong;
    CHECK(cuMemAlloc_v2(&block, MIB));
    fill(&kernels, stream, block, CHECKED_WORDS, value);
    verify(&kernels, stream, block, CHECKED_WORDS, value, counter);
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemcpyDtoH_v2(&wrong, counter, sizeof wrong));
    CHECK(cuMemFree_v2(block));
    CHECK(cuMemFree_v2(counter));
    return wrong;
}

static void work(unsigned int index)
{
    CUstream stream;
    CUdeviceptr block = 0;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (buffers_made_once)
        CHECK(cuMemAlloc_v2(&block, MIB));
    spin(&kernels, stream, 1000);
    CHECK(cuStreamSynchronize(stream));

    meet();
    for (unsigned long i = 0; i < rounds; i++) {
        if (!buffers_made_once)
            CHECK(cuMemAlloc_v2(&block, MIB));
        spin(&kernels, stream, kernel_us * 1000);
        if (!buffers_made_once)
            CHECK(cuMemFree_v2(block));
    }
    CHECK(cuStreamSynchronize(stream));
    meet();

    if (buffers_made_once)
        CHECK(cuMemFree_v2(block));
    mismatches[index] = check_block(stream, index + 1);
    CHECK(cuStreamDestroy_v2(stream));
}

int main(int argc, char **argv)
{
    unsigned int threads = (unsigned int)argument(argc, argv, "threads", 16);
    unsigned long long wrong = 0;
    rounds = argument(argc, argv, "rounds", 200);
    kernel_us = argument(argc, argv, "us", 200);
    buffers_made_once = asked_for(argc, argv, "once");
    if (threads < 1 || threads > MAX_THREADS)
        FAIL("threads=%u: must be 1 to %d", threads, MAX_THREADS);

    context = open_primary();
    load_kernels(&kernels);
    double elapsed = time_workers(threads, work);
    for (unsigned int i = 0; i < threads; i++)
        wrong += mismatches[i];
    printf("overlap: %.2f ms, %u threads, %lu kernels of %lu us each, %s, %llu wrong words\n",
           elapsed, threads, rounds, kernel_us,
           buffers_made_once ? "buffers made once" : "alloc and free", wrong);
    return wrong == 0 ? 0 : 1;
}
