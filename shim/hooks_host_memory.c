/*
 * Calls that take memory from the driver and that the pool does not serve: they pass through, and
 * are tried again when memory is short and the pool has some to give back.
 */
#include "core/reclaim/managed.h"
#include "hooks.h"

HOOK(cuMemAllocManaged, (CUdeviceptr * address, size_t bytes, unsigned int flags))
{
    const struct real_driver *real = real_driver();
    struct pool *pool = the_pool();
    if (pool)
        managed_coming(pool, bytes);
    CUresult result = WITH_ROOM(real->cuMemAllocManaged(address, bytes, flags));
    if (pool && result == CUDA_SUCCESS)
        managed_came(pool, bytes);
    return tell_of_new(result, address);
}

HOOK(cuMemHostAlloc, (void **host, size_t bytes, unsigned int flags))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuMemHostAlloc(host, bytes, flags));
}

HOOK(cuMemAllocHost_v2, (void **host, size_t bytes))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuMemAllocHost_v2(host, bytes));
}

HOOK(cuMemHostRegister, (void *host, size_t bytes, unsigned int flags))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuMemHostRegister(host, bytes, flags));
}

HOOK(cuMemHostRegister_v2, (void *host, size_t bytes, unsigned int flags))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuMemHostRegister_v2(host, bytes, flags));
}

HOOK(cuArrayCreate_v2, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR *descriptor))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuArrayCreate_v2(array, descriptor));
}

HOOK(cuArray3DCreate_v2, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuArray3DCreate_v2(array, descriptor));
}

HOOK(cuMipmappedArrayCreate,
     (CUmipmappedArray * array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuMipmappedArrayCreate(array, descriptor, levels));
}

HOOK(cuMemCreate, (CUmemGenericAllocationHandle * handle, size_t bytes,
                   const CUmemAllocationProp *properties, unsigned long long flags))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuMemCreate(handle, bytes, properties, flags));
}

HOOK(cuIpcOpenMemHandle, (CUdeviceptr * address, CUipcMemHandle handle, unsigned int flags))
{
    const struct real_driver *real = real_driver();
    return tell_of_new(WITH_ROOM(real->cuIpcOpenMemHandle(address, handle, flags)), address);
}

HOOK(cuIpcOpenMemHandle_v2, (CUdeviceptr * address, CUipcMemHandle handle, unsigned int flags))
{
    const struct real_driver *real = real_driver();
    return tell_of_new(WITH_ROOM(real->cuIpcOpenMemHandle_v2(address, handle, flags)), address);
}

HOOK(cuGraphicsMapResources, (unsigned int count, CUgraphicsResource *resources, CUstream stream))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuGraphicsMapResources(count, resources, stream));
}

HOOK(cuGraphicsMapResources_ptsz,
     (unsigned int count, CUgraphicsResource *resources, CUstream stream))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuGraphicsMapResources_ptsz(count, resources, stream));
}

HOOK(cuImportExternalMemory,
     (CUexternalMemory * memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *handle))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuImportExternalMemory(memory, handle));
}

HOOK(cuExternalMemoryGetMappedBuffer, (CUdeviceptr * address, CUexternalMemory memory,
                                       const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *buffer))
{
    const struct real_driver *real = real_driver();
    return tell_of_new(WITH_ROOM(real->cuExternalMemoryGetMappedBuffer(address, memory, buffer)),
                       address);
}

HOOK(cuExternalMemoryGetMappedMipmappedArray,
     (CUmipmappedArray * array, CUexternalMemory memory,
      const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *descriptor))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuExternalMemoryGetMappedMipmappedArray(array, memory, descriptor));
}

HOOK(cuCtxSetLimit, (CUlimit limit, size_t value))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuCtxSetLimit(limit, value));
}
