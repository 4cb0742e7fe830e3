#include "context.h"

#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "core/base/bus_guard.h"
#include "core/base/clock.h"
#include "core/base/lines.h"
#include "core/driver/calls.h"
#include "device.h"
#include "epoch.h"
#include "pool_state.h"
#include "registry.h"
#include "return_stream.h"

/* ---- becoming known ---- */

static unsigned long long id_of(const struct context *context)
{
    return atomic_load_explicit(&context->id, memory_order_relaxed);
}

static unsigned long long read_id(struct pool *pool, CUcontext handle)
{
    unsigned long long id = 0;
    if (!pool->driver->cuCtxGetId || pool->driver->cuCtxGetId(handle, &id) != CUDA_SUCCESS)
        return 0;
    return id;
}

/* Returns a zeroed context record with room for each kind's data, or NULL. */
static struct context *allocate_record(const struct kind *const *kinds)
{
    size_t bytes = sizeof(struct context);
    for (const struct kind *const *kind = kinds; *kind; kind++)
        bytes += whole_lines((*kind)->context_bytes);
    struct context *context = allocate_in_whole_lines(bytes);
    if (!context)
        return NULL;
    char *memory = context->memory;
    for (const struct kind *const *kind = kinds; *kind; kind++) {
        context->of_kind[(*kind)->number] = (*kind)->context_bytes ? memory : NULL;
        memory += whole_lines((*kind)->context_bytes);
    }
    return context;
}

/* Makes a record. Sets all fields that never change once the record is listed, since other threads
 * read these fields without a lock. */
static struct context *make_context(struct pool *pool, struct device *device, bool primary)
{
    struct context *context = allocate_record(pool->kinds);
    if (!context)
        return NULL;
    context->kinds = pool->kinds;
    context->figures_id =
        atomic_fetch_add_explicit(&pool->registry.records, 1, memory_order_relaxed);
    context->counters = figures_heap(&pool->figures, context->figures_id, device->ordinal);
    atomic_init(&context->epochs.current, 1);
    host_work_init(&context->epochs.host_work);
    context->primary = primary;
    context->device = device;
    context->next = atomic_load_explicit(&pool->registry.contexts, memory_order_relaxed);
    bool made = context->counters != NULL;
    for (const struct kind *const *kind = context->kinds; *kind && made; kind++)
        made = !(*kind)->made_context || (*kind)->made_context(pool, context);
    if (made)
        return context;
    free_apart(context);
    return NULL;
}

static struct context *find_spare(struct registry *registry, const struct device *device,
                                  bool primary)
{
    lock_must_be_held(&registry->lock);
    struct context *c = atomic_load_explicit(&registry->contexts, memory_order_relaxed);
    while (c && (context_is_alive(c) || c->device != device || c->primary != primary))
        c = c->next;
    return c;
}

static struct context *bring_to_life(struct pool *pool, struct device *device,
                                     const struct context *identity)
{
    lock_must_be_held(&pool->fence_lock);
    lock_must_be_held(&pool->registry.lock);
    struct registry *registry = &pool->registry;
    struct context *context = find_spare(registry, device, identity->primary);
    bool fresh = !context;
    if (fresh)
        context = make_context(pool, device, identity->primary);
    if (!context || !registry_add(registry, (struct context_handle){.handle = identity->handle,
                                                                    .context = context}))
        return NULL; /* memory is short; a fresh record, which nobody knows yet, leaks */
    context->handle = identity->handle;
    atomic_store_explicit(&context->id, id_of(identity), memory_order_relaxed);
    atomic_store_explicit(&context->unusable, false, memory_order_relaxed);
    TELL_KINDS(context, context_began, context);
    atomic_store_explicit(&context->barred, false, memory_order_relaxed);
    atomic_store_explicit(&context->return_stream, NULL, memory_order_relaxed);
    atomic_store_explicit(&context->late_stream, NULL, memory_order_relaxed);
    atomic_fetch_add(&context->generation, 1);
    if (fresh)
        atomic_store_explicit(&registry->contexts, context, memory_order_release);
    registry->set_generation++;
    /* Sequentially consistent, like the store in context_disable_all, and after the list has the
     * context. Either this thread sees that store, or that thread sees the context. */
    if (atomic_load(&pool->disabled))
        context_disable(context);
    return context;
}

/* Called before a second context is known to any thread. A barrier orders only the later work of
 * its own context, and other contexts might reach blocks that were reused after it. So no more
 * barriers are raised, and the new context's work is ordered after the barriers already raised.
 * This thread waits for the barriers only if that order is impossible, since their work may need
 * this thread. */
static void close_barriers(struct pool *pool, CUcontext handle)
{
    atomic_store_explicit(&pool->several_contexts, true, memory_order_release);
    /* Waits for a thread that is raising a barrier. epoch_raise_barrier holds the fence lock
     * meanwhile, so the loop below finds its barrier. */
    lock_take(&pool->fence_lock, LOCK_FENCE);
    lock_give(&pool->fence_lock);
    /* Without cuCtxRecordEvent the pool relies on synchronises, and a synchronise covers only its
     * own context's work. */
    if (!pool->driver->cuCtxRecordEvent)
        context_disable_all(pool);
    for (struct context *c = context_next(pool, NULL, NULL); c; c = context_next(pool, c, NULL))
        epoch_order_behind_barrier(pool, c, handle);
}

/* Marks the context as ending, if it is alive and has this generation (0: any). Returns the
 * generation; 0: not so. ends: the driver's call ends the context for good if it succeeds. */
static uint64_t begin_end(struct pool *pool, struct context *context, uint64_t generation,
                          bool ends)
{
    if (ends)
        TELL_KINDS(context, before_end, pool, context);
    /* A thread that records a fence in the context holds the fence lock, so it finishes first. */
    lock_take(&pool->fence_lock, LOCK_FENCE);
    uint64_t present = context_generation(context);
    bool is_meant = (present & 1) != 0 && (generation == 0 || generation == present);
    if (is_meant) {
        context->enders++;
        atomic_store(&context->dying, true);
        TELL_KINDS(context, ending, context, true);
    }
    lock_give(&pool->fence_lock);
    if (!is_meant)
        return 0;
    /* Pairs with context_pin, which adds to pins and then loads dying. A thread that has pinned the
     * context never waits for a lock that this thread holds, so this loop ends. */
    uint64_t started = monotonic_now();
    while (atomic_load(&context->pins) != 0)
        patient_nap(started);
    if (ends)
        TELL_KINDS(context, give_back_at_end, pool, context);
    return present;
}

/* Notes that the entry's context has ended without the pool's knowledge. Does nothing if another
 * thread has noted that end meanwhile, since the generation differs then. */
static void bury(struct pool *pool, const struct context_handle *entry)
{
    bool begun = begin_end(pool, entry->context, entry->generation, false) != 0;
    enter_driver();
    context_end_finish(pool, begun ? entry->context : NULL, entry->generation, true);
}

/* Removes this handle of a green context, and no other of its handles. The pointer dropped->green
 * may stand for a newer green context by now. */
static void drop_handle(struct pool *pool, const struct context_handle *dropped)
{
    struct registry *registry = &pool->registry;
    lock_take(&registry->lock, LOCK_REGISTRY);
    struct context_handle *entry = registry_find(registry, dropped->handle);
    if (entry && entry->green == dropped->green && entry->id == dropped->id) {
        *entry = registry->handles[--registry->handle_count];
        registry_handles_have_changed(registry);
    }
    lock_give(&registry->lock);
}

/* Whether the handle still stands for the context for which the entry was made. id: the driver's id
 * of the context that has the handle now. 0: unknown, and then the answer is yes. */
static bool still_means(const struct context_handle *entry, unsigned long long id)
{
    unsigned long long known = entry->green ? entry->id : id_of(entry->context);
    return !known || !id || known == id;
}

/* Removes the handle of a context that has ended, although the thread that ended it has not
 * notified the pool yet. */
static void give_up_handle(struct pool *pool, const struct context_handle *entry)
{
    if (entry->green)
        drop_handle(pool, entry);
    else
        bury(pool, entry);
}

/* Lists the context. Returns false, after a nap, if the context cannot be listed yet. This is so if
 * another context exists and the barriers are not closed, or if the handle is still listed. In the
 * second case another thread may still be ending the handle's previous context. True with *context
 * == NULL: memory is short. */
static bool list_context(struct pool *pool, struct device *device, const struct context *identity,
                         uint64_t started, struct context **context)
{
    lock_take(&pool->fence_lock, LOCK_FENCE);
    lock_take(&pool->registry.lock, LOCK_REGISTRY);
    const struct context_handle *entry = registry_find(&pool->registry, identity->handle);
    bool ready = !entry && (!context_next(pool, NULL, NULL) ||
                            atomic_load_explicit(&pool->several_contexts, memory_order_relaxed));
    if (ready)
        *context = bring_to_life(pool, device, identity);
    lock_give(&pool->registry.lock);
    lock_give(&pool->fence_lock);
    if (!ready)
        patient_nap(started);
    return ready;
}

/* Whether a thread has ended the context before it was listed. Such a thread did not find the
 * context, and so did not note its end. The primary lock makes this thread wait for one that is
 * just ending the context, if it is a primary one. */
static bool has_ended_unseen(struct pool *pool, const struct context *identity)
{
    lock_take(&pool->primary_lock, LOCK_PRIMARY);
    bool ended = pool->driver->cuCtxGetId && read_id(pool, identity->handle) != id_of(identity);
    lock_give(&pool->primary_lock);
    return ended;
}

/* Forgets a context that has just been listed, unless another thread did so first. */
static void forget_listed(struct pool *pool, struct context *context, unsigned long long id)
{
    uint64_t generation = context_end_begin(pool, context, false);
    context_end_finish(pool, context, generation, id_of(context) == id);
}

struct context *context_register(struct pool *pool, CUcontext handle, CUdevice ordinal,
                                 bool primary)
{
    no_lock_may_be_held();
    struct context identity = {.handle = handle, .id = read_id(pool, handle), .primary = primary};
    if (pool->driver->cuCtxGetId && id_of(&identity) == 0)
        return NULL; /* another thread has ended it */
    struct device *device = context_device(pool, ordinal);
    if (!device)
        return NULL;

    struct context *context;
    uint64_t started = monotonic_now();
    do {
        struct context_handle found;
        bool known = registry_look_up(pool, handle, &found);
        if (known && still_means(&found, id_of(&identity)))
            return found.context;
        /* The driver has given the handle to another context since this thread read the id. */
        if (known && read_id(pool, handle) != id_of(&identity))
            return NULL;
        if (known)
            give_up_handle(pool, &found);
        if (context_next(pool, NULL, NULL))
            close_barriers(pool, handle);
    } while (!list_context(pool, device, &identity, started, &context));
    if (!context || !has_ended_unseen(pool, &identity))
        return context;
    forget_listed(pool, context, id_of(&identity));
    return NULL;
}

static CUcontext retain_and_release(const struct driver *driver, CUdevice device)
{
    CUcontext primary = NULL;
    if (driver->cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS)
        return NULL;
    if (driver->cuDevicePrimaryCtxRelease_v2)
        driver->cuDevicePrimaryCtxRelease_v2(device);
    else if (driver->cuDevicePrimaryCtxRelease)
        driver->cuDevicePrimaryCtxRelease(device);
    return primary;
}

static bool primary_is_active(struct pool *pool, CUdevice device)
{
    unsigned int flags;
    int active = 0;
    return pool->driver->cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS &&
           active;
}

/* Returns the device's primary context, or NULL. Its count of retains stays as it was. The
 * program's last release is made under the primary lock, too, so the release here never ends the
 * context. */
static CUcontext find_primary_handle(struct pool *pool, CUdevice device)
{
    CUcontext primary = NULL;
    lock_take(&pool->primary_lock, LOCK_PRIMARY);
    enter_driver();
    if (primary_is_active(pool, device))
        primary = retain_and_release(pool->driver, device);
    leave_driver();
    lock_give(&pool->primary_lock);
    return primary;
}

bool context_primary_lives_on(struct pool *pool, const struct context *context)
{
    /* Another thread may have made a new primary context meanwhile, with this handle or another. */
    unsigned long long id = read_id(pool, context->handle), known = id_of(context);
    return primary_is_active(pool, context->device->ordinal) && (!known || known == id);
}

struct context *context_register_current(struct pool *pool, CUcontext handle)
{
    no_lock_may_be_held();
    CUdevice device;
    if (pool->driver->cuCtxGetDevice(&device) != CUDA_SUCCESS)
        return NULL;
    bool primary = find_primary_handle(pool, device) == handle;
    /* Fails if another thread ended the context before find_primary_handle looked for it. */
    if (pool->driver->cuCtxGetDevice(&device) != CUDA_SUCCESS)
        return NULL;
    return context_register(pool, handle, device, primary);
}

/* Makes the device's primary context known. Returns NULL where none is active. */
static struct context *register_primary(struct pool *pool, CUdevice device)
{
    no_lock_may_be_held();
    CUcontext primary = find_primary_handle(pool, device);
    return primary ? context_register(pool, primary, device, true) : NULL;
}

/* Adds the alias, unless its handle is listed. Returns false if another context has the handle. */
static bool add_alias(struct pool *pool, struct context_handle alias)
{
    struct registry *registry = &pool->registry;
    lock_take(&registry->lock, LOCK_REGISTRY);
    const struct context_handle *entry =
        alias.handle ? registry_find(registry, alias.handle) : NULL;
    bool ours = !entry || (entry->green == alias.green && entry->id == alias.id);
    if (!entry)
        registry_add(registry, alias);
    lock_give(&registry->lock);
    return ours;
}

void context_note_green(struct pool *pool, CUgreenCtx green, CUdevice device)
{
    no_lock_may_be_held();
    struct context *context = register_primary(pool, device);
    /* The pool may still know an earlier green context by this pointer, which ended unseen. A
     * thread that ends a green context drops its alias under the primary lock.
     * register_primary has taken that lock since, so such a thread has finished. */
    context_drop_alias(pool, green);
    if (context)
        add_alias(pool, (struct context_handle){.green = green, .context = context});
}

static CUdevice device_of(struct pool *pool, CUcontext handle)
{
    const struct driver *driver = pool->driver;
    CUdevice device = -1;
    if (driver->cuCtxPushCurrent_v2(handle) != CUDA_SUCCESS)
        return -1;
    if (driver->cuCtxGetDevice(&device) != CUDA_SUCCESS)
        device = -1;
    driver->cuCtxPopCurrent_v2(&handle);
    return device;
}

void context_alias(struct pool *pool, CUcontext handle, CUgreenCtx green)
{
    no_lock_may_be_held();
    CUdevice device = device_of(pool, handle);
    struct context *context = device < 0 ? NULL : register_primary(pool, device);
    unsigned long long id = read_id(pool, handle);
    if (!context || context->handle == handle || (pool->driver->cuCtxGetId && id == 0))
        return;
    struct context_handle found,
        alias = {.handle = handle, .green = green, .context = context, .id = id};
    /* Another thread may still be ending the context that had this handle before. */
    uint64_t started = monotonic_now();
    while (!add_alias(pool, alias)) {
        if (!registry_look_up(pool, handle, &found))
            patient_nap(started);
        else if (still_means(&found, id))
            return;
        else
            give_up_handle(pool, &found);
    }
}

void context_drop_alias(struct pool *pool, CUgreenCtx green)
{
    lock_take(&pool->registry.lock, LOCK_REGISTRY);
    registry_remove(&pool->registry, NULL, green);
    lock_give(&pool->registry.lock);
}

struct context *context_current_slowly(struct pool *pool, CUcontext handle, bool *green)
{
    struct context_handle found;
    /* Read before the lookup: if the handle becomes invalid later, the thread looks it up again. */
    uint64_t generation = registry_generation(&pool->registry);
    bool known =
        registry_look_up(pool, handle, &found) && still_means(&found, read_id(pool, handle));
    struct context *context = known ? found.context : context_register_current(pool, handle);
    /* Another thread may have made the handle known meanwhile, as a green context's. */
    *green = known ? found.green != NULL : context && registry_is_alias(pool, handle);
    struct thread_state *thread = &thread_state;
    /* Generation 0: the thread has not used the pool yet, or its last lookup has failed. */
    if (!thread->generation)
        bus_guard_thread();
    /* Generation 0 makes all fields invalid until they are complete: a signal handler may allocate
     * in between. */
    thread->generation = 0;
    atomic_signal_fence(memory_order_seq_cst);
    thread->handle = handle;
    thread->context = context;
    thread->green = *green;
    thread->device_cache = NULL;
    thread->shard = NULL;
    if (context)
        TELL_KINDS(context, became_current, context);
    atomic_signal_fence(memory_order_seq_cst);
    thread->generation = context ? generation : 0;
    return context;
}

/* ---- ending ---- */

uint64_t context_end_begin(struct pool *pool, struct context *context, bool ends)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    uint64_t generation = context ? begin_end(pool, context, 0, ends) : 0;
    enter_driver();
    return generation;
}

static void forget_context(struct pool *pool, struct context *context)
{
    lock_must_be_held(&pool->fence_lock);
    atomic_fetch_add(&context->generation, 1);
    lock_take(&pool->registry.lock, LOCK_REGISTRY);
    registry_remove(&pool->registry, context, NULL);
    pool->registry.set_generation++;
    lock_give(&pool->registry.lock);
    captures_context_died(pool, context);
    TELL_KINDS(context, ended, pool, context);
    /* managed_bytes is a sum over the device's contexts, and the part of this one is unknown. A
     * count that is too low makes too little room, which is better than too much. */
    atomic_store_explicit(&context->device->managed_bytes, 0, memory_order_relaxed);
}

void context_end_finish(struct pool *pool, struct context *context, uint64_t generation, bool died)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    leave_driver();
    if (!context)
        return;
    lock_take(&pool->fence_lock, LOCK_FENCE);
    /* Otherwise another end has done all this, and the record may serve a context that ends now. */
    if (context_generation(context) == generation) {
        if (died)
            forget_context(pool, context);
        context->enders = died ? 0 : context->enders - 1;
        if (context->enders == 0) {
            TELL_KINDS(context, ending, context, false);
            atomic_store(&context->dying, false);
        }
    }
    lock_give(&pool->fence_lock);
}
