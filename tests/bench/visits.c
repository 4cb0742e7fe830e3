/*
 * What scripts/functions_visited.sh counts the functions of. "miss COUNT" allocates blocks of 64
 * KiB that the pool has nothing for. "end COUNT" makes contexts, leaves a freed and a live
 * block of each kind of memory in them, and destroys them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../driver_api.h"
#include "../random/virtual_time.h"

static void check(CUresult result, const char *call)
{
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "visits: %s: CUDA error %u\n", call, result);
        exit(1);
    }
}
#define CHECK(call) check(call, #call)

static void miss(unsigned long count)
{
    CUdeviceptr block;
    for (unsigned long i = 0; i < count; i++)
        CHECK(cuMemAlloc_v2(&block, 65536));
}

/* Two blocks of each kind: one is freed, and one is left to the context's end. */
static void use_memory(CUstream stream)
{
    CUdeviceptr device[2], ordered[2];
    void *pinned[2];
    for (int i = 0; i < 2; i++) {
        CHECK(cuMemAlloc_v2(&device[i], 65536));
        CHECK(cuMemAllocAsync(&ordered[i], 65536, stream));
        CHECK(cuMemHostAlloc(&pinned[i], 65536, 0));
    }
    CHECK(cuMemFree_v2(device[0]));
    CHECK(cuMemFreeAsync(ordered[0], stream));
    CHECK(cuMemFreeHost(pinned[0]));
}

static void end(CUdevice device)
{
    CUcontext context;
    CUstream stream;
    CHECK(cuCtxCreate_v2(&context, 0, device));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    use_memory(stream);
    CHECK(cuCtxDestroy_v2(context));
}

int main(int argc, char **argv)
{
    unsigned long count = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    CUdevice device;
    CUcontext context;
    virtual_time_moves();
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    if (argc > 1 && strcmp(argv[1], "end") == 0)
        for (unsigned long i = 0; i < count; i++)
            end(device);
    else
        miss(count);
    printf("%lu\n", count);
    return 0;
}
