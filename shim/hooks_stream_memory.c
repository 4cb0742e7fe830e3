/*
 * Stream-ordered memory: served by the pool; where it does not serve a call, the driver's own,
 * which may run out of memory that the pool has to give back.
 */
#include "hooks.h"

/* Most calls end here. */
static bool allocate_at_once(CUdeviceptr *address, size_t bytes, CUmemoryPool from, CUstream stream)
{
    struct pool *pool = the_pool();
    return pool && pool_allocate_async_at_once(pool, address, bytes, from, stream);
}

/* What the pool makes of it; a call that it does not serve is made by the program itself. */
static bool allocate(CUdeviceptr *address, size_t bytes, const CUmemoryPool *from, CUstream stream,
                     CUresult *result)
{
    struct pool *pool = the_pool();
    return pool && pool_allocate_async(pool, address, bytes, from, stream, result);
}

/* Spelled out, the thread's own stream is the same in every function. */
static CUstream per_thread(CUstream stream)
{
    return stream ? stream : CU_STREAM_PER_THREAD;
}

static bool free_at_once(CUdeviceptr address, CUstream stream)
{
    struct pool *pool = the_pool();
    return pool && pool_free_async_at_once(pool, address, stream);
}

static CUresult free_on(free_async *driver, CUdeviceptr address, CUstream stream)
{
    struct pool *pool = the_pool();
    if (pool)
        return pool_free_async(pool, driver, address, stream);
    return may_pass_by(address) ? driver(address, stream) : CUDA_ERROR_INVALID_VALUE;
}

/* Out of the way of the calls that end above. */
__attribute__((noinline)) static CUresult allocate_slowly(CUdeviceptr *address, size_t bytes,
                                                          CUstream stream)
{
    const struct real_driver *real = real_driver();
    CUresult result;
    if (allocate(address, bytes, NULL, stream, &result))
        return result;
    return tell_of_new(WITH_ROOM(real->cuMemAllocAsync(address, bytes, stream)), address);
}

__attribute__((noinline)) static CUresult allocate_from_slowly(CUdeviceptr *address, size_t bytes,
                                                               CUmemoryPool from, CUstream stream)
{
    const struct real_driver *real = real_driver();
    CUresult result;
    if (allocate(address, bytes, &from, stream, &result))
        return result;
    return tell_of_new(WITH_ROOM(real->cuMemAllocFromPoolAsync(address, bytes, from, stream)),
                       address);
}

HOOK(cuMemAllocAsync, (CUdeviceptr * address, size_t bytes, CUstream stream))
{
    if (allocate_at_once(address, bytes, NULL, stream))
        return CUDA_SUCCESS;
    return allocate_slowly(address, bytes, stream);
}

HOOK(cuMemAllocAsync_ptsz, (CUdeviceptr * address, size_t bytes, CUstream stream))
{
    if (allocate_at_once(address, bytes, NULL, per_thread(stream)))
        return CUDA_SUCCESS;
    return allocate_slowly(address, bytes, per_thread(stream));
}

HOOK(cuMemAllocFromPoolAsync,
     (CUdeviceptr * address, size_t bytes, CUmemoryPool from, CUstream stream))
{
    if (from && allocate_at_once(address, bytes, from, stream))
        return CUDA_SUCCESS;
    return allocate_from_slowly(address, bytes, from, stream);
}

HOOK(cuMemAllocFromPoolAsync_ptsz,
     (CUdeviceptr * address, size_t bytes, CUmemoryPool from, CUstream stream))
{
    if (from && allocate_at_once(address, bytes, from, per_thread(stream)))
        return CUDA_SUCCESS;
    return allocate_from_slowly(address, bytes, from, per_thread(stream));
}

HOOK(cuMemFreeAsync, (CUdeviceptr address, CUstream stream))
{
    if (free_at_once(address, stream))
        return CUDA_SUCCESS;
    return free_on(real_driver()->cuMemFreeAsync, address, stream);
}

HOOK(cuMemFreeAsync_ptsz, (CUdeviceptr address, CUstream stream))
{
    if (free_at_once(address, per_thread(stream)))
        return CUDA_SUCCESS;
    return free_on(real_driver()->cuMemFreeAsync_ptsz, address, per_thread(stream));
}
