/*
 * The life of contexts: becoming known, being current, and ending.
 *
 * Locking: the fence lock is held whenever the set of live contexts changes, and the primary lock
 * across the driver calls that may end primary ones, one at a time.
 */
#ifndef CUDAPOOL_CORE_CONTEXT_H
#define CUDAPOOL_CORE_CONTEXT_H

#include "pool_state.h"

/* The known context with this handle, which is current in this thread; made known if it was not.
 * NULL where it can't be served. green: the handle is a green context's. Remembered by the thread.
 */
struct context *context_current_slowly(struct pool *pool, CUcontext handle, bool *green);

/* The context current in this thread, made known if it was not. NULL where there is none or it
 * can't be served. green: the current handle is a green context's. */
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

/* Makes a context known: after its creation or retention. No lock held. The later work of a context
 * that is not the only one is put behind the barriers that others have raised. */
struct context *context_register(struct pool *pool, CUcontext handle, CUdevice device,
                                 bool primary);

/* The same for a context of which only the handle is known; it must be current. */
struct context *context_register_current(struct pool *pool, CUcontext handle);

/* The same for a device's primary context, where there is one. */
struct context *context_register_primary(struct pool *pool, CUdevice device);

/* A green context of the device was created: its primary context is in use through it. */
void context_note_green(struct pool *pool, CUgreenCtx green, CUdevice device);

/* Takes a green context's handle as an alias of its device's primary context. */
void context_alias(struct pool *pool, CUcontext handle, CUgreenCtx green);
void context_drop_alias(struct pool *pool, CUgreenCtx green);

/*
 * Around a driver call that may end a context: begin waits until nobody else uses the context and
 * keeps it out of new fences, and returns its generation; finish forgets the context's memory if it
 * died, and is still of that generation: another thread may have done so first. No lock is held
 * in between, since the driver may wait for long; for primary contexts the callers hold the primary
 * lock. The context may be NULL (unknown to us). ends: the call is known to end it, if it succeeds:
 * only then is stream-ordered memory given back before, after the context's work as the driver
 * would.
 */
uint64_t context_end_begin(struct pool *pool, struct context *context, bool ends);
void context_end_finish(struct pool *pool, struct context *context, uint64_t generation, bool died);

/* Whether the primary context that we know is still the device's. */
bool context_primary_lives_on(struct pool *pool, const struct context *context);

/* True while a primary context exists, as the driver sees it. */
bool context_primary_is_active(struct pool *pool, CUdevice device);

#endif
