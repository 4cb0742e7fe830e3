/*
 * Threads that together need nearly all that is left of the device's memory, each for one block at
 * a time: there is always enough for all of them, so that no allocation may fail, however the
 * threads' blocks are on their way between them and the driver.
 *
 * Arguments: threads=8 rounds=1500 most_mib=7 [kernels]
 */
#include "gpu.h"

enum { MAX_THREADS = 64, WORDS = 16 };

static CUcontext context;
static struct kernels kernels;
static unsigned long rounds, most_mib;
static bool with_kernels;
static unsigned long failures[MAX_THREADS];

static void work(unsigned int index)
{
    unsigned int state = index * 77 + 5;
    CUstream stream;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (unsigned long i = 0; i < rounds; i++) {
        size_t bytes = (next_random(&state) % most_mib + 1) * MIB;
        bytes -= next_random(&state) % 4096;
        CUdeviceptr block;
        if (cuMemAlloc_v2(&block, bytes) != CUDA_SUCCESS) {
            failures[index]++;
            continue;
        }
        if (with_kernels)
            fill(&kernels, stream, block, WORDS, index);
        CHECK(cuMemFree_v2(block));
    }
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuStreamDestroy_v2(stream));
}

/* Leaves a MiB more for each thread than it asks for, and a little for the driver itself. */
static CUdeviceptr take_what_is_not_needed(unsigned int threads)
{
    size_t left, total, needed = (threads * (most_mib + 1) + 4) * MIB;
    CUdeviceptr taken = 0;
    CHECK(cuMemGetInfo_v2(&left, &total));
    if (left > needed)
        CHECK(cuMemAlloc_v2(&taken, left - needed));
    return taken;
}

int main(int argc, char **argv)
{
    unsigned int threads = (unsigned int)argument(argc, argv, "threads", 8);
    struct worker workers[MAX_THREADS];
    unsigned long failed = 0;
    rounds = argument(argc, argv, "rounds", 1500);
    most_mib = argument(argc, argv, "most_mib", 7);
    with_kernels = asked_for(argc, argv, "kernels");
    if (threads < 1 || threads > MAX_THREADS || most_mib < 1)
        FAIL("threads=%u most_mib=%lu: must be 1 to %d, and at least 1", threads, most_mib,
             MAX_THREADS);

    context = open_primary();
    load_kernels(&kernels);
    CUdeviceptr taken = take_what_is_not_needed(threads);
    double start = now_ms();
    for (unsigned int i = 0; i < threads; i++)
        start_worker(&workers[i], work, i);
    for (unsigned int i = 0; i < threads; i++) {
        join_worker(&workers[i]);
        failed += failures[i];
    }
    printf("tight: %.2f ms, %u threads, %lu allocations each, %lu failed\n", now_ms() - start,
           threads, rounds, failed);
    if (taken)
        CHECK(cuMemFree_v2(taken));
    return failed != 0;
}
