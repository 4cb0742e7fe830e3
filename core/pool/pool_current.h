/*
 * What is current in the calling thread, as a free needs to know it. That may be no context, a live
 * one, or one in which the driver would refuse to free. The quick paths ask whether the context
 * that the thread remembers is still the current one.
 */
#ifndef CUDAPOOL_CORE_POOL_CURRENT_H
#define CUDAPOOL_CORE_POOL_CURRENT_H

#include "core/contexts/context.h"
#include "core/contexts/pool_state.h"

enum currency {
    CURRENT_NONE,    /* no context; the driver frees all the same */
    CURRENT_ALIVE,   /* a live context. One that another thread is just ending may count as alive or
                        unknown */
    CURRENT_UNKNOWN, /* a context that has ended, or a host function: the driver frees nothing */
};

/* Whether the current context is the one that the thread remembers, and nothing about it has
 * changed. False also while captures are under way, and without a context. */
static inline bool thread_remembers_current(const struct pool *pool)
{
    const struct thread_state *thread = &thread_state;
    CUcontext handle;
    if (pool->driver->cuCtxGetCurrent(&handle) != CUDA_SUCCESS || thread->handle != handle)
        return false;
    return thread->generation ==
           atomic_load_explicit(&pool->registry.generation, memory_order_acquire);
}

/* Whether the current context, with this handle, is alive. Asked where contexts have ended, since
 * the current one may be among them. For an ended context the driver still answers questions about
 * its device and flags, but not about its id. */
bool current_is_alive(struct pool *pool, CUcontext handle);

static inline enum currency what_is_current(struct pool *pool)
{
    CUcontext handle = NULL;
    if (pool->driver->cuCtxGetCurrent(&handle) != CUDA_SUCCESS)
        return CURRENT_UNKNOWN;
    if (!handle)
        return CURRENT_NONE;
    /* Relaxed: a context that another thread is just ending may count as either (CURRENT_ALIVE). */
    bool alive = __builtin_expect(!registry_has_forgotten(&pool->registry), 1) ||
                 current_is_alive(pool, handle);
    return alive ? CURRENT_ALIVE : CURRENT_UNKNOWN;
}

#endif
