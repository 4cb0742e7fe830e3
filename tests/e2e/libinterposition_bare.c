/*
 * A driver that has nothing but cuInit: what an extremely old libcuda.so.1 would look like.
 */
#include "../driver_api.h"

CUresult cuInit(unsigned int flags)
{
    return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
