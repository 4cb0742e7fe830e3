#include "free.h"

#include "cache_set.h"
#include "cache_threads.h"
#include "core/base/clock.h"
#include "core/contexts/capture.h"
#include "core/contexts/context.h"
#include "core/contexts/device.h"
#include "core/contexts/epoch.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"
#include "free_fence.h"
#include "place.h"
#include "policies.h"
#include "sums.h"

/* Whether the driver is to free this block, because it is large and the heap is on trial (keep.h).
 * If so, also counts the free, and the trial may end with it. A free that is not waitable is never
 * left to the driver here, since the driver's free waits for the context. */
static bool is_not_worth_keeping(struct heap *heap, struct block *block, bool waitable)
{
    heap_lock_must_be_held(heap);
    if (!keep_is_on_trial(&heap->keep) || !waitable)
        return false;
    bool directly =
        keep_free_is_the_drivers(&heap->keep, &device_bucket(block->bucket)->ghosts, block->bytes,
                                 device_is_short(context_of_heap(heap)->device));
    thread_caches_update_closed(heap);
    return directly;
}

/* Waits for all of the context's work, as the driver's free does. Succeeds without a wait where the
 * driver refuses to make the context current. */
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

/* What the locked part of a free leaves to the unlocked part. */
struct freed {
    uint64_t stamp;
    uint64_t stamp_before;       /* the block's own while it was live: of its barrier, or clean */
    uint64_t driver_frees;       /* the number of driver frees begun */
    const struct bucket *bucket; /* the block's bucket; the record may be another thread's by
                                    then */
    struct fence *fence;         /* to be recorded; NULL: none */
    bool synchronise;            /* this free synchronises the context, as the driver's does */
    bool host_work;              /* this free waits for a fence: there is host work, or the fence
                                    replaces a synchronise (waits_for_a_fence) */
    bool part;                   /* the driver does not know the block */
};

/* Makes the block live again after a free that failed, since such a free must free nothing. False
 * if the block is no longer pending: it is clean, leaves for the driver, or has a new owner. */
static bool take_back(struct heap *heap, struct block *block, CUdeviceptr address,
                      const struct freed *freed)
{
    heap_lock(heap);
    bool pending = block_address(block) == address && block_state(block) == BLOCK_PENDING &&
                   counter_get(&block->epoch) == freed->stamp;
    if (pending) {
        heap_detach_free(heap, block);
        counter_set(&block->epoch, freed->stamp_before);
        block_set_state(block, BLOCK_LIVE);
        counter_subtract(&block->bucket->counters->frees, 1);
        heap_count_live(heap, block);
    }
    heap_unlock(heap);
    return pending;
}

/* The wait of a free that synchronises (policy_frees_synchronise). It may fail, for instance
 * because another thread has just begun a capture. The program then continues to use the block. */
__attribute__((noinline)) static CUresult
wait_in_free(struct pool *pool, struct block *block, CUdeviceptr address, const struct freed *freed)
{
    struct heap *heap = block->heap;
    uint64_t started = monotonic_now();
    CUresult result = synchronise_like_the_driver(pool, context_of_heap(heap));
    bucket_count_wait(freed->bucket->counters, monotonic_now() - started);
    atomic_fetch_add_explicit(&freed->bucket->counters->waiting_frees, 1, memory_order_relaxed);
    bool stays_free = result == CUDA_SUCCESS || !take_back(heap, block, address, freed);
    return stays_free ? CUDA_SUCCESS : result;
}

/* Makes the program's driver call on a new allocation, since the driver does not know the part. So
 * the program's free fails where captures forbid the driver's free. If the call is waitable, it
 * also waits for the part's context. */
static CUresult free_as_the_driver(struct pool *pool, struct context *context,
                                   const struct free_call *call)
{
    CUdeviceptr address;
    bool pushed = false;
    /* A free in a stream's order waits for no context. Its stream may be one of the current
     * context, so that context stays current. */
    if (call->waitable && !context_push(pool, context, &pushed))
        return CUDA_SUCCESS;
    enter_driver();
    CUresult result = pool->driver->cuMemAlloc_v2(&address, 1);
    if (result == CUDA_SUCCESS) {
        result = call->release(pool, address, call->argument);
        struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
        if (result != CUDA_SUCCESS)
            pool->driver->cuMemFree_v2(address);
        relaxed_mode_end(pool->driver, mode);
    }
    leave_driver();
    context_pop(pool, pushed);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;
}

/* Called before the free of a part where captures are under way or the context is without fences
 * (policy_is_the_drivers_to_free). Waits and fails as the driver's free would. Does neither while
 * captures that permit frees are under way. Without fences, only this wait shows that parts are
 * unused. */
static CUresult ask_for_part(struct pool *pool, struct context *context,
                             const struct free_call *call)
{
    if (!captures_spare_frees(pool))
        return free_as_the_driver(pool, context, call);
    if (captures_under_way(&pool->captures))
        return CUDA_SUCCESS;
    return call->waitable ? synchronise_like_the_driver(pool, context) : CUDA_SUCCESS;
}

/* Lets the driver answer the free. */
__attribute__((noinline)) static CUresult free_past_the_pool(struct pool *pool, struct block *block,
                                                             CUdeviceptr address,
                                                             const struct free_call *call)
{
    struct context *context = context_of_heap(block->heap);
    CUresult asked = block_is_part(block) ? ask_for_part(pool, context, call) : CUDA_SUCCESS;
    if (asked != CUDA_SUCCESS)
        return asked;
    if (!call->waitable)
        return heap_free_by_driver(pool, block, address, call->release, call->argument);
    struct driver_free own;
    heap_begin_driver_free(pool, context, &own);
    CUresult result = heap_free_by_driver(pool, block, address, call->release, call->argument);
    heap_end_driver_free(context, &own);
    if (!context_is_usable(context))
        heap_free_pending(pool, context);
    return result;
}

/* Refuses a free whose address is not, or no longer, that of a live block. Releases the lock. */
static CUresult refuse_free(struct heap *heap)
{
    heap_lock_must_be_held(heap);
    heap_unlock(heap);
    return CUDA_ERROR_INVALID_VALUE;
}

/* Puts a block that this thread has claimed into its cache, or into the heap's lists if the place
 * has no bin. Returns true if a fence is due. An uncached block gets a fence of its own, since it
 * is released to the driver as soon as it is clean. */
static bool put_freed(struct context *context, const struct place *place, struct block *block,
                      uint64_t stamp)
{
    lock_must_be_held(&context->lock);
    if (place->bin)
        return thread_cache_push(place->cache, place->bin, block, stamp);
    heap_add_pending(heap_of(context), block, stamp);
    return policy_fence_is_due(context) || block->bucket->bytes == 0;
}

/* Whether this free must wait, and waits for a fence instead of synchronising the context. A
 * synchronise spoils every capture that begins meanwhile. So where captures may allocate, only the
 * setting free_synchronizes makes a free synchronise. A synchronise also never ends if the work
 * that was waited for without success needs a lock of the program. */
static bool waits_for_a_fence(const struct pool *pool, struct heap *heap, bool waitable)
{
    heap_lock_must_be_held(heap);
    const struct epochs *epochs = &context_of_heap(heap)->epochs;
    bool by_fence = pool->settings.captures.allocate ||
                    host_work_is_unwaited(&epochs->host_work, epoch_clean(epochs));
    return by_fence && !pool->settings.device.free_synchronizes && waitable &&
           policy_frees_synchronise(pool, heap);
}

/* Claims the block and puts it into the cache or the heap's lists. False if another thread has
 * claimed it. */
static bool take_freed(struct pool *pool, struct block *block, CUdeviceptr address, bool waitable,
                       struct freed *freed)
{
    heap_lock_must_be_held(block->heap);
    struct heap *heap = block->heap;
    struct context *context = context_of_heap(heap);
    heap_note_user(pool, heap);
    struct place place = place_for_free(pool, heap, block->bucket);
    bool by_fence = waits_for_a_fence(pool, heap, waitable);
    *freed = (struct freed){.host_work = by_fence || (waitable && policy_has_host_work(context)),
                            .part = block_is_part(block)};
    /* If the wait fails, the block can be taken back from the heap's lists, but not from a cache.
     */
    if (freed->host_work)
        place.bin = NULL;
    if (!block_claim(block, address, place.bin ? BLOCK_CACHED : BLOCK_PENDING))
        return false;
    freed->synchronise = !by_fence && policy_frees_synchronise(pool, heap) && waitable;
    freed->stamp = epoch_current(&context->epochs);
    freed->stamp_before = counter_get(&block->epoch);
    freed->driver_frees = heap->driver_frees_begun;
    freed->bucket = block->bucket;
    bool due = put_freed(context, &place, block, freed->stamp);
    if (due && place.cache)
        place_refresh_cache(heap, place.cache);
    if (!freed->synchronise && (due || freed->host_work))
        freed->fence = heap_begin_fence(context, waitable);
    /* No fence was begun: another thread is recording one, or this free synchronises. This cache
     * soon checks again whether one is due. */
    if (due && !freed->fence && place.cache)
        thread_cache_count_again(place.cache);
    return true;
}

/* Waits for the fence of this free, as the driver's own free would wait. Where there is no fence,
 * the driver frees the block after all, and its free waits. The driver frees something else in the
 * place of a part, which it does not know, or of a block that is pending no longer. */
static CUresult wait_for_host_work(struct pool *pool, struct block *block, CUdeviceptr address,
                                   const struct free_call *call, const struct freed *freed)
{
    struct context *context = context_of_heap(block->heap);
    CUresult result;
    if (heap_wait_for_stamp(pool, context, freed->stamp, &result))
        return result;
    if (!freed->part && take_back(block->heap, block, address, freed))
        return free_past_the_pool(pool, block, address, call);
    CUresult waited = heap_wait_by_free(pool, context);
    return result == CUDA_SUCCESS ? waited : result;
}

/* The unlocked part of a free: records the fence, and waits. */
static CUresult fence_and_wait(struct pool *pool, struct block *block, CUdeviceptr address,
                               const struct free_call *call, const struct freed *freed)
{
    no_lock_may_be_held_behind(LOCK_LAST_ACROSS_DRIVER_CALLS);
    struct context *context = context_of_heap(block->heap);
    CUresult result = CUDA_SUCCESS;
    if (freed->synchronise) {
        result = wait_in_free(pool, block, address, freed);
        /* The context's own work has completed. Only other contexts' work can leave blocks pending.
         */
        if (contexts_were_several(pool))
            heap_wait_if_missed(pool, context, monotonic_now());
        return result;
    }
    if (freed->fence)
        result = heap_end_free(pool, context, freed->fence, call->waitable);
    if (call->waitable &&
        __builtin_expect(heap_is_behind_driver_frees(block->heap, freed->driver_frees), 0))
        heap_wait_for_driver_frees(context, freed->driver_frees, freed->stamp);
    CUresult waited =
        freed->host_work ? wait_for_host_work(pool, block, address, call, freed) : CUDA_SUCCESS;
    return result == CUDA_SUCCESS ? waited : result;
}

/* Whether a free in a stream's order is better left to the driver, because little memory is left.
 * The driver can reuse the memory once that stream's work has completed. The pool can reuse it only
 * once all of the context's work has. A plain free waits then (heap_wait_if_missed), but this one
 * must not wait. The driver is not asked for the room where it frees the block anyway. */
static bool is_missed_in_a_streams_order(struct pool *pool, struct block *block)
{
    struct heap *heap = block->heap;
    heap_lock(heap);
    bool is_the_drivers = policy_is_the_drivers_to_free(pool, context_of_heap(heap), block);
    heap_unlock(heap);
    return !is_the_drivers && heap_would_miss(pool, context_of_heap(heap), block->bytes);
}

/* Prepares the thread to have a cache. While frees have to wait, also queries the fences: the work
 * that was waited for without success may have completed, and nobody has asked. */
static void prepare_free(struct pool *pool, struct context *context, bool waitable)
{
    thread_cache_prepare_thread(pool);
    if (waitable && frees_may_wait(&context->epochs.frees_wait))
        epoch_ask_all(pool, context);
}

/* Frees the block into the pool. Releases the lock. */
static CUresult free_into_pool(struct pool *pool, struct block *block, CUdeviceptr address,
                               const struct free_call *call)
{
    heap_lock_must_be_held(block->heap);
    struct freed freed;
    if (!take_freed(pool, block, address, call->waitable, &freed))
        return refuse_free(block->heap);
    heap_unlock(block->heap);
    thread_state.freeing = freed.bucket->counters;
    CUresult result = fence_and_wait(pool, block, address, call, &freed);
    thread_state.freeing = NULL;
    return result;
}

CUresult heap_free(struct pool *pool, struct block *block, CUdeviceptr address,
                   const struct free_call *call)
{
    no_lock_may_be_held_behind(LOCK_LAST_ACROSS_DRIVER_CALLS);
    struct heap *heap = block->heap;
    bool whole = !block_is_part(block);
    bool missed = whole && !call->waitable && is_missed_in_a_streams_order(pool, block);
    prepare_free(pool, context_of_heap(heap), call->waitable);
    heap_lock(heap);
    if (!block_is_live_at(block, address))
        return refuse_free(heap);
    if (missed || policy_is_the_drivers_to_free(pool, context_of_heap(heap), block) ||
        (whole && is_not_worth_keeping(heap, block, call->waitable))) {
        heap_unlock(heap);
        return free_past_the_pool(pool, block, address, call);
    }
    return free_into_pool(pool, block, address, call);
}
