/*
 * A library that is opened with RTLD_DEEPBIND: its own calls go straight to the driver.
 */
#include "../driver_api.h"

CUresult deepbind_allocate(CUdeviceptr *pointer, size_t bytes);
CUresult deepbind_free(CUdeviceptr pointer);
void *deepbind_function(void);

CUresult deepbind_allocate(CUdeviceptr *pointer, size_t bytes)
{
    return cuMemAlloc_v2(pointer, bytes);
}

CUresult deepbind_free(CUdeviceptr pointer)
{
    return cuMemFree_v2(pointer);
}

void *deepbind_function(void)
{
    return (void *)cuMemAlloc_v2;
}
