#include "lost.h"

#include "cache_set.h"
#include "core/contexts/epoch.h"
#include "core/contexts/pool_state.h"
#include "sums.h"

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

void heap_set_ending(struct heap *heap, bool ending)
{
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
