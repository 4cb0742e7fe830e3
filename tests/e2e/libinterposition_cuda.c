/*
 * A preload that interposes two of the functions that the pool replaces, counts the calls and
 * passes them on to the next definition.
 */
#include <dlfcn.h>

#include "../driver_api.h"

static unsigned long allocations_seen, frees_seen;

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    CUresult (*next)(CUdeviceptr *, size_t) =
        (CUresult(*)(CUdeviceptr *, size_t))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    allocations_seen++;
    return next != NULL ? next(pointer, bytes) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    CUresult (*next)(CUdeviceptr) = (CUresult(*)(CUdeviceptr))dlsym(RTLD_NEXT, "cuMemFree_v2");
    frees_seen++;
    return next != NULL ? next(pointer) : CUDA_ERROR_NOT_FOUND;
}
