/*
 * Work that the pool does not see, on another stream, is not overtaken where memory is to stay hot:
 * launches are all on one stream, but each block's last use before its free is a memset on a second
 * one, behind a long copy there. Then a block of that size is allocated, and filled on the first
 * stream at once: if it is the same memory, the memset must have come before.
 *
 * Arguments: rounds=300 copy_mib=256, and reuse-at-once, which frees nothing and takes the same
 * block again: that must be noticed.
 */
#include "gpu.h"

enum { WORDS = MIB / 4, LAUNCHES = 8, CHECKED = 4096 };

static struct kernels kernels;
static CUstream seen, unseen;
static CUdeviceptr from, to, counter;

/* One round: what it finds wrong. */
static unsigned long long reuse(unsigned int round, bool at_once, size_t copy_bytes)
{
    CUdeviceptr block, next;
    unsigned long long before, after;
    CHECK(cuMemAlloc_v2(&block, MIB));
    CHECK(cuMemcpyDtoH_v2(&before, counter, sizeof before));
    for (unsigned int i = 0; i < LAUNCHES; i++)
        fill(&kernels, seen, block, CHECKED, round);
    CHECK(cuStreamSynchronize(seen));
    CHECK(cuMemcpyDtoDAsync_v2(to, from, copy_bytes, unseen));
    CHECK(cuMemsetD32Async(block, ~round, WORDS, unseen));
    next = block;
    if (!at_once) {
        CHECK(cuMemFree_v2(block));
        CHECK(cuMemAlloc_v2(&next, MIB));
    }
    fill(&kernels, seen, next, CHECKED, round + 1);
    CHECK(cuCtxSynchronize());
    verify(&kernels, seen, next, CHECKED, round + 1, counter);
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyDtoH_v2(&after, counter, sizeof after));
    CHECK(cuMemFree_v2(next));
    return after - before;
}

int main(int argc, char **argv)
{
    unsigned long rounds = argument(argc, argv, "rounds", 300);
    size_t copy_bytes = argument(argc, argv, "copy_mib", 256) * MIB;
    bool at_once = asked_for(argc, argv, "reuse-at-once");
    unsigned long long wrong = 0;
    open_primary();
    load_kernels(&kernels);
    CHECK(cuStreamCreate(&seen, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&unseen, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAlloc_v2(&from, copy_bytes));
    CHECK(cuMemAlloc_v2(&to, copy_bytes));
    counter = new_counter();
    double start = now_ms();
    for (unsigned int i = 0; i < rounds; i++)
        wrong += reuse(i, at_once, copy_bytes);
    printf("hot_hazard: %.3f ms, %lu rounds, %llu wrong words\n", now_ms() - start, rounds, wrong);
    return wrong != 0;
}
