/*
 * Asks for free memory as often as the first argument says, beside as many blocks of 4 KiB as the
 * second one says, of which every second one was freed. For scripts/instructions_per_pair.sh.
 */
#include <stdio.h>
#include <stdlib.h>

#include "../driver_api.h"

enum { MOST_BLOCKS = 1000000 };

static void check(CUresult result, const char *call)
{
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "memory_info: %s: CUDA error %u\n", call, result);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    static CUdeviceptr blocks[MOST_BLOCKS];
    unsigned long calls = argc > 1 ? strtoul(argv[1], NULL, 10) : 1;
    unsigned long count = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    size_t left, total;
    CUdevice device;
    CUcontext context;
    if (count > MOST_BLOCKS)
        return 2;
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    for (unsigned long i = 0; i < count; i++)
        check(cuMemAlloc_v2(&blocks[i], 4096), "cuMemAlloc_v2");
    for (unsigned long i = 0; i < count; i += 2)
        check(cuMemFree_v2(blocks[i]), "cuMemFree_v2");
    check(cuCtxSynchronize(), "cuCtxSynchronize");
    for (unsigned long i = 0; i < calls; i++)
        check(cuMemGetInfo_v2(&left, &total), "cuMemGetInfo_v2");
    printf("%zu bytes free\n", left);
    return 0;
}
