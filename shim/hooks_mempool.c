/*
 * Hooks of the program's memory pools, which are the driver's. The pool needs to know of them, and
 * corrects the driver's answers about memory that the pool caches. Threads that the driver has
 * called back from a call of the pool's also report what happens to a memory pool.
 */
#include "hooks.h"

HOOK(cuDeviceSetMemPool, (CUdevice device, CUmemoryPool handle))
{
    struct pool *pool = pool_to_tell();
    CUresult result = real_driver()->cuDeviceSetMemPool(device, handle);
    if (pool)
        pool_mempool_chosen(pool);
    return result;
}

HOOK(cuMemSetMemPool, (CUmemLocation * location, CUmemAllocationType type, CUmemoryPool handle))
{
    struct pool *pool = pool_to_tell();
    CUresult result = real_driver()->cuMemSetMemPool(location, type, handle);
    if (pool)
        pool_mempool_chosen(pool);
    return result;
}

static bool is_in_device_memory(const CUmemPoolProps *properties)
{
    return properties->allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
           properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

HOOK(cuMemPoolCreate, (CUmemoryPool * handle, const CUmemPoolProps *properties))
{
    const struct real_driver *real = real_driver();
    CUresult result = WITH_ROOM(real->cuMemPoolCreate(handle, properties));
    struct pool *pool = result == CUDA_SUCCESS ? the_pool() : NULL;
    if (pool && is_in_device_memory(properties))
        pool_mempool_created(pool, *handle, properties->location.id);
    return result;
}

HOOK(cuMemPoolDestroy, (CUmemoryPool handle))
{
    struct pool *pool = pool_to_tell();
    if (!pool)
        return real_driver()->cuMemPoolDestroy(handle);
    pool_mempool_destroying(pool, handle);
    CUresult result = real_driver()->cuMemPoolDestroy(handle);
    pool_mempool_destroyed(pool, handle, result);
    return result;
}

HOOK(cuMemPoolTrimTo, (CUmemoryPool handle, size_t keep))
{
    struct pool *pool = the_pool();
    if (pool)
        pool_mempool_trimming(pool, handle, keep);
    return real_driver()->cuMemPoolTrimTo(handle, keep);
}

HOOK(cuMemPoolSetAttribute, (CUmemoryPool handle, CUmemPool_attribute attribute, void *value))
{
    struct pool *pool = pool_to_tell();
    if (pool)
        pool_mempool_setting(pool, handle, attribute);
    CUresult result = real_driver()->cuMemPoolSetAttribute(handle, attribute, value);
    if (pool && result == CUDA_SUCCESS)
        pool_mempool_set(pool, handle, attribute, value);
    return result;
}

HOOK(cuMemPoolGetAttribute, (CUmemoryPool handle, CUmemPool_attribute attribute, void *value))
{
    CUresult result = real_driver()->cuMemPoolGetAttribute(handle, attribute, value);
    struct pool *pool = result == CUDA_SUCCESS ? the_pool() : NULL;
    if (pool)
        pool_mempool_got(pool, handle, attribute, value);
    return result;
}

HOOK(cuMemPoolExportPointer, (CUmemPoolPtrExportData * data, CUdeviceptr pointer))
{
    struct pool *pool = the_pool();
    struct pointer_answer answer = {.kind = POINTER_FOREIGN};
    if (pool)
        answer = pool_ask_pointer(pool, pointer);
    if (answer.kind == POINTER_HIDDEN)
        return real_driver()->cuMemPoolExportPointer(data, NOBODYS_POINTER);
    if (answer.kind == POINTER_LIVE && answer.part) {
        pool_refused_export(pool, &answer);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    /* Another process may reach the memory from here on. */
    if (answer.kind == POINTER_LIVE)
        pool_share(pool, pointer);
    return real_driver()->cuMemPoolExportPointer(data, pointer);
}
