/*
 * A library that holds the driver: it alone is linked with libcuda, and whoever closes it closes
 * that. Its destructor frees CUDA memory, after the program's own destructors have run.
 */
#include <stddef.h>

#include "../driver_api.h"

CUresult library_round(unsigned int value);

static CUcontext context;
static CUdeviceptr kept;

/* One block that is written and read back; another is kept until the destructor. */
CUresult library_round(unsigned int value)
{
    unsigned int found = 0;
    CUdeviceptr block;
    CUresult result = cuInit(0);
    if (result == CUDA_SUCCESS && context == NULL)
        result = cuDevicePrimaryCtxRetain(&context, 0);
    if (result == CUDA_SUCCESS)
        result = cuCtxSetCurrent(context);
    if (result == CUDA_SUCCESS && kept == 0)
        result = cuMemAlloc_v2(&kept, 4096);
    if (result == CUDA_SUCCESS)
        result = cuMemAlloc_v2(&block, 4096);
    if (result != CUDA_SUCCESS)
        return result;
    cuMemsetD32_v2(block, value, 1024);
    cuMemcpyDtoH_v2(&found, block + 4092, sizeof found);
    result = cuMemFree_v2(block);
    return found == value ? result : CUDA_ERROR_UNKNOWN;
}

__attribute__((destructor)) static void free_late(void)
{
    if (kept != 0)
        cuMemFree_v2(kept);
}
