#include "parked.h"

#include "core/base/size_class.h"
#include "core/contexts/epoch.h"
#include "core/contexts/pool_state.h"
#include "sums.h"

bool heap_own(struct block *block, CUdeviceptr address)
{
    heap_lock(block->heap);
    bool live = block_mark(block, address, BLOCK_OWNED);
    heap_unlock(block->heap);
    return live;
}

void heap_disown(struct block *block, CUdeviceptr address)
{
    heap_lock(block->heap);
    block_unmark(block, address, BLOCK_OWNED);
    heap_unlock(block->heap);
}

bool heap_park(struct block *block, CUdeviceptr address)
{
    heap_lock(block->heap);
    bool live = block_claim(block, address, BLOCK_KEPT);
    heap_unlock(block->heap);
    return live;
}

bool heap_take_parked(struct block *block, CUdeviceptr address, size_t bytes)
{
    struct heap *heap = block->heap;
    heap_lock(heap);
    bool taken = block_address(block) == address && block_state(block) == BLOCK_KEPT &&
                 !block_is_shared(block);
    if (taken) {
        struct bucket_counters *counters = block->bucket->counters;
        counter_subtract(&heap->live_requested, counter_get(&block->requested));
        counter_set(&block->requested, bytes);
        block_hand_out_kept(block, address);
        heap_count_live(heap, block);
        counter_add(&counters->frees, 1);
        counter_add(&counters->requested_bytes, bytes);
        counter_add(&counters->hits[HIT_CLEAN], 1);
    }
    heap_unlock(heap);
    return taken;
}

uint64_t heap_size_of_block(const struct context *context, size_t bytes)
{
    uint64_t rounded = size_class_round(&heap_of(context)->classes, bytes);
    return rounded ? rounded : bytes;
}

bool heap_unpark(struct pool *pool, struct block *block, CUdeviceptr address)
{
    struct heap *heap = block->heap;
    thread_id(pool);
    heap_lock(heap);
    bool unparked = block_address(block) == address && block_state(block) == BLOCK_KEPT &&
                    !block_is_shared(block);
    if (unparked) {
        block_set_state(block, BLOCK_PENDING);
        heap_add_pending(heap, block, epoch_current(&context_of_heap(heap)->epochs));
    }
    heap_unlock(heap);
    return unparked;
}

bool heap_would_hand_out(struct block *block, CUdeviceptr address)
{
    heap_lock(block->heap);
    enum block_state state = block_state(block);
    bool would = block_address(block) == address &&
                 (state == BLOCK_CACHED || state == BLOCK_PENDING || state == BLOCK_CLEAN);
    heap_unlock(block->heap);
    return would;
}
