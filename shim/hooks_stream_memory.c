/*
 * Stream-ordered memory: the driver's own, except that a block of the pool may be freed this way
 * too, and that what the pool caches makes no allocation fail.
 */
#include "hooks.h"

static CUresult free_on(free_async *driver, CUdeviceptr address, CUstream stream)
{
    struct pool *pool = the_pool();
    if (pool)
        return pool_free_async(pool, driver, address, stream);
    return may_pass_by(address) ? driver(address, stream) : CUDA_ERROR_INVALID_VALUE;
}

HOOK(cuMemAllocAsync, (CUdeviceptr * address, size_t bytes, CUstream stream))
{
    const struct real_driver *real = real_driver();
    return tell_of_new(WITH_ROOM(real->cuMemAllocAsync(address, bytes, stream)), address);
}

HOOK(cuMemAllocAsync_ptsz, (CUdeviceptr * address, size_t bytes, CUstream stream))
{
    const struct real_driver *real = real_driver();
    return tell_of_new(WITH_ROOM(real->cuMemAllocAsync_ptsz(address, bytes, stream)), address);
}

HOOK(cuMemAllocFromPoolAsync,
     (CUdeviceptr * address, size_t bytes, CUmemoryPool from, CUstream stream))
{
    const struct real_driver *real = real_driver();
    return tell_of_new(WITH_ROOM(real->cuMemAllocFromPoolAsync(address, bytes, from, stream)),
                       address);
}

HOOK(cuMemAllocFromPoolAsync_ptsz,
     (CUdeviceptr * address, size_t bytes, CUmemoryPool from, CUstream stream))
{
    const struct real_driver *real = real_driver();
    return tell_of_new(WITH_ROOM(real->cuMemAllocFromPoolAsync_ptsz(address, bytes, from, stream)),
                       address);
}

HOOK(cuMemFreeAsync, (CUdeviceptr address, CUstream stream))
{
    return free_on(real_driver()->cuMemFreeAsync, address, stream);
}

HOOK(cuMemFreeAsync_ptsz, (CUdeviceptr address, CUstream stream))
{
    /* Spelled out, the thread's own stream is the same in every function. */
    return free_on(real_driver()->cuMemFreeAsync_ptsz, address,
                   stream ? stream : CU_STREAM_PER_THREAD);
}
