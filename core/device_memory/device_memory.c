/*
 * Device memory (cuMemAlloc) as a kind of memory: the functions that contexts and fences call.
 */
#include "device_memory.h"

#include "core/contexts/kind.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/return_stream.h"
#include "policies.h"
#include "release.h"
#include "release_sums.h"

static bool made_device(struct pool *pool, struct device *device)
{
    device->memory = figures_kind(&pool->figures, KIND_DEVICE, device->ordinal);
    return device->memory;
}

static void context_began(struct context *context)
{
    atomic_fetch_and_explicit(&heap_of(context)->closed, ~(uint32_t)CLOSED_UNUSABLE,
                              memory_order_relaxed);
}

static void became_current(struct context *context)
{
    struct thread_cache *cache = thread_cache_known(heap_of(context));
    thread_state.device_cache = cache ? cache : &no_thread_cache;
}

static void disabled(struct context *context)
{
    atomic_fetch_or_explicit(&heap_of(context)->closed, CLOSED_UNUSABLE, memory_order_relaxed);
}

static uint64_t newest_pending(const struct context *context)
{
    return heap_newest_pending(heap_of(context));
}

/* Closes the caches while there is host work: frees on the fast path would not wait for it. */
static void host_work_changed(struct context *context)
{
    struct heap *heap = heap_of(context);
    bool closed = atomic_load_explicit(&heap->closed, memory_order_relaxed) & CLOSED_HOST_WORK;
    if (closed != (host_work_limit(&context->epochs.host_work) != UINT64_MAX))
        thread_caches_update_closed(heap);
}

static void synchronised(struct pool *pool, struct context *context)
{
    heap_lock(heap_of(context));
    struct situation situation = release_look(pool, heap_of(context));
    heap_unlock(heap_of(context));
    release_excess(pool, context, &situation, RELEASE_IN_FREE);
}

const struct kind device_memory = {
    .name = "device",
    .number = KIND_DEVICE,
    .made_device = made_device,
    .context_bytes = sizeof(struct heap),
    .made_context = heap_init,
    .context_began = context_began,
    .became_current = became_current,
    .disabled = disabled,
    .ending = heap_set_ending,
    .ended = heap_reset,
    .newest_pending = newest_pending,
    .became_clean = heap_sweep,
    .host_work_changed = host_work_changed,
    .wait_stalled = heap_note_stalled_wait,
    .is_unfenced = heap_free_pending,
    .synchronised = synchronised,
    .freed_outside = heap_freed_outside,
    .forget_address = heap_forget_address,
    .memory_is_short = release_note_shortage,
    .release = release_everywhere,
    .wait_for_the_rest = release_wait_for_the_rest,
    .changes = release_changes,
    .returnable = release_returnable,
    .release_idle = release_idle,
    .watch = release_watch,
    .driver_has_taken = release_driver_has_taken,
    .add_kept = release_add_kept,
    .add_peaks = heap_peaks_add,
    .start_peaks_again = heap_peaks_start_again,
};
