/*
 * A phase in which a program only allocates, as it does when it starts: every allocation is the
 * driver's. What the pool does besides must cost next to nothing.
 *
 * Arguments: count=30000 bytes=4096, or mixed for sizes of 512 bytes up to that many. Nothing is
 * freed before the clock is stopped.
 */
#include "gpu.h"

enum { WARM = 64 };

static size_t next_size(bool mixed, size_t bytes, unsigned int *state)
{
    return mixed ? 512 + next_random(state) % (bytes - 511) : bytes;
}

int main(int argc, char **argv)
{
    unsigned long count = argument(argc, argv, "count", 30000);
    size_t bytes = argument(argc, argv, "bytes", 4096);
    bool mixed = asked_for(argc, argv, "mixed");
    CUdeviceptr *blocks = calloc(count + WARM, sizeof *blocks);
    unsigned int state = 1;
    if (blocks == NULL || bytes < 512)
        FAIL("no memory for %lu pointers, or less than 512 bytes", count);
    open_primary();
    for (unsigned long i = 0; i < WARM; i++)
        CHECK(cuMemAlloc_v2(&blocks[i], next_size(mixed, bytes, &state)));
    double start = now_ms();
    for (unsigned long i = WARM; i < count + WARM; i++)
        CHECK(cuMemAlloc_v2(&blocks[i], next_size(mixed, bytes, &state)));
    double ms = now_ms() - start;
    for (unsigned long i = 0; i < count + WARM; i++)
        CHECK(cuMemFree_v2(blocks[i]));
    printf("%.0f ns an allocation\n", ms * 1e6 / (double)count);
    printf("misses: %.3f ms, %lu allocations\n", ms, count);
    free(blocks);
    return 0;
}
