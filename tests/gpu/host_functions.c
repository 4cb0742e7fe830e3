/*
 * Programs that launch host functions all the time, beside allocations and frees: in every round of
 * a thread, blocks are allocated, kernels use them, a host function runs after each so many
 * kernels, and the blocks are freed.
 *
 * With functions=20 kernels=20 blocks=8 it is much like a training step of JAX.
 *
 * Arguments: threads=1 rounds=2000 functions=1 kernels=1 blocks=1 kernel_us=20 function_us=5
 *   least_kib=64 most_kib=32768
 */
#include "gpu.h"

#include <stdatomic.h>

enum { MAX_THREADS = MAX_WORKERS, MAX_BLOCKS = 256, WORDS = 512 };

static CUcontext context;
static struct kernels kernels;
static CUdeviceptr mismatches;
static unsigned long rounds, functions, kernels_each, blocks_each, kernel_us, function_us;
static size_t least_kib, most_kib;
static atomic_ulong calls;

static void host_function(void *unused)
{
    double end = now_ms() + (double)function_us * 1e-3;
    (void)unused;
    while (now_ms() < end)
        continue;
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
}

static void run_round(CUstream stream, unsigned int *state, unsigned int value)
{
    CUdeviceptr blocks[MAX_BLOCKS];
    for (unsigned long i = 0; i < blocks_each; i++) {
        size_t range = (most_kib - least_kib) / 64 + 1;
        CHECK(cuMemAlloc_v2(&blocks[i], (least_kib + next_random(state) % range * 64) << 10));
        fill(&kernels, stream, blocks[i], WORDS, value);
    }
    for (unsigned long i = 0; i < kernels_each || i < functions; i++) {
        if (i < kernels_each)
            spin_then_verify(&kernels, stream, kernel_us * 1000, blocks[i % blocks_each], WORDS,
                             value, mismatches);
        if (i < functions)
            CHECK(cuLaunchHostFunc(stream, host_function, NULL));
    }
    for (unsigned long i = 0; i < blocks_each; i++)
        CHECK(cuMemFree_v2(blocks[i]));
}

static void run_thread(unsigned int index)
{
    unsigned int state = index + 1;
    CUstream stream;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (unsigned int i = 0; i < 20; i++)
        run_round(stream, &state, i);
    CHECK(cuStreamSynchronize(stream));
    meet();
    for (unsigned long i = 0; i < rounds; i++)
        run_round(stream, &state, (unsigned int)i);
    CHECK(cuStreamSynchronize(stream));
    meet();
    CHECK(cuStreamDestroy_v2(stream));
}

int main(int argc, char **argv)
{
    unsigned int threads = (unsigned int)argument(argc, argv, "threads", 1);
    rounds = argument(argc, argv, "rounds", 2000);
    functions = argument(argc, argv, "functions", 1);
    kernels_each = argument(argc, argv, "kernels", 1);
    blocks_each = argument(argc, argv, "blocks", 1);
    kernel_us = argument(argc, argv, "kernel_us", 20);
    function_us = argument(argc, argv, "function_us", 5);
    least_kib = argument(argc, argv, "least_kib", 64);
    most_kib = argument(argc, argv, "most_kib", 32768);
    if (threads < 1 || threads > MAX_THREADS || blocks_each < 1 || blocks_each > MAX_BLOCKS ||
        least_kib < 4 || most_kib < least_kib)
        FAIL("threads=%u blocks=%lu least_kib=%zu most_kib=%zu: must be 1 to %d, 1 to %d, at least "
             "4 and no less than that",
             threads, blocks_each, least_kib, most_kib, MAX_THREADS, MAX_BLOCKS);

    context = open_primary();
    load_kernels(&kernels);
    mismatches = new_counter();
    double ms = time_workers(threads, run_thread);
    printf("rate: %.1f rounds/s\n", (double)rounds * threads * 1000 / ms);
    printf("host_functions: %.2f ms, %lu host functions, %llu wrong words\n", ms,
           atomic_load(&calls), read_counter(mismatches));
    return 0;
}
