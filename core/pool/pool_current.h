/*
 * What is current in the calling thread, as frees see it.
 */
#ifndef CUDAPOOL_CORE_POOL_CURRENT_H
#define CUDAPOOL_CORE_POOL_CURRENT_H

#include "core/contexts/context.h"
#include "core/contexts/pool_state.h"

enum currency {
    CURRENT_NONE,    /* the driver frees all the same */
    CURRENT_ALIVE,   /* or so it seems: one that another thread is just ending counts as either */
    CURRENT_UNKNOWN, /* one that has ended, or in a host function: the driver frees nothing */
};

/* Whether the current context is the one that the thread remembers, nothing of which has changed;
 * false as well while captures go on, and without a context. */
static inline bool thread_remembers_current(const struct pool *pool)
{
    const struct thread_state *thread = &thread_state;
    CUcontext handle;
    if (pool->driver->cuCtxGetCurrent(&handle) != CUDA_SUCCESS || thread->handle != handle)
        return false;
    return thread->generation ==
           atomic_load_explicit(&pool->registry.generation, memory_order_acquire);
}

/* Where contexts have ended, the current one may be among them. Of its device, and its flags, the
 * driver tells even then, but not of its id. */
bool current_is_alive(struct pool *pool, CUcontext handle);

static inline enum currency what_is_current(struct pool *pool)
{
    CUcontext handle = NULL;
    if (pool->driver->cuCtxGetCurrent(&handle) != CUDA_SUCCESS)
        return CURRENT_UNKNOWN;
    if (!handle)
        return CURRENT_NONE;
    /* Relaxed: see CURRENT_ALIVE. */
    bool alive = __builtin_expect(!registry_has_forgotten(&pool->registry), 1) ||
                 current_is_alive(pool, handle);
    return alive ? CURRENT_ALIVE : CURRENT_UNKNOWN;
}

#endif
