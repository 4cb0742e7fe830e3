/*
 * Allocates and frees as many times as the first argument says, in a few sizes, so that with the
 * pool every pair after the first ones hits: cuMemAlloc and cuMemFree, or, with "pinned" as the
 * second argument, cuMemHostAlloc and cuMemFreeHost, or, with "async", cuMemAllocAsync and
 * cuMemFreeAsync on a stream, or in turn on as many streams as the third argument says. Checks that
 * each address is one of its own by writing to the memory at the end. For
 * scripts/instructions_per_pair.sh.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../driver_api.h"

static const size_t sizes[] = {1000, 65536, 300000, 1 << 20, 5 << 20};
enum { SIZES = sizeof sizes / sizeof sizes[0], STREAMS = 1000 };

static void check(CUresult result, const char *call)
{
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "hit_pair: %s: CUDA error %u\n", call, result);
        exit(1);
    }
}

static void allocate_and_free(size_t bytes)
{
    CUdeviceptr block;
    check(cuMemAlloc_v2(&block, bytes), "cuMemAlloc_v2");
    check(cuMemFree_v2(block), "cuMemFree_v2");
}

static void pin_and_unpin(size_t bytes)
{
    void *block;
    check(cuMemHostAlloc(&block, bytes, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
    check(cuMemFreeHost(block), "cuMemFreeHost");
}

static void allocate_and_free_on(CUstream stream, size_t bytes)
{
    CUdeviceptr block;
    check(cuMemAllocAsync(&block, bytes, stream), "cuMemAllocAsync");
    check(cuMemFreeAsync(block, stream), "cuMemFreeAsync");
}

int main(int argc, char **argv)
{
    unsigned long pairs = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000;
    CUdevice device;
    CUcontext context;
    static CUstream streams[STREAMS];
    bool async = argc > 2 && strcmp(argv[2], "async") == 0;
    bool pinned = argc > 2 && strcmp(argv[2], "pinned") == 0;
    unsigned long count = argc > 3 ? strtoul(argv[3], NULL, 10) : 1;
    /* What many streams keep must not be more than is kept at all. */
    unsigned long used = count > 1 ? 3 : SIZES;
    count = count > STREAMS ? STREAMS : count > 0 ? count : 1;
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    for (unsigned long i = 0; i < count; i++)
        check(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    for (unsigned long i = 0; i < pairs && !async && !pinned; i++)
        allocate_and_free(sizes[i % SIZES]);
    for (unsigned long i = 0; i < pairs && pinned; i++)
        pin_and_unpin(sizes[i % SIZES]);
    for (unsigned long i = 0; i < pairs && async; i++)
        allocate_and_free_on(streams[i / used % count], sizes[i % used]);

    CUdeviceptr block;
    unsigned int written = 12345, read = 0;
    check(cuMemAlloc_v2(&block, sizes[0]), "cuMemAlloc_v2");
    check(cuMemcpyHtoD_v2(block, &written, sizeof written), "cuMemcpyHtoD_v2");
    check(cuMemcpyDtoH_v2(&read, block, sizeof read), "cuMemcpyDtoH_v2");
    check(cuMemFree_v2(block), "cuMemFree_v2");
    if (read != written) {
        fprintf(stderr, "hit_pair: the memory does not hold what was written\n");
        return 1;
    }
    printf("%lu pairs\n", pairs);
    return 0;
}
