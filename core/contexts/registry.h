/*
 * The contexts that the pool knows: finding them, keeping them from dying for a moment, and making
 * them current.
 *
 * Whoever touches another thread's context (its events, its stream) pins it; a context that dies
 * waits for its pins. Green contexts are aliases: their memory, fences and barriers are the primary
 * context's.
 *
 * Locking: the registry lock guards the list of handles and the spare contexts. The lists of
 * devices and contexts only grow, and are walked without.
 */
#ifndef CUDAPOOL_CORE_REGISTRY_H
#define CUDAPOOL_CORE_REGISTRY_H

#include "pool_state.h"

/* Whether a green context is known that keeps this one alive. */
bool context_has_green(struct pool *pool, const struct context *context);

/* The known context with this handle, or the device's primary one; NULL if unknown. */
struct context *context_find(struct pool *pool, CUcontext handle);

/* The same, also by the handle of a green context of its device's. Takes the registry lock only,
 * and calls no driver. */
struct context *context_named(struct pool *pool, CUcontext handle);
struct context *context_find_primary(struct pool *pool, CUdevice device);
CUdevice context_green_device(struct pool *pool, CUgreenCtx green);

static inline bool context_is_alive(const struct context *context)
{
    return (context_generation(context) & 1) != 0;
}

/* Keeps a context of this generation from dying. False if it is dying or has died. */
bool context_pin(struct context *context, uint64_t generation);
void context_unpin(struct context *context);
/* The next live context after this one (NULL: the first), of the device unless it is NULL. The
 * list only grows, so it is walked without a lock. */
struct context *context_next(struct pool *pool, struct context *context, struct device *device);

/* Makes a context current around driver calls that need it, if it is not already. False where the
 * driver refuses; else pop undoes what push did. */
bool context_push(struct pool *pool, struct context *context, bool *pushed);
void context_pop(struct pool *pool, bool pushed);

/* Whether the pool may serve it. Relaxed: a late look costs one more failed call. */
static inline bool context_is_usable(const struct context *context)
{
    return !atomic_load_explicit(&context->unusable, memory_order_relaxed);
}

/* Marks the context as one in which the driver answers everything from now on. */
void context_step_aside(struct context *context);

/* The same for all contexts, those to come included: something goes on that the pool does not see.
 */
void context_step_aside_everywhere(struct pool *pool);

/* ---- for those who make contexts known and end them; the registry lock is held ---- */

struct context_handle *registry_find(struct registry *registry, CUcontext handle);

/* False where memory is short. */
bool registry_add(struct registry *registry, struct context_handle added);

/* The handles of the context, or (not NULL) of the green one. Threads ask again what theirs mean.
 */
void registry_remove(struct registry *registry, const struct context *context, CUgreenCtx green);

/* A handle means something else now: threads ask again what theirs mean. */
void registry_handles_have_changed(struct registry *registry);

/* ---- the same without the lock ---- */

/* A known context with this handle that is not about to die; its entry is copied out. */
bool registry_look_up(struct pool *pool, CUcontext handle, struct context_handle *found);

/* Also while its device's primary context may be dying. */
bool registry_is_alias(struct pool *pool, CUcontext handle);

#endif
