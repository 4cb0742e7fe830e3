#include "host_by_driver.h"

#include "core/base/clock.h"
#include "core/contexts/context.h"
#include "core/contexts/epoch.h"
#include "core/contexts/fence_list.h"
#include "core/driver/calls.h"
#include "host_large.h"

/* Unlike cuMemFreeHost, cuMemHostUnregister needs a current context. The housekeeper has none, and
 * threads of the program may have none. */
static CUresult give_back_registered(struct pool *pool, struct context *context, void *memory,
                                     uint64_t bytes)
{
    bool pushed;
    if (!context_push(pool, context, &pushed))
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = host_large_give_back(pool, memory, bytes);
    context_pop(pool, pushed);
    return result;
}

CUresult host_call_to_free(struct pool *pool, const struct host_leaving *leaving)
{
    void *memory = (void *)(uintptr_t)leaving->address;
    enter_driver();
    CUresult result = leaving->origin == HOST_REGISTERED
                          ? give_back_registered(pool, leaving->context, memory, leaving->bytes)
                          : pool->driver->cuMemFreeHost(memory);
    leave_driver();
    return result;
}

/* The driver's own free waits for all of the context's work. Without the pool, earlier frees would
 * have waited for the work submitted before them. With the pool they may not have, and the program
 * may since have taken a lock that this work needs. So the pool waits for this work first, for
 * STALLED_WAIT_NANOSECONDS at most. It does not wait where the work may be ordered after work that
 * only the host ends. */
bool host_frees_are_over(struct pool *pool, struct context *context)
{
    struct epochs *epochs = &context->epochs;
    context_lock(context);
    uint64_t last = atomic_load_explicit(&epochs->fenced, memory_order_relaxed);
    uint64_t clean = epoch_clean(epochs), give_up_at = monotonic_now();
    bool over = last <= clean;
    /* If an earlier call has waited without success, the fence is only queried. */
    if (!host_work_is_unwaited(&epochs->host_work, clean))
        give_up_at += STALLED_WAIT_NANOSECONDS;
    if (!over && !epoch_may_be_behind_host_work(epochs, last)) {
        over = epoch_wait_when_short(pool, context, last, give_up_at);
        /* A wait that ended before give_up_at does not show that the work is stuck. Only other
         * contexts' work was left, or the fence could not be queried. */
        if (!over && monotonic_now() >= give_up_at)
            host_work_note_unwaited(&epochs->host_work, last);
    }
    context_unlock(context);
    return over;
}

/* Records the driver's answer. generation: the context's, read before the block was claimed. If the
 * context has died since, the record may be another block's. */
static void settle(struct pool *pool, struct host_heap *heap, struct block *block,
                   uint64_t generation, CUresult result, uint64_t nanoseconds)
{
    lock_must_be_held(&heap->context->lock);
    if (!host_lives_on(heap, generation))
        return;
    struct bucket_counters *counters = host_counters_of(block);
    if (result != CUDA_SUCCESS) {
        host_count_back(block);
        block_set_state(block, BLOCK_LIVE);
        return;
    }
    host_count_live(pool, heap, 0 - counter_get(&block->requested));
    host_forget(pool, heap, block);
    bucket_count_return(counters, EVICTION_FREE, nanoseconds);
    counter_add(&counters->frees, 1);
}

/* Claims the block. False if it is not, or no longer, live at this address. */
static bool claim_for_driver(struct host_heap *heap, struct block *block, CUdeviceptr address,
                             uint64_t generation, struct host_leaving *leaving)
{
    context_lock(heap->context);
    bool claimed = host_lives_on(heap, generation) && host_claim(block, address);
    if (claimed)
        *leaving = host_leaving(block);
    context_unlock(heap->context);
    return claimed;
}

/* A mapping that the pool made is unmapped by a free or by the context's end, whichever comes
 * first. Pins the context for such a block. False if the context has ended. */
static bool pin_if_registered(struct context *context, uint64_t generation, bool registered)
{
    uint64_t started = monotonic_now();
    while (registered && !context_pin(context, generation)) {
        if (context_generation(context) != generation)
            return false;
        patient_nap(started);
    }
    return true;
}

/* The record stays in the table until the driver has answered. So a second free of the address by
 * the program cannot overtake this one. The context is pinned if the pool has mapped the block. */
static CUresult free_there(struct pool *pool, struct block *block, CUdeviceptr address,
                           uint64_t generation)
{
    struct host_heap *heap = host_heap_of_block(block);
    struct context *context = heap->context;
    uint64_t started = monotonic_now();
    struct host_leaving leaving;
    bool claimed = claim_for_driver(heap, block, address, generation, &leaving);
    CUresult result = claimed ? host_call_to_free(pool, &leaving) : CUDA_ERROR_INVALID_VALUE;
    if (claimed) {
        context_lock(context);
        settle(pool, heap, block, generation, result, monotonic_now() - started);
        context_unlock(context);
    }
    return result;
}

CUresult host_free_by_driver(struct pool *pool, struct block *block, CUdeviceptr address)
{
    struct context *context = host_heap_of_block(block)->context;
    uint64_t generation = context_generation(context);
    bool registered = host_origin_of(block) == HOST_REGISTERED;
    if (!pin_if_registered(context, generation, registered))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = free_there(pool, block, address, generation);
    if (registered)
        context_unpin(context);
    return result;
}

/* ---- deferred frees ---- */

bool host_defer_free(struct host_heap *heap, struct block *block, CUdeviceptr address,
                     uint64_t generation)
{
    context_lock(heap->context);
    bool claimed = host_lives_on(heap, generation) && host_claim(block, address);
    if (claimed) {
        block->links[LINK_BUCKET].next = atomic_load_explicit(&heap->aside, memory_order_relaxed);
        atomic_store_explicit(&heap->aside, block, memory_order_relaxed);
    }
    context_unlock(heap->context);
    return claimed;
}

/* Takes a deferred block off the list. It is live again until free_there frees it. NULL: there is
 * none. */
static struct block *take_deferred(struct host_heap *heap, CUdeviceptr *address)
{
    context_lock(heap->context);
    struct block *block = atomic_load_explicit(&heap->aside, memory_order_relaxed);
    if (block) {
        atomic_store_explicit(&heap->aside, block->links[LINK_BUCKET].next, memory_order_relaxed);
        *address = block_address(block);
        host_count_back(block);
        block_set_state(block, BLOCK_LIVE);
    }
    context_unlock(heap->context);
    return block;
}

uint64_t host_free_deferred(struct pool *pool, struct host_heap *heap)
{
    uint64_t sum = 0;
    /* Does not wait for a context that is ending, since the caller may be what keeps it from
     * ending. The end handles the deferred blocks itself. */
    if (!host_has_deferred(heap) || !context_pin(heap->context, context_generation(heap->context)))
        return 0;
    CUdeviceptr address;
    struct block *block;
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    while ((block = take_deferred(heap, &address))) {
        uint64_t bytes = block_bytes(block);
        if (free_there(pool, block, address, context_generation(heap->context)) == CUDA_SUCCESS)
            sum += bytes;
    }
    relaxed_mode_end(pool->driver, mode);
    context_unpin(heap->context);
    return sum;
}
