/*
 * Contexts, as the hooks see them. These functions of pool.h are called when a context is created,
 * ends, is synchronised, or is made to wait for an event. They keep the pool's records of contexts
 * in step with the driver.
 */
#include "pool.h"

#include "core/base/cancellation.h"
#include "core/base/clock.h"
#include "core/contexts/capture.h"
#include "core/contexts/context.h"
#include "core/contexts/epoch.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/device_memory/device_memory.h"
#include "core/device_memory/release.h"
#include "core/driver/calls.h"
#include "core/graph_memory/graph_memory.h"
#include "core/stream_memory/mempool.h"
#include "core/stream_memory/stream_table.h"

void pool_context_created(struct pool *pool, CUcontext handle)
{
    no_lock_may_be_held();
    context_register_current(pool, handle);
}

void pool_primary_retained(struct pool *pool, CUcontext handle, CUdevice device)
{
    struct context *context = context_register(pool, handle, device, true);
    if (context)
        atomic_fetch_add_explicit(&context->device->retains, 1, memory_order_relaxed);
}

void pool_green_context_created(struct pool *pool, CUgreenCtx green, CUdevice device)
{
    context_note_green(pool, green, device);
}

void pool_green_context_converted(struct pool *pool, CUcontext handle, CUgreenCtx green)
{
    context_alias(pool, handle, green);
}

void pool_green_context_destroyed(struct pool *pool, CUgreenCtx green)
{
    context_drop_alias(pool, green);
}

/* Called before a context ends. Without the pool, each free would have waited for copies that other
 * contexts make of the freed memory. The end of the context does not wait for those copies, but the
 * driver's own free does. perhaps: the context may survive. The program then waits for no work that
 * it has submitted since its frees, so the pool waits for the pending memory's fences only. */
static void end_frees(struct pool *pool, struct context *context, bool perhaps)
{
    bool pushed;
    if (!context || !contexts_were_several(pool) || !context_push(pool, context, &pushed))
        return;
    /* Captures forbid the driver's frees, but allow a wait for what was freed before the captures
     * began. */
    if (!captures_under_way(&pool->captures) && !perhaps)
        heap_free_pending(pool, context);
    else
        release_wait_for_pending(pool, context, monotonic_now() + LAST_RESORT_NANOSECONDS);
    context_pop(pool, pushed);
}

struct ending pool_context_ending(struct pool *pool, CUcontext handle)
{
    no_lock_may_be_held();
    if (!handle)
        pool->driver->cuCtxGetCurrent(&handle);
    struct ending ending = {.context = handle ? context_find(pool, handle) : NULL,
                            .cancellation = cancellation_off()};
    end_frees(pool, ending.context, false);
    ending.generation = context_end_begin(pool, ending.context, true);
    return ending;
}

/* Takes the primary lock, which pool_context_ended releases. */
static struct ending find_primary(struct pool *pool, CUdevice device)
{
    int cancellation = cancellation_off();
    lock_take(&pool->primary_lock, LOCK_PRIMARY);
    return (struct ending){.context = context_find_primary(pool, device),
                           .primary = true,
                           .cancellation = cancellation};
}

/* Whether the primary context has at most this many retains, as far as the pool has seen them;
 * green contexts retain it unseen. Where there are more, the pool waits for pending memory a little
 * later than the plain frees would have waited. */
static bool retains_are(const struct ending *ending, uint32_t most)
{
    return ending->context &&
           atomic_load_explicit(&ending->context->device->retains, memory_order_relaxed) <= most;
}

struct ending pool_primary_releasing(struct pool *pool, CUdevice device)
{
    no_lock_may_be_held();
    struct ending ending = find_primary(pool, device);
    ending.release = true;
    bool last = retains_are(&ending, 1);
    if (last)
        end_frees(pool, ending.context, context_has_green(pool, ending.context));
    ending.generation = context_end_begin(pool, ending.context, last);
    return ending;
}

struct ending pool_primary_resetting(struct pool *pool, CUdevice device)
{
    no_lock_may_be_held();
    struct ending ending = find_primary(pool, device);
    end_frees(pool, ending.context, false);
    ending.generation = context_end_begin(pool, ending.context, true);
    return ending;
}

struct ending pool_green_ending(struct pool *pool, CUgreenCtx green)
{
    no_lock_may_be_held();
    struct ending ending = find_primary(pool, context_green_device(pool, green));
    ending.generation = context_end_begin(pool, ending.context, retains_are(&ending, 0));
    return ending;
}

static void count_release(struct device *device, const struct ending *ending, bool died)
{
    lock_of_rank_must_be_held(LOCK_PRIMARY);
    uint32_t retains = atomic_load_explicit(&device->retains, memory_order_relaxed);
    if (died)
        atomic_store_explicit(&device->retains, 0, memory_order_relaxed);
    else if (ending->release && retains)
        atomic_fetch_sub_explicit(&device->retains, 1, memory_order_relaxed);
}

void pool_context_ended(struct pool *pool, struct ending ending, enum context_fate fate)
{
    bool died = fate == CONTEXT_DIED;
    if (fate == CONTEXT_PRIMARY_MAY_HAVE_DIED && ending.context)
        died = !context_primary_lives_on(pool, ending.context);
    if (ending.primary && ending.context && fate != CONTEXT_LIVES)
        count_release(ending.context->device, &ending, died);
    context_end_finish(pool, ending.context, ending.generation, died);
    if (ending.primary)
        lock_give(&pool->primary_lock);
    cancellation_restore(ending.cancellation);
}

static void note_barrier(struct pool *pool, struct context *context)
{
    if (!context)
        return;
    /* Relaxed: a thread that releases memory at the same time does so either before the barrier or
     * after it. */
    if (streams_of(pool))
        streams_are_barred(pool, context);
    else
        atomic_store_explicit(&context->barred, true, memory_order_relaxed);
}

/* A nested call only looks the context up and does not register it, because the caller may hold the
 * locks that registering takes. An unknown context has no memory of the pool's that was used before
 * the barrier. */
static struct context *current_behind_barrier(struct pool *pool)
{
    bool green;
    CUcontext current = NULL;
    if (!driver_calls.depth)
        return context_current(pool, &green);
    pool->driver->cuCtxGetCurrent(&current);
    return current ? context_named(pool, current) : NULL;
}

void pool_barrier_coming(struct pool *pool, CUcontext handle)
{
    note_barrier(pool, handle ? context_named(pool, handle) : current_behind_barrier(pool));
}

/* Only the green context's own streams wait. The pool does not tell them apart and notes a barrier
 * for the whole primary context. */
void pool_green_barrier_coming(struct pool *pool, CUgreenCtx green)
{
    note_barrier(pool, context_find_primary(pool, context_green_device(pool, green)));
}

struct synchronising pool_synchronise_begin(struct pool *pool, const CUcontext *handle)
{
    no_lock_may_be_held();
    graph_memory_process_ended(pool);
    bool green = false;
    struct synchronising state = {NULL, false, 0};
    state.context = handle ? context_find(pool, *handle) : context_current(pool, &green);
    /* A synchronise of a green context does not cover its primary context. */
    bool whole = state.context && !green;
    state.cleans = whole && !program_captures(&pool->captures);
    if (state.cleans)
        state.epoch = epoch_synchronise_begin(pool, state.context);
    return state;
}

void pool_synchronise_end(struct pool *pool, struct synchronising state, CUresult result)
{
    if (state.cleans)
        epoch_synchronise_end(pool, state.context, state.epoch, result);
    else if (state.context)
        epoch_note_error(state.context, result);
}
