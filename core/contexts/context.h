/*
 * The life of contexts: how the pool gets to know them, finds the current one, and notes their
 * ends.
 *
 * Locking: a thread holds the fence lock whenever the set of live contexts changes. It holds the
 * primary lock across driver calls that may end primary contexts, so that one thread at a time
 * makes such calls.
 */
#ifndef CUDAPOOL_CORE_CONTEXT_H
#define CUDAPOOL_CORE_CONTEXT_H

#include "pool_state.h"

/* Finds the context with this handle, which is current in this thread, or makes it known. NULL
 * where the pool cannot serve it. green: the handle is a green context's. The thread remembers the
 * answer. */
struct context *context_current_slowly(struct pool *pool, CUcontext handle, bool *green);

/* Finds the context that is current in this thread, or makes it known. NULL where there is none or
 * the pool cannot serve it. green: the current handle is a green context's. */
static inline struct context *context_current(struct pool *pool, bool *green)
{
    CUcontext handle = NULL;
    if (pool->driver->cuCtxGetCurrent(&handle) != CUDA_SUCCESS || !handle)
        return NULL;
    if (thread_state.handle == handle &&
        thread_state.generation == registry_generation(&pool->registry)) {
        *green = thread_state.green;
        return thread_state.context;
    }
    return context_current_slowly(pool, handle, green);
}

/* No lock held. Makes a context known after its creation or retention, and returns it. NULL where
 * the context has ended meanwhile, or memory is short. If the pool knows another context, later
 * work of the new one is ordered after the barriers that were raised before. */
struct context *context_register(struct pool *pool, CUcontext handle, CUdevice device,
                                 bool primary);

/* context_register for a context of which only the handle is known; it must be current. */
struct context *context_register_current(struct pool *pool, CUcontext handle);

/* A green context of the device was created. It uses the device's primary context. */
void context_note_green(struct pool *pool, CUgreenCtx green, CUdevice device);

/* context_alias takes a green context's handle as an alias of its device's primary context.
 * context_drop_alias forgets all handles of the green context. */
void context_alias(struct pool *pool, CUcontext handle, CUgreenCtx green);
void context_drop_alias(struct pool *pool, CUgreenCtx green);

/*
 * Called around a driver call that may end a context. begin keeps the context out of new fences,
 * waits until no other thread uses it, and returns its generation. finish forgets the context's
 * memory if the context died and still has that generation. Otherwise another thread has forgotten
 * the memory first. context is NULL where the pool does not know it.
 *
 * The driver may wait for long in between. So the caller holds no lock, or only the primary lock
 * for a primary context.
 *
 * ends: the call ends the context if it succeeds. Only then does begin release the context's
 * stream-ordered memory to the driver.
 */
uint64_t context_end_begin(struct pool *pool, struct context *context, bool ends);
void context_end_finish(struct pool *pool, struct context *context, uint64_t generation, bool died);

/* Whether the primary context that the pool knows is still the device's. */
bool context_primary_lives_on(struct pool *pool, const struct context *context);

#endif
