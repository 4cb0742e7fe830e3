#include "ladder.h"

#include "cache_set.h"
#include "cache_threads.h"
#include "core/base/clock.h"
#include "core/base/numbers.h"
#include "core/base/size_class.h"
#include "core/contexts/epoch.h"
#include "core/contexts/fence_list.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/surroundings.h"
#include "heap_miss.h"
#include "parts.h"
#include "place.h"
#include "policies.h"
#include "sums.h"

/* Returns the newest pending block that an earlier barrier protects: all later work of the context
 * is already ordered after the block's last use. NULL where there is none. */
static struct block *take_behind_barrier(struct pool *pool, struct context *context,
                                         const struct place *place)
{
    lock_must_be_held(&context->lock);
    uint64_t stamp = place_oldest_stamp(place);
    uint64_t barrier = context->epochs.barrier;
    if (!stamp || stamp > barrier || !barriers_are_open(pool))
        return NULL;
    place_empty_bin(place);
    struct block *block = place->bucket->pending.last;
    while (block && counter_get(&block->epoch) > barrier)
        block = block->links[LINK_BUCKET].previous;
    return block;
}

/* Returns a block that was pending, ordered after the oldest fence that makes one clean. The order
 * comes from a barrier where barriers may be used, otherwise from a wait on the host. NULL where
 * neither gives a block. Releases and retakes the lock. */
static struct block *wait_for_one(struct pool *pool, struct context *context,
                                  const struct place *place, enum hit *hit)
{
    lock_must_be_held(&context->lock);
    struct bucket *bucket = place->bucket;
    if (policy_barriers_may_be_used(pool, heap_of(context))) {
        uint64_t stamp = counter_get(&bucket->pending.first->epoch);
        struct fence *fence = epoch_fence_for(&context->epochs, stamp, true);
        *hit = HIT_BARRIER;
        if (fence)
            epoch_raise_barrier(pool, context, fence);
        struct block *clean = place_newest_clean(place);
        return clean ? clean : take_behind_barrier(pool, context, place);
    }
    *hit = HIT_WAITED;
    /* Another thread may take the block that has become clean. After a few lost races the caller
     * asks the driver for a new block. */
    for (int tries = 0; tries < 4 && bucket->pending.first; tries++) {
        if (!epoch_wait_in_allocation(pool, context, counter_get(&bucket->pending.first->epoch)))
            return NULL;
        struct block *clean = place_newest_clean(place);
        if (clean)
            return clean;
    }
    return NULL;
}

/* The shortest and the longest wait of wait_in_turn, in nanoseconds. */
#define TURN_SHORTEST UINT64_C(30000)
#define TURN_LONGEST  UINT64_C(2000000)

/* Called while another thread is in the driver for a new block, and this thread may ask next. This
 * thread waits meanwhile for a pending block of this place, for about as long as a new block takes.
 * NULL where none has become clean. Releases and retakes the lock. */
static struct block *wait_in_turn(struct pool *pool, struct context *context,
                                  const struct place *place, enum hit *hit)
{
    lock_must_be_held(&context->lock);
    *hit = HIT_WAITED;
    uint64_t cost = (uint64_t)policy_cost_of_growth(heap_of(context));
    uint64_t turn = smaller_of(larger_of(cost, TURN_SHORTEST), TURN_LONGEST);
    bool over = epoch_wait_in_allocation_until(pool, context, place_oldest_stamp(place),
                                               monotonic_now() + turn);
    return over && !heap_of(context)->ending ? place_newest_clean(place) : NULL;
}

/* Rung 2: returns a pending block of this place that an earlier barrier protects, or one that the
 * GPU turns out to have finished with. Releases and retakes the lock. */
static struct block *query_pending(struct pool *pool, struct context *context,
                                   const struct place *place, enum hit *hit)
{
    lock_must_be_held(&context->lock);
    if (!place_oldest_stamp(place))
        return NULL;
    struct block *block = take_behind_barrier(pool, context, place);
    *hit = HIT_BARRIER;
    if (block)
        return block;
    epoch_query_for(pool, context, place_oldest_stamp(place));
    *hit = HIT_QUERIED;
    if (heap_of(context)->ending)
        return NULL;
    return place_newest_clean(place);
}

/* Rung 4 before rung 3, where memory is to stay hot. One barrier after the newest fence of a free
 * serves all blocks that were freed before that fence. NULL where no such fence makes this place's
 * blocks clean. Releases and retakes the lock. */
static struct block *take_hot(struct pool *pool, struct context *context, const struct place *place,
                              enum hit *hit)
{
    lock_must_be_held(&context->lock);
    struct heap *heap = heap_of(context);
    uint64_t fenced = atomic_load_explicit(&context->epochs.fenced, memory_order_relaxed);
    uint64_t stamp = place_oldest_stamp(place);
    if (!stamp || stamp > fenced || !policy_reuses_hot(pool, heap, place->bucket->bytes))
        return NULL;
    struct fence *fence = epoch_fence_for(&context->epochs, fenced, true);
    *hit = HIT_BARRIER;
    if (!fence || !epoch_raise_barrier(pool, context, fence) || heap->ending)
        return NULL;
    struct block *clean = place_newest_clean(place);
    return clean ? clean : take_behind_barrier(pool, context, place);
}

/* Takes the bucket's blocks out of other threads' caches, where that is better than asking the
 * driver or waiting. NULL where it is not better, or yields no block. Releases and retakes the
 * lock. */
static struct block *take_from_other_caches(struct pool *pool, struct context *context,
                                            const struct place *place, enum hit *hit)
{
    lock_must_be_held(&context->lock);
    if (!policy_other_caches_hold_bucket(pool, context, place))
        return NULL;
    thread_caches_take(heap_of(context), place->bucket, !policy_can_wait(context, place));
    *hit = HIT_CLEAN;
    struct block *block = place_newest_clean(place);
    return block ? block : query_pending(pool, context, place, hit);
}

/* Rung 4, once the growth budget is used up. Releases and retakes the lock. */
static struct block *take_after_fence(struct pool *pool, struct context *context,
                                      const struct place *place, enum hit *hit)
{
    lock_must_be_held(&context->lock);
    struct heap *heap = heap_of(context);
    if (place->cache)
        place->cache->waited_ns = -CACHE_WAIT_NO_GROWTH;
    /* Several threads wait for the GPU. One common list needs fewer blocks than a list for each. */
    if (place->bin && !heap_keeps_up(heap) && heap->caches.count > 1)
        thread_caches_share(heap, place->bucket);
    place_empty_bin(place);
    struct block *block = place_newest_clean(place);
    if (!block && place->bucket->pending.first)
        block = wait_for_one(pool, context, place, hit);
    if (!heap->ending)
        return block;
    /* The context is ending and its caches are closed. A block that was in the thread's cache joins
     * the heap's lists, where the end of the context finds it. */
    if (block && place->cache && block_state(block) == BLOCK_CACHED)
        heap_accept(heap, block, heap_slot_of_this_thread());
    return NULL;
}

/* Rungs 2 to 4: returns a block that was not known to be clean, or NULL for a new one. Releases and
 * retakes the lock. */
static struct block *take_pending_block(struct pool *pool, struct context *context,
                                        const struct place *place, enum hit *hit)
{
    lock_must_be_held(&context->lock);
    const struct heap *heap = heap_of(context);
    if (policy_waited_longer_than_a_miss(pool, context, place) ||
        policy_nobody_has_one(heap, place->bucket))
        return NULL;
    struct block *block = query_pending(pool, context, place, hit);
    if (!block && !heap->ending)
        block = take_hot(pool, context, place, hit);
    if (!block && !heap->ending)
        block = take_from_other_caches(pool, context, place, hit);
    if (block || heap->ending || !place_oldest_stamp(place))
        return block;
    if (!policy_may_grow(pool, context, place->bucket))
        return take_after_fence(pool, context, place, hit);
    return policy_growth_is_due(heap) ? NULL : wait_in_turn(pool, context, place, hit);
}

/* Waits while this thread has more than its share of the pending bytes: its long queue would delay
 * every other thread's fence. False if the context is ending by then. Releases and retakes the
 * lock. */
static bool wait_for_the_others(struct pool *pool, struct context *context,
                                const struct thread_cache *cache)
{
    lock_must_be_held(&context->lock);
    while (policy_is_ahead(context, cache) &&
           epoch_wait_in_allocation(pool, context, epoch_clean(&context->epochs) + 1))
        continue;
    return !heap_of(context)->ending;
}

/* Rungs 1 to 4. NULL: the caller asks the driver for a new block. Releases and retakes the lock. */
static struct block *find_block(struct pool *pool, struct context *context,
                                const struct place *place, enum hit *hit)
{
    lock_must_be_held(&context->lock);
    struct thread_cache *cache = place->cache;
    if (!wait_for_the_others(pool, context, cache))
        return NULL;
    struct block *block = place_newest_clean(place);
    if (!block)
        block = heap_cut(heap_of(context), place->bucket, false);
    if (block && cache && cache->waited_ns > 0)
        cache->waited_ns = 0;
    if (!block)
        block = take_pending_block(pool, context, place, hit);
    /* The thread's next free asks for a fence at once. The new block may be the only one of its
     * size. Freed without a fence, it could not be reused, and the next request would miss, too. */
    if (!block && cache && heap_keeps_up(heap_of(context)) && heap_of(context)->caches.count > 1)
        thread_cache_ask_again(cache);
    return block;
}

/* Whether the heap or this thread's cache has met the request. Releases and retakes the lock. */
static bool allocate_from_heap(struct pool *pool, struct context *context, struct bucket *bucket,
                               CUdeviceptr *address, size_t bytes)
{
    lock_must_be_held(&context->lock);
    enum hit hit = HIT_CLEAN;
    struct heap *heap = heap_of(context);
    heap_note_user(pool, heap);
    struct place place = place_of_this_thread(pool, heap, bucket, bytes);
    if (place.cache)
        place.cache->in_slow_path = true;
    struct block *block = find_block(pool, context, &place, &hit);
    if (place.cache)
        place.cache->in_slow_path = false;
    if (!block)
        return false;
    place_hand_out(heap, block, bytes, hit);
    *address = block_address(block);
    place_refill(heap, &place);
    return true;
}

CUresult heap_allocate(struct pool *pool, struct context *context, CUdeviceptr *address,
                       size_t bytes)
{
    no_lock_may_be_held_behind(LOCK_LAST_ACROSS_DRIVER_CALLS);
    struct heap *heap = heap_of(context);
    uint64_t block_bytes = size_class_round(&heap->classes, bytes);
    if (block_bytes == 0)
        return heap_allocate_unkept(pool, context, address, bytes);

    thread_cache_prepare_thread(pool);
    heap_lock(heap);
    if (__builtin_expect(heap->ending_or_finest, 0)) {
        if (heap->ending) {
            heap_unlock(heap);
            return heap_allocate_unkept(pool, context, address, bytes);
        }
        if (heap->classes.policy != BUCKETS_EXACT)
            block_bytes = size_class_finest(bytes);
    }
    struct bucket *bucket = heap_bucket(heap, block_bytes);
    bool hit =
        bucket != &heap->unkept.bucket && allocate_from_heap(pool, context, bucket, address, bytes);
    /* heap_miss releases the lock. */
    if (!hit)
        return heap_miss(pool, context, bucket, address, bytes);
    thread_count_wait(bucket->counters);
    heap_unlock(heap);
    return CUDA_SUCCESS;
}

CUresult heap_allocate_anew(struct pool *pool, struct context *context, CUdeviceptr *address,
                            size_t bytes)
{
    no_lock_may_be_held_behind(LOCK_LAST_ACROSS_DRIVER_CALLS);
    struct heap *heap = heap_of(context);
    struct bucket *bucket = &heap->unkept.bucket;
    uint64_t of_bucket = size_class_round(&heap->classes, bytes);
    /* A program that calls only this function asks about no fence elsewhere. Without this look, the
     * miss below could release none of the blocks that are too many. heap_miss_alone releases the
     * lock. */
    epoch_ask_all(pool, context);
    heap_lock(heap);
    if (of_bucket != 0 && !heap->ending_or_finest)
        bucket = heap_bucket(heap, of_bucket);
    return heap_miss_alone(pool, context, bucket, address, bytes);
}
