/*
 * Hooks of stream-ordered memory, which the pool serves. Where it does not serve a call, the
 * driver's own is made, and retried when memory is short and the pool has some to release.
 */
#include "hooks.h"

/* Asks the pool to serve the allocation. False: the hook makes the program's own driver call.
 * *result is CUDA_SUCCESS before. */
static bool allocate(CUdeviceptr *address, size_t bytes, const CUmemoryPool *from, CUstream stream,
                     CUresult *result)
{
    struct pool *pool = the_pool();
    return pool && pool_allocate_async(pool, address, bytes, from, stream, result);
}

/* stream: the thread's own stream is spelled out, which means the same in every driver function. */
static CUresult free_on(free_async *driver, CUdeviceptr address, CUstream stream)
{
    struct pool *pool = the_pool();
    if (pool)
        return pool_free_async(pool, driver, address, stream);
    return may_pass_by(address) ? driver(address, stream) : CUDA_ERROR_INVALID_VALUE;
}

/* Called after the driver has answered a stream-ordered allocation. counted: the pool has already
 * counted a failure of the request. */
static CUresult allocated_on(const struct pool_request *request, bool counted, CUresult result,
                             const CUdeviceptr *address)
{
    struct pool *pool = the_pool();
    if (pool && !counted)
        pool_note_driver_allocation(pool, request, result);
    return tell_of_new(result, address);
}

/* An allocation from the device's current memory pool that the quick path did not answer. */
__attribute__((noinline)) static CUresult allocate_slowly(CUdeviceptr *address, size_t bytes,
                                                          CUmemoryPool none, CUstream stream)
{
    const struct real_driver *real = real_driver();
    const struct pool_request request = {bytes, NULL, stream};
    CUresult result = CUDA_SUCCESS;
    (void)none;
    if (allocate(address, bytes, NULL, stream, &result))
        return result;
    bool counted = result != CUDA_SUCCESS;
    result = WITH_ROOM(real->cuMemAllocAsync(address, bytes, stream));
    return allocated_on(&request, counted, result, address);
}

/* An allocation from the memory pool that the program names, which the quick path did not
 * answer. */
__attribute__((noinline)) static CUresult allocate_from_slowly(CUdeviceptr *address, size_t bytes,
                                                               CUmemoryPool from, CUstream stream)
{
    const struct real_driver *real = real_driver();
    const struct pool_request request = {bytes, &from, stream};
    CUresult result = CUDA_SUCCESS;
    if (allocate(address, bytes, &from, stream, &result))
        return result;
    bool counted = result != CUDA_SUCCESS;
    result = WITH_ROOM(real->cuMemAllocFromPoolAsync(address, bytes, from, stream));
    return allocated_on(&request, counted, result, address);
}

__attribute__((noinline)) static CUresult free_slowly(CUdeviceptr address, CUstream stream)
{
    return free_on(real_driver()->cuMemFreeAsync, address, stream);
}

__attribute__((noinline)) static CUresult free_slowly_ptsz(CUdeviceptr address, CUstream stream)
{
    return free_on(real_driver()->cuMemFreeAsync_ptsz, address, stream);
}

/* The pool's functions below answer most calls. A hook leaves to them by a jump, and they leave to
 * the slow functions above by a jump. So no call has to save its arguments for a second one. */
static inline CUresult allocate_at_once(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    struct pool *pool = the_pool_if_started();
    return pool ? pool_allocate_async_at_once(pool, address, bytes, NULL, stream, allocate_slowly)
                : allocate_slowly(address, bytes, NULL, stream);
}

static inline CUresult allocate_from_at_once(CUdeviceptr *address, size_t bytes, CUmemoryPool from,
                                             CUstream stream)
{
    struct pool *pool = the_pool_if_started();
    return pool && from ? pool_allocate_async_at_once(pool, address, bytes, from, stream,
                                                      allocate_from_slowly)
                        : allocate_from_slowly(address, bytes, from, stream);
}

static inline CUresult free_at_once(CUdeviceptr address, CUstream stream, free_async *otherwise)
{
    struct pool *pool = the_pool_if_started();
    return pool ? pool_free_async_at_once(pool, address, stream, otherwise)
                : otherwise(address, stream);
}

HOOK(cuMemAllocAsync, (CUdeviceptr * address, size_t bytes, CUstream stream))
{
    return allocate_at_once(address, bytes, stream);
}

HOOK(cuMemAllocAsync_ptsz, (CUdeviceptr * address, size_t bytes, CUstream stream))
{
    return allocate_at_once(address, bytes, per_thread(stream));
}

HOOK(cuMemAllocFromPoolAsync,
     (CUdeviceptr * address, size_t bytes, CUmemoryPool from, CUstream stream))
{
    return allocate_from_at_once(address, bytes, from, stream);
}

HOOK(cuMemAllocFromPoolAsync_ptsz,
     (CUdeviceptr * address, size_t bytes, CUmemoryPool from, CUstream stream))
{
    return allocate_from_at_once(address, bytes, from, per_thread(stream));
}

HOOK(cuMemFreeAsync, (CUdeviceptr address, CUstream stream))
{
    return free_at_once(address, stream, free_slowly);
}

HOOK(cuMemFreeAsync_ptsz, (CUdeviceptr address, CUstream stream))
{
    return free_at_once(address, per_thread(stream), free_slowly_ptsz);
}
