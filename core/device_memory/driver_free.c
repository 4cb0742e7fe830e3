#include "driver_free.h"

#include "cache_set.h"
#include "core/base/clock.h"
#include "core/contexts/capture.h"
#include "core/contexts/epoch.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"
#include "sums.h"

/* Waits, without a limit, for earlier work that may still use a block reused after a barrier. The
 * driver does not know that this work uses the block, so its free would not wait for it. May
 * release and retake the lock. */
static void wait_for_barrier_of(struct pool *pool, struct context *context,
                                const struct block *block)
{
    lock_must_be_held(&context->lock);
    if (counter_get(&block->epoch) > epoch_clean(&context->epochs))
        epoch_wait_until(pool, context, counter_get(&block->epoch), UINT64_MAX);
}

/* Takes a live block out of the table, so that the address's next owner finds no old record. False
 * if the block is no longer live there. */
static bool begin_leaving(struct pool *pool, struct block *block, CUdeviceptr address)
{
    struct heap *heap = block->heap;
    no_lock_may_be_held_behind(LOCK_LAST_ACROSS_DRIVER_CALLS);
    heap_lock(heap);
    if (block_is_live_at(block, address))
        wait_for_barrier_of(pool, context_of_heap(heap), block);
    bool live = heap_claim_live(heap, block, address, BLOCK_LEAVING);
    if (live)
        heap_leave_table(pool, heap, block);
    heap_unlock(heap);
    return live;
}

/* Makes the block live again after the driver has refused to free it. */
static void come_back(struct pool *pool, struct block *block)
{
    heap_lock_must_be_held(block->heap);
    if (!heap_enter_table(pool, block->heap, block))
        return;
    block_set_state(block, BLOCK_LIVE);
    counter_add(&block->bucket->counters->reserved_bytes, block->bytes);
    heap_count_live(block->heap, block);
}

static CUresult keep_part(struct pool *pool, struct block *block, CUdeviceptr address)
{
    struct heap *heap = block->heap;
    thread_id(pool);
    heap_lock(heap);
    bool live = block_claim(block, address, BLOCK_PENDING);
    if (live)
        heap_add_pending(heap, block, epoch_current(&context_of_heap(heap)->epochs));
    heap_unlock(heap);
    return live ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult heap_free_by_driver(struct pool *pool, struct block *block, CUdeviceptr address,
                             heap_release *release, void *argument)
{
    struct heap *heap = block->heap;
    if (block_is_part(block))
        return keep_part(pool, block, address);
    if (!begin_leaving(pool, block, address))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t started = monotonic_now();
    enter_driver();
    CUresult result = release(pool, address, argument);
    leave_driver();
    uint64_t nanoseconds = monotonic_now() - started;
    bool gone = driver_is_rid_of(pool->driver, address, result);
    heap_lock(heap);
    if (block_state(block) == BLOCK_LEAVING && block_address(block) == address) {
        if (gone) {
            const struct bucket *bucket = block->bucket;
            thread_count_wait(bucket->counters);
            heap_forget_block(pool, heap, block);
            bucket_count_return(bucket->counters, EVICTION_FREE, nanoseconds);
            counter_add(&bucket->counters->frees, 1);
        } else {
            come_back(pool, block);
        }
    }
    heap_unlock(heap);
    return result;
}

static struct block *oldest_pending_of_driver(const struct heap *heap)
{
    heap_lock_must_be_held(heap);
    struct block *block = heap->pending.first;
    while (block && block_is_part(block))
        block = block->links[LINK_HEAP].next;
    return block;
}

/* Lets the driver free the oldest pending block that is not a part. False if the driver refuses, or
 * there is no such block. May release and retake the lock. */
static bool free_oldest_pending(struct pool *pool, struct heap *heap)
{
    heap_lock_must_be_held(heap);
    struct block *block = oldest_pending_of_driver(heap);
    if (!block)
        return false;
    heap_begin_leaving(heap, block);
    heap_leave_table(pool, heap, block);
    struct bucket_counters *counters = block->bucket->counters;
    heap_unlock(heap);
    uint64_t started = monotonic_now();
    enter_driver();
    struct relaxed_mode mode = relaxed_mode_where_captures_allocate(pool);
    CUresult result = pool->driver->cuMemFree_v2(block_address(block));
    relaxed_mode_end(pool->driver, mode);
    leave_driver();
    uint64_t nanoseconds = monotonic_now() - started;
    bool gone = result == CUDA_SUCCESS || !driver_has_block(pool->driver, block_address(block));
    heap_lock(heap);
    if (gone) {
        heap_forget_block(pool, heap, block);
        bucket_count_return(counters, EVICTION_FREE, nanoseconds);
    } else {
        heap_put_back_pending(pool, heap, block);
    }
    return gone;
}

void heap_free_pending(struct pool *pool, struct context *context)
{
    struct heap *heap = heap_of(context);
    if (!captures_spare_frees(pool) || !context_pin(context, context_generation(context)))
        return;
    heap_lock(heap);
    thread_caches_collect(heap);
    while (free_oldest_pending(pool, heap))
        continue;
    heap_unlock(heap);
    context_unpin(context);
}

void heap_free_pending_of_no_host(struct pool *pool, struct context *context)
{
    struct heap *heap = heap_of(context);
    struct host_work *work = &context->epochs.host_work;
    heap_lock(heap);
    bool may = host_work_may_free(work);
    heap_unlock(heap);
    if (!may)
        return;
    heap_free_pending(pool, context);
    heap_lock(heap);
    host_work_has_freed(work);
    heap_unlock(heap);
}

/* ---- blocks that were freed past the pool ---- */

struct forgetting {
    struct pool *pool;
    struct heap *heap;
};

/* Forgets one block of a context that has ended. */
static void forget_visited(struct block *block, void *argument)
{
    struct forgetting *forgetting = argument;
    struct bucket_counters *counters = block->bucket->counters;
    bool live = block_state(block) == BLOCK_LIVE || block_state(block) == BLOCK_KEPT;
    bool spare = block_state(block) == BLOCK_SPARE;
    heap_forget_block(forgetting->pool, forgetting->heap, block);
    if (live)
        bucket_count_lost(counters);
    else if (!spare)
        counter_add(&counters->evictions[EVICTION_CONTEXT], 1);
}

void heap_set_ending(struct context *context, bool ending)
{
    struct heap *heap = heap_of(context);
    heap_lock(heap);
    heap->ending = ending;
    heap->ending_or_finest = heap->finest_sizes || ending;
    thread_caches_update_closed(heap);
    if (ending)
        thread_caches_wait(heap);
    heap_unlock(heap);
}

void heap_reset(struct pool *pool, struct context *context)
{
    struct heap *heap = heap_of(context);
    struct forgetting forgetting = {pool, heap};
    heap_lock(heap);
    thread_caches_collect(heap);
    block_records_visit(&heap->records, forget_visited, &forgetting);
    /* Pages of segments still count, because the segments were forgotten part by part. */
    counter_set(&heap->pages.free_bytes, 0);
    counter_set(&heap->counters->segments.count, 0);
    counter_set(&heap->counters->segments.bytes, 0);
    epoch_reset(&context->epochs);
    heap->frees_since_fence = 0;
    heap->bytes_since_fence = 0;
    counter_set(&heap->counters->earlier_peak, heap_peak_requested(heap));
    counter_set(&heap->counters->peak_requested, 0);
    counter_set(&heap->peaks.live, 0);
    counter_set(&heap->peaks.reserved, 0);
    keep_reset(&heap->keep);
    thread_caches_update_closed(heap);
    heap_unlock(heap);
}

bool heap_freed_outside(struct pool *pool, CUdeviceptr address)
{
    struct block *block = block_table_find(&pool->blocks, address);
    if (!block)
        return true;
    /* The driver can't free a part, so the part stays the program's. */
    if (block_is_part(block))
        return false;
    struct heap *heap = block->heap;
    heap_lock(heap);
    bool live = heap_claim_live(heap, block, address, BLOCK_LEAVING);
    if (live) {
        struct bucket_counters *counters = block->bucket->counters;
        heap_forget_block(pool, heap, block);
        bucket_count_lost(counters);
    }
    heap_unlock(heap);
    return live;
}

/* Whether the block is free and in the heap's lists. */
static bool is_listed(const struct block *block)
{
    return block_state(block) == BLOCK_PENDING || block_state(block) == BLOCK_CLEAN;
}

void heap_forget_address(struct pool *pool, CUdeviceptr address)
{
    struct block *block = block_table_find(&pool->blocks, address);
    /* The driver gives out no address inside an allocation of its own. No block begins where a
     * segment does, so nobody can have freed that address. */
    if (!block || block_is_part(block))
        return;
    struct heap *heap = block->heap;
    heap_lock(heap);
    bool live = heap_claim_live(heap, block, address, BLOCK_LEAVING);
    if (!live && block_address(block) == address && block_state(block) == BLOCK_CACHED)
        thread_caches_collect(heap);
    bool kept = block_address(block) == address && block_state(block) == BLOCK_KEPT;
    if (live || kept || (block_address(block) == address && is_listed(block))) {
        struct bucket_counters *counters = block->bucket->counters;
        heap_forget_block(pool, heap, block);
        counter_add(&counters->evictions[EVICTION_CONTEXT], 1);
        counter_add(&counters->frees, live || kept);
    }
    heap_unlock(heap);
}
