/*
 * Hooks of contexts. The pool must know when a context is created or retained, and when it ends. It
 * must also know when a context is synchronised as a whole, or made to wait for an event.
 */
#include "hooks.h"

/* ---- creating and retaining ---- */

static CUresult created(CUresult result, const CUcontext *handle)
{
    struct pool *pool = result == CUDA_SUCCESS ? the_pool() : NULL;
    if (pool)
        pool_context_created(pool, *handle);
    return result;
}

HOOK(cuCtxCreate, (CUcontext * handle, unsigned int flags, CUdevice device))
{
    const struct real_driver *real = real_driver();
    return created(WITH_ROOM(real->cuCtxCreate(handle, flags, device)), handle);
}

HOOK(cuCtxCreate_v2, (CUcontext * handle, unsigned int flags, CUdevice device))
{
    const struct real_driver *real = real_driver();
    return created(WITH_ROOM(real->cuCtxCreate_v2(handle, flags, device)), handle);
}

HOOK(cuCtxCreate_v3, (CUcontext * handle, CUexecAffinityParam *affinities, int count,
                      unsigned int flags, CUdevice device))
{
    const struct real_driver *real = real_driver();
    return created(WITH_ROOM(real->cuCtxCreate_v3(handle, affinities, count, flags, device)),
                   handle);
}

HOOK(cuCtxCreate_v4,
     (CUcontext * handle, CUctxCreateParams *parameters, unsigned int flags, CUdevice device))
{
    const struct real_driver *real = real_driver();
    return created(WITH_ROOM(real->cuCtxCreate_v4(handle, parameters, flags, device)), handle);
}

HOOK(cuGLCtxCreate, (CUcontext * handle, unsigned int flags, CUdevice device))
{
    const struct real_driver *real = real_driver();
    return created(WITH_ROOM(real->cuGLCtxCreate(handle, flags, device)), handle);
}

HOOK(cuGLCtxCreate_v2, (CUcontext * handle, unsigned int flags, CUdevice device))
{
    const struct real_driver *real = real_driver();
    return created(WITH_ROOM(real->cuGLCtxCreate_v2(handle, flags, device)), handle);
}

HOOK(cuDevicePrimaryCtxRetain, (CUcontext * handle, CUdevice device))
{
    const struct real_driver *real = real_driver();
    CUresult result = WITH_ROOM(real->cuDevicePrimaryCtxRetain(handle, device));
    struct pool *pool = result == CUDA_SUCCESS ? the_pool() : NULL;
    if (pool)
        pool_primary_retained(pool, *handle, device);
    return result;
}

HOOK(cuGreenCtxCreate,
     (CUgreenCtx * green, CUdevResourceDesc resources, CUdevice device, unsigned int flags))
{
    const struct real_driver *real = real_driver();
    CUresult result = WITH_ROOM(real->cuGreenCtxCreate(green, resources, device, flags));
    struct pool *pool = result == CUDA_SUCCESS ? the_pool() : NULL;
    if (pool)
        pool_green_context_created(pool, *green, device);
    return result;
}

HOOK(cuCtxFromGreenCtx, (CUcontext * handle, CUgreenCtx green))
{
    CUresult result = real_driver()->cuCtxFromGreenCtx(handle, green);
    struct pool *pool = result == CUDA_SUCCESS ? the_pool() : NULL;
    if (pool)
        pool_green_context_converted(pool, *handle, green);
    return result;
}

HOOK(cuCtxEnablePeerAccess, (CUcontext peer, unsigned int flags))
{
    const struct real_driver *real = real_driver();
    return WITH_ROOM(real->cuCtxEnablePeerAccess(peer, flags));
}

/* ---- ending ---- */

static CUresult end_context(CUresult (*end)(CUcontext), CUcontext handle)
{
    struct pool *pool = the_pool();
    if (!pool)
        return end(handle);
    struct ending ending = pool_context_ending(pool, handle);
    CUresult result = end(handle);
    bool died = result == CUDA_SUCCESS;
    pool_context_ended(pool, ending, died ? CONTEXT_DIED : CONTEXT_LIVES);
    return result;
}

static CUresult end_primary(CUresult (*end)(CUdevice), CUdevice device, enum context_fate fate)
{
    struct pool *pool = the_pool();
    if (!pool)
        return end(device);
    struct ending ending = fate == CONTEXT_DIED ? pool_primary_resetting(pool, device)
                                                : pool_primary_releasing(pool, device);
    CUresult result = end(device);
    pool_context_ended(pool, ending, result == CUDA_SUCCESS ? fate : CONTEXT_LIVES);
    return result;
}

HOOK(cuCtxDestroy, (CUcontext handle))
{
    return end_context(real_driver()->cuCtxDestroy, handle);
}

HOOK(cuCtxDestroy_v2, (CUcontext handle))
{
    return end_context(real_driver()->cuCtxDestroy_v2, handle);
}

HOOK(cuCtxDetach, (CUcontext handle))
{
    struct pool *pool = the_pool();
    /* The context may live on without the pool, through another cuCtxAttach. So the pool's cached
     * memory is released now. */
    if (pool) {
        pool_graphs_may_be_gone(pool);
        pool_trim(pool);
    }
    return end_context(real_driver()->cuCtxDetach, handle);
}

HOOK(cuDevicePrimaryCtxRelease, (CUdevice device))
{
    return end_primary(real_driver()->cuDevicePrimaryCtxRelease, device,
                       CONTEXT_PRIMARY_MAY_HAVE_DIED);
}

HOOK(cuDevicePrimaryCtxRelease_v2, (CUdevice device))
{
    return end_primary(real_driver()->cuDevicePrimaryCtxRelease_v2, device,
                       CONTEXT_PRIMARY_MAY_HAVE_DIED);
}

HOOK(cuDevicePrimaryCtxReset, (CUdevice device))
{
    return end_primary(real_driver()->cuDevicePrimaryCtxReset, device, CONTEXT_DIED);
}

HOOK(cuDevicePrimaryCtxReset_v2, (CUdevice device))
{
    return end_primary(real_driver()->cuDevicePrimaryCtxReset_v2, device, CONTEXT_DIED);
}

HOOK(cuGreenCtxDestroy, (CUgreenCtx green))
{
    struct pool *pool = the_pool();
    if (!pool)
        return real_driver()->cuGreenCtxDestroy(green);
    struct ending ending = pool_green_ending(pool, green);
    CUresult result = real_driver()->cuGreenCtxDestroy(green);
    if (result == CUDA_SUCCESS)
        pool_green_context_destroyed(pool, green);
    pool_context_ended(pool, ending,
                       result == CUDA_SUCCESS ? CONTEXT_PRIMARY_MAY_HAVE_DIED : CONTEXT_LIVES);
    return result;
}

/* ---- waiting for an event, and synchronising ---- */

HOOK(cuCtxWaitEvent, (CUcontext handle, CUevent event))
{
    struct pool *pool = pool_to_tell();
    if (pool)
        pool_barrier_coming(pool, handle);
    return real_driver()->cuCtxWaitEvent(handle, event);
}

HOOK(cuGreenCtxWaitEvent, (CUgreenCtx green, CUevent event))
{
    struct pool *pool = pool_to_tell();
    if (pool)
        pool_green_barrier_coming(pool, green);
    return real_driver()->cuGreenCtxWaitEvent(green, event);
}

HOOK(cuCtxSynchronize, (void))
{
    struct pool *pool = the_pool();
    if (!pool)
        return real_driver()->cuCtxSynchronize();
    struct synchronising state = pool_synchronise_begin(pool, NULL);
    CUresult result = real_driver()->cuCtxSynchronize();
    pool_synchronise_end(pool, state, result);
    return result;
}

HOOK(cuCtxSynchronize_v2, (CUcontext handle))
{
    struct pool *pool = the_pool();
    if (!pool)
        return real_driver()->cuCtxSynchronize_v2(handle);
    struct synchronising state = pool_synchronise_begin(pool, &handle);
    CUresult result = real_driver()->cuCtxSynchronize_v2(handle);
    pool_synchronise_end(pool, state, result);
    return result;
}
