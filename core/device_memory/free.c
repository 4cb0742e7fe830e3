#include "free.h"

#include "cache_set.h"
#include "cache_threads.h"
#include "core/base/clock.h"
#include "core/base/mutation.h"
#include "core/contexts/pool_state.h"
#include "core/driver/calls.h"
#include "free_fence.h"
#include "place.h"
#include "policies.h"
#include "sums.h"

/* Lock held. Not worth keeping; only where the plain call would have waited too. */
static bool goes_directly(struct heap *heap, struct block *block, bool waitable)
{
    if (!keep_is_on_trial(&heap->keep) || !waitable)
        return false;
    bool directly = keep_free_is_the_drivers(&heap->keep, &block->bucket->ghosts, block->bytes);
    thread_caches_update_closed(heap);
    return directly;
}

static CUresult synchronise_like_the_driver(struct pool *pool, struct context *context)
{
    bool pushed;
    if (!context_push(pool, context, &pushed))
        return CUDA_SUCCESS;
    uint64_t epoch = epoch_synchronise_begin(pool, context);
    enter_driver();
    CUresult result = pool->driver->cuCtxSynchronize();
    leave_driver();
    context_pop(pool, pushed);
    epoch_synchronise_end(pool, context, epoch, result);
    return result;
}

/* A free that failed has freed nothing. False where the block has a new owner already. */
static bool take_back(struct heap *heap, struct block *block, CUdeviceptr address, uint64_t stamp)
{
    heap_lock(heap);
    bool pending = block_address(block) == address && block_state(block) == BLOCK_PENDING &&
                   counter_get(&block->epoch) == stamp;
    if (pending) {
        heap_detach_free(heap, block);
        block_set_state(block, BLOCK_LIVE);
        counter_subtract(&block->bucket->counters->frees, 1);
        heap_count_live(heap, block);
    }
    heap_unlock(heap);
    return pending;
}

/* The wait that the settings ask for. It may fail, where another thread has just begun a capture
 * for one, and the program then goes on using the block. */
__attribute__((noinline)) static CUresult wait_in_free(struct pool *pool, struct block *block,
                                                       CUdeviceptr address, uint64_t stamp)
{
    struct heap *heap = block->heap;
    const struct bucket *bucket = block->bucket;
    uint64_t started = monotonic_now();
    CUresult result = synchronise_like_the_driver(pool, context_of_heap(heap));
    bucket_count_wait(bucket->counters, monotonic_now() - started);
    atomic_fetch_add_explicit(&bucket->counters->waiting_frees, 1, memory_order_relaxed);
    bool freed = result == CUDA_SUCCESS || MUTATED(failed_wait_frees) ||
                 !take_back(heap, block, address, stamp);
    return freed ? CUDA_SUCCESS : result;
}

/* No lock held. The driver waits with its own lock held. What it waits for may need another thread
 * to allocate first, whose frees have not waited: so where there is one, it is waited for before.
 */
static void wait_before_the_driver(struct pool *pool, struct context *context)
{
    struct heap *heap = heap_of(context);
    if (captures_are_going_on(&pool->captures) || policy_is_without_fences(context) ||
        !pool->driver->cuCtxRecordEvent || MUTATED(driver_waits_alone))
        return;
    heap_lock(heap);
    bool others = heap->caches.count > 1 || heap->uses_in_a_row < HEAP_USES_ALONE;
    struct fence *fence = others ? heap_begin_fence(context, true) : NULL;
    uint64_t stamp = epoch_current(&context->epochs) - 1;
    heap_unlock(heap);
    if (fence)
        epoch_record(pool, context, fence);
    if (others)
        heap_wait_for_stamp(pool, context, stamp);
}

/* A free that the driver answers. */
__attribute__((noinline)) static CUresult free_past_the_pool(struct pool *pool, struct block *block,
                                                             CUdeviceptr address,
                                                             const struct free_call *call)
{
    struct context *context = context_of_heap(block->heap);
    if (call->waitable)
        wait_before_the_driver(pool, context);
    CUresult result = heap_free_by_driver(pool, block, address, call->release, call->argument);
    if (call->waitable && policy_is_without_fences(context))
        heap_free_pending(pool, context);
    return result;
}

/* Lock held. What a free is stamped with. */
static uint64_t stamp_of_now(struct pool *pool, const struct context *context)
{
    bool green;
    if (MUTATED(stamped_by_current_context) && context_current(pool, &green)) {
        uint64_t least = epoch_clean(&context->epochs) + 1;
        uint64_t current = epoch_current(&context_current(pool, &green)->epochs);
        return current > least ? current : least;
    }
    return epoch_current(&context->epochs);
}

/* Lock held, and released. The address is not a live block's (any more). */
static CUresult refuse_free(struct heap *heap)
{
    heap_unlock(heap);
    return MUTATED(double_free_taken) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Heap lock held. Puts a block that this thread has claimed into its cache, or into the heap's
 * lists where it has no place there. True: a fence is due. */
static bool put_freed(struct context *context, const struct place *place, struct block *block,
                      uint64_t stamp)
{
    if (place->bin)
        return thread_cache_put(place->cache, place->bin, block, stamp);
    heap_add_pending(heap_of(context), block, stamp);
    return policy_fence_is_due(context) || block->bucket->bytes == 0;
}

CUresult heap_free(struct pool *pool, struct block *block, CUdeviceptr address,
                   const struct free_call *call)
{
    struct heap *heap = block->heap;
    struct context *context = context_of_heap(heap);
    thread_cache_prepare_thread(pool);
    heap_lock(heap);
    if (!block_is_live_at(block, address))
        return refuse_free(heap);
    if (policy_is_the_drivers_to_free(pool, context, block) ||
        goes_directly(heap, block, call->waitable)) {
        heap_unlock(heap);
        return free_past_the_pool(pool, block, address, call);
    }
    heap_note_user(pool, heap);
    struct place place = place_for_free(pool, heap, block->bucket);
    bool host = call->waitable && policy_has_host_work(context);
    /* In the lists it can be taken back. */
    if (host)
        place.bin = NULL;
    if (!block_claim(block, address, place.bin ? BLOCK_CACHED : BLOCK_PENDING))
        return refuse_free(heap);
    bool synchronise = policy_frees_synchronise(pool, heap) && call->waitable;
    uint64_t stamp = stamp_of_now(pool, context);
    bool due = put_freed(context, &place, block, stamp);
    struct fence *fence = NULL;
    if (due && place.cache)
        place_refresh_cache(heap, place.cache);
    if (!synchronise && (due || host))
        fence = heap_begin_fence(context, call->waitable);
    /* It is looked again soon whether another's has come. */
    if (due && !fence && place.cache)
        thread_cache_count_again(place.cache);
    heap_unlock(heap);
    CUresult result = CUDA_SUCCESS;
    if (synchronise) {
        result = wait_in_free(pool, block, address, stamp);
        /* Of its own context nothing is left. */
        if (policy_others_work_may_count(pool))
            heap_wait_if_missed(pool, context, monotonic_now());
        return result;
    }
    if (fence)
        result = heap_end_free(pool, context, fence, call->waitable);
    /* Without a fence the driver's own free waits. */
    if (host && !heap_wait_for_stamp(pool, context, stamp) &&
        take_back(heap, block, address, stamp))
        return free_past_the_pool(pool, block, address, call);
    return result;
}
