/*
 * The registry of contexts that the pool knows. It finds them, keeps them from dying for a moment,
 * and makes them current.
 *
 * A thread that touches another thread's context (its events, its stream) pins it. A context that
 * dies waits for its pins. Green contexts are aliases: their memory, fences and barriers are the
 * primary context's.
 *
 * Locking: the registry lock guards the list of handles and the spare contexts. The lists of
 * devices and contexts only grow, and are walked without the lock.
 */
#ifndef CUDAPOOL_CORE_REGISTRY_H
#define CUDAPOOL_CORE_REGISTRY_H

#include "pool_state.h"

/* Whether a green context is known that keeps this context alive. */
bool context_has_green(struct pool *pool, const struct context *context);

/* The known context with this handle; NULL if unknown. A green context's handle counts as
 * unknown. */
struct context *context_find(struct pool *pool, CUcontext handle);

/* context_named also finds the context by the handle of a green context of its device. It takes the
 * registry lock only, and calls no driver. context_find_primary returns NULL, and
 * context_green_device -1, where nothing is known. */
struct context *context_named(struct pool *pool, CUcontext handle);
struct context *context_find_primary(struct pool *pool, CUdevice device);
CUdevice context_green_device(struct pool *pool, CUgreenCtx green);

static inline bool context_is_alive(const struct context *context)
{
    return (context_generation(context) & 1) != 0;
}

/* Keeps a context of this generation from dying until context_unpin. False if it is dying or has
 * died. */
bool context_pin(struct context *context, uint64_t generation);
void context_unpin(struct context *context);
/* The next live context after this one (NULL: the first), of the device unless it is NULL. The list
 * only grows, so the caller walks it without a lock. */
struct context *context_next(struct pool *pool, struct context *context, struct device *device);

/* Makes a context current around driver calls that need it, if it is not current already. False
 * where the driver refuses. Otherwise context_pop undoes what context_push did. */
bool context_push(struct pool *pool, struct context *context, bool *pushed);
void context_pop(struct pool *pool, bool pushed);

/* Whether the pool may serve the context. Relaxed: a late look costs one more failed call. */
static inline bool context_is_usable(const struct context *context)
{
    return !atomic_load_explicit(&context->unusable, memory_order_relaxed);
}

/* Marks the context as one in which the driver answers every call from now on. */
void context_disable(struct context *context);

/* context_disable for all contexts, future ones included: something happens that the pool does
 * not see. */
void context_disable_all(struct pool *pool);

/* ---- for those who make contexts known and end them; the registry lock is held ---- */

struct context_handle *registry_find(struct registry *registry, CUcontext handle);

/* False where memory is short. */
bool registry_add(struct registry *registry, struct context_handle added);

/* Removes the handles of the context, or (not NULL) of the green one. Threads ask again what their
 * handles mean. */
void registry_remove(struct registry *registry, const struct context *context, CUgreenCtx green);

/* A handle means something else now: threads ask again what their handles mean. */
void registry_handles_have_changed(struct registry *registry);

/* ---- these take the registry lock themselves ---- */

/* Copies out the entry of a known context with this handle. False where there is none or it is
 * dying. */
bool registry_look_up(struct pool *pool, CUcontext handle, struct context_handle *found);

/* Whether the handle is a green context's, even while its device's primary context may be dying. */
bool registry_is_alias(struct pool *pool, CUcontext handle);

#endif
