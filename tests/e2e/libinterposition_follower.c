/*
 * A library that follows all of the driver's frees, by the name of the function that does: opened
 * under the name that such libraries have.
 */
#include "../driver_api.h"

CUresult ucm_cuMemFreeAsync(CUdeviceptr address, CUstream stream);

CUresult ucm_cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    return cuMemFreeAsync(address, stream);
}
