/*
 * A program that the kernel starts with more rights than its caller has (AT_SECURE), and that was
 * linked with the preload object. Exits 77 where the kernel did not grant them.
 */
#include <sys/auxv.h>

#include "interposition.h"

int main(void)
{
    CUcontext context;
    CUdeviceptr pointer;
    if (getauxval(AT_SECURE) == 0)
        return 77;
    CHECK(is_ours(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2")));
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    CU(cuMemAlloc_v2(&pointer, 1000));
    CU(cuMemFree_v2(pointer));
    return 0;
}
