/*
 * Hooks of pinned host memory, which the pool serves, and of other calls that may take memory from
 * the driver. The latter pass through, and are retried when memory is short and the pool has some
 * to release.
 */
#include "hooks.h"

/* Called after the driver has handed out pinned memory by a call that was not the pool's own. */
static CUresult tell_of_new_host(CUresult result, void *const *host)
{
    CUdeviceptr address = result == CUDA_SUCCESS ? (CUdeviceptr)(uintptr_t)*host : 0;
    return address ? tell_of_new(result, &address) : result;
}

/* The first call in a process, and a call without the pool. Out of line, so that the hook leaves by
 * a jump where the pool serves the call. */
__attribute__((noinline)) static CUresult allocate_at_first(void **host, size_t bytes,
                                                            unsigned int flags)
{
    struct pool *pool = the_pool();
    return pool ? pool_allocate_host(pool, host, bytes, flags)
                : tell_of_new_host(real_driver()->cuMemHostAlloc(host, bytes, flags), host);
}

__attribute__((noinline)) static CUresult allocate_plainly_at_first(void **host, size_t bytes)
{
    struct pool *pool = the_pool();
    return pool ? pool_allocate_host_plainly(pool, host, bytes)
                : tell_of_new_host(real_driver()->cuMemAllocHost_v2(host, bytes), host);
}

__attribute__((noinline)) static CUresult free_at_first(void *host)
{
    struct pool *pool = the_pool();
    if (pool)
        return pool_free_host(pool, host);
    return may_pass_by((CUdeviceptr)(uintptr_t)host) ? real_driver()->cuMemFreeHost(host)
                                                     : CUDA_ERROR_INVALID_VALUE;
}

HOOK(cuMemHostAlloc, (void **host, size_t bytes, unsigned int flags))
{
    struct pool *pool = the_pool_if_started();
    return pool ? pool_allocate_host(pool, host, bytes, flags)
                : allocate_at_first(host, bytes, flags);
}

HOOK(cuMemAllocHost_v2, (void **host, size_t bytes))
{
    struct pool *pool = the_pool_if_started();
    return pool ? pool_allocate_host_plainly(pool, host, bytes)
                : allocate_plainly_at_first(host, bytes);
}

HOOK(cuMemFreeHost, (void *host))
{
    struct pool *pool = the_pool_if_started();
    return pool ? pool_free_host(pool, host) : free_at_first(host);
}

/* The pointer to ask the driver about. The driver still knows memory that is free in the pool, and
 * the program must see it as unknown. */
static void *shown(void *host)
{
    struct pool *pool = the_pool();
    struct pointer_answer answer = pool ? pool_ask_pointer(pool, (CUdeviceptr)(uintptr_t)host)
                                        : (struct pointer_answer){.kind = POINTER_FOREIGN};
    return answer.kind == POINTER_HIDDEN ? (void *)(uintptr_t)NOBODYS_POINTER : host;
}

HOOK(cuMemHostGetDevicePointer_v2, (CUdeviceptr * address, void *host, unsigned int flags))
{
    return real_driver()->cuMemHostGetDevicePointer_v2(address, shown(host), flags);
}

HOOK(cuMemHostGetFlags, (unsigned int *flags, void *host))
{
    struct pool *pool = the_pool();
    CUresult result = real_driver()->cuMemHostGetFlags(flags, shown(host));
    if (pool && result == CUDA_SUCCESS)
        pool_tell_host_flags(pool, host, flags);
    return result;
}

static bool is_registered_by_pool(const void *host)
{
    struct pool *pool = the_pool();
    return pool && pool_has_registered(pool, host);
}

/* The error as the driver gives it for memory that it has allocated. The pool registers some pinned
 * memory itself, for which the driver's errors differ, and the program must see no difference. */
static CUresult as_of_allocated(CUresult result, const void *host)
{
    bool tells = result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED ||
                 result == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    return tells && is_registered_by_pool(host) ? CUDA_ERROR_INVALID_VALUE : result;
}

HOOK(cuMemHostRegister, (void *host, size_t bytes, unsigned int flags))
{
    const struct real_driver *real = real_driver();
    return as_of_allocated(WITH_ROOM(real->cuMemHostRegister(host, bytes, flags)), host);
}

HOOK(cuMemHostRegister_v2, (void *host, size_t bytes, unsigned int flags))
{
    const struct real_driver *real = real_driver();
    return as_of_allocated(WITH_ROOM(real->cuMemHostRegister_v2(host, bytes, flags)), host);
}

HOOK(cuMemHostUnregister, (void *host))
{
    void *seen = shown(host);
    /* Free memory is nobody's, whoever has registered it. */
    if (seen != host || !is_registered_by_pool(host))
        return real_driver()->cuMemHostUnregister(seen);
    void *nobodys = (void *)(uintptr_t)NOBODYS_POINTER;
    return as_of_allocated(real_driver()->cuMemHostUnregister(nobodys), host);
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
