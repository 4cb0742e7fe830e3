/*
 * Allocations that the pool has nothing for: as many blocks of 64 KiB as the first argument says,
 * all freed at the end; with "sizes" as the second argument as many sizes, each allocated and freed
 * once, so that each is new to the pool. For scripts/instructions_per_pair.sh, which counts the
 * instructions of a miss and its free.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../driver_api.h"
#include "../random/virtual_time.h"

/* Sizes from 512 bytes on, eight to a doubling, as the pool's buckets are. */
enum { MOST_BLOCKS = 100000, MOST_SIZES = 128 };

static void check(CUresult result, const char *call)
{
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "miss: %s: CUDA error %u\n", call, result);
        exit(1);
    }
}

static size_t size_of(unsigned long i)
{
    return (size_t)(64 * (8 + i % 8)) << i / 8;
}

int main(int argc, char **argv)
{
    static CUdeviceptr blocks[MOST_BLOCKS];
    unsigned long count = argc > 1 ? strtoul(argv[1], NULL, 10) : 1;
    int sizes = argc > 2 && strcmp(argv[2], "sizes") == 0;
    CUdevice device;
    CUcontext context;
    if (count > (sizes ? MOST_SIZES : MOST_BLOCKS))
        return 2;
    virtual_time_moves();
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    for (unsigned long i = 0; i < count; i++) {
        check(cuMemAlloc_v2(&blocks[i], sizes ? size_of(i) : 65536), "cuMemAlloc_v2");
        if (sizes)
            check(cuMemFree_v2(blocks[i]), "cuMemFree_v2");
    }
    for (unsigned long i = 0; i < count && !sizes; i++)
        check(cuMemFree_v2(blocks[i]), "cuMemFree_v2");
    printf("%lu blocks\n", count);
    return 0;
}
