#include "registry.h"

#include <stdlib.h>

#include "core/base/lines.h"

/* ---- life ---- */

bool context_pin(struct context *context, uint64_t generation)
{
    /* Sequentially consistent, like the store of dying and the load of pins in begin_end
     * (context.c). Either this thread sees dying, or the thread that ends the context sees the
     * pin. */
    atomic_fetch_add(&context->pins, 1);
    if (!atomic_load(&context->dying) && atomic_load(&context->generation) == generation &&
        (generation & 1) != 0)
        return true;
    context_unpin(context);
    return false;
}

void context_unpin(struct context *context)
{
    atomic_fetch_sub(&context->pins, 1);
}

void context_disable(struct context *context)
{
    /* Relaxed: it is only set while the context lives, and a late look costs one more failed
     * call. */
    atomic_store_explicit(&context->unusable, true, memory_order_relaxed);
    TELL_KINDS(context, disabled, context);
}

void context_disable_all(struct pool *pool)
{
    /* Sequentially consistent, like the load in bring_to_life. Either the thread that brings a
     * context to life sees this store, or this thread sees the context. */
    atomic_store(&pool->disabled, true);
    for (struct context *c = context_next(pool, NULL, NULL); c; c = context_next(pool, c, NULL))
        context_disable(c);
}

struct context *context_next(struct pool *pool, struct context *context, struct device *device)
{
    struct context *next =
        context ? context->next
                : atomic_load_explicit(&pool->registry.contexts, memory_order_acquire);
    while (next && (!context_is_alive(next) || (device && next->device != device)))
        next = next->next;
    return next;
}

/* ---- looking up ---- */

struct context_handle *registry_find(struct registry *registry, CUcontext handle)
{
    lock_must_be_held(&registry->lock);
    for (size_t i = 0; i < registry->handle_count; i++)
        if (registry->handles[i].handle == handle)
            return &registry->handles[i];
    return NULL;
}

bool registry_add(struct registry *registry, struct context_handle added)
{
    lock_must_be_held(&registry->lock);
    if (registry->handle_count == registry->handle_capacity) {
        size_t capacity = registry->handle_capacity ? 2 * registry->handle_capacity : 8;
        struct context_handle *handles =
            realloc(registry->handles, capacity * sizeof *registry->handles);
        if (!handles)
            return false;
        registry->handles = handles;
        registry->handle_capacity = capacity;
    }
    registry->handles[registry->handle_count++] = added;
    return true;
}

/* Threads ask again what a handle stands for. Pairs with the acquire load in context_current. */
void registry_handles_have_changed(struct registry *registry)
{
    atomic_fetch_add_explicit(&registry->generation, REGISTRY_STEP, memory_order_release);
}

void registry_remove(struct registry *registry, const struct context *context, CUgreenCtx green)
{
    lock_must_be_held(&registry->lock);
    size_t kept = 0;
    for (size_t i = 0; i < registry->handle_count; i++) {
        const struct context_handle *h = &registry->handles[i];
        if (green ? h->green != green : h->context != context)
            registry->handles[kept++] = *h;
    }
    registry->handle_count = kept;
    registry_handles_have_changed(registry);
}

bool registry_look_up(struct pool *pool, CUcontext handle, struct context_handle *found)
{
    struct registry *registry = &pool->registry;
    lock_take(&registry->lock, LOCK_REGISTRY);
    struct context_handle *entry = registry_find(registry, handle);
    bool known = entry && !atomic_load(&entry->context->dying);
    if (known) {
        *found = *entry;
        found->generation = context_generation(entry->context);
    }
    lock_give(&registry->lock);
    return known;
}

bool registry_is_alias(struct pool *pool, CUcontext handle)
{
    lock_take(&pool->registry.lock, LOCK_REGISTRY);
    const struct context_handle *entry = registry_find(&pool->registry, handle);
    bool green = entry && entry->green;
    lock_give(&pool->registry.lock);
    return green;
}

bool context_has_green(struct pool *pool, const struct context *context)
{
    struct registry *registry = &pool->registry;
    bool green = false;
    lock_take(&registry->lock, LOCK_REGISTRY);
    for (size_t i = 0; i < registry->handle_count && !green; i++)
        green = registry->handles[i].context == context && registry->handles[i].green;
    lock_give(&registry->lock);
    return green;
}

struct context *context_find(struct pool *pool, CUcontext handle)
{
    struct context_handle found;
    return registry_look_up(pool, handle, &found) && !found.green ? found.context : NULL;
}

struct context *context_named(struct pool *pool, CUcontext handle)
{
    struct context_handle found;
    return registry_look_up(pool, handle, &found) ? found.context : NULL;
}

struct context *context_find_primary(struct pool *pool, CUdevice device)
{
    struct context *c = context_next(pool, NULL, NULL);
    while (c && (!c->primary || c->device->ordinal != device))
        c = context_next(pool, c, NULL);
    return c;
}

CUdevice context_green_device(struct pool *pool, CUgreenCtx green)
{
    struct registry *registry = &pool->registry;
    CUdevice device = -1;
    lock_take(&registry->lock, LOCK_REGISTRY);
    for (size_t i = 0; i < registry->handle_count && device < 0; i++)
        if (registry->handles[i].green == green)
            device = registry->handles[i].context->device->ordinal;
    lock_give(&registry->lock);
    return device;
}

/* ---- current ---- */

bool context_push(struct pool *pool, struct context *context, bool *pushed)
{
    CUcontext current = NULL;
    *pushed = false;
    if (pool->driver->cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context->handle)
        return true;
    *pushed = pool->driver->cuCtxPushCurrent_v2(context->handle) == CUDA_SUCCESS;
    return *pushed;
}

void context_pop(struct pool *pool, bool pushed)
{
    CUcontext popped;
    if (pushed)
        pool->driver->cuCtxPopCurrent_v2(&popped);
}
