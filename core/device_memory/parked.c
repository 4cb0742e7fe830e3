#include "parked.h"

#include "core/contexts/epoch.h"
#include "core/contexts/pool_state.h"

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
