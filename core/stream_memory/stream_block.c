#include "stream_block.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/lines.h"
#include "mempool.h"

#define SLAB_BLOCKS 64

static void put_unused(struct stream_block_records *records, struct stream_block *block)
{
    block->block.links[LINK_HEAP].next = records->unused;
    records->unused = &block->block;
}

static bool add_slab(struct stream_block_records *records)
{
    struct stream_block *slab = allocate_apart(STREAM_APART, SLAB_BLOCKS * sizeof *slab);
    if (!slab)
        return false;
    for (size_t i = SLAB_BLOCKS; i-- > 0;)
        put_unused(records, &slab[i]);
    return true;
}

struct stream_block *stream_block_take(struct stream_block_records *records)
{
    struct stream_block *block = NULL;
    lock_take(&records->lock, LOCK_RECORDS);
    if (records->unused || add_slab(records)) {
        block = stream_block_of(records->unused);
        records->unused = block->block.links[LINK_HEAP].next;
    }
    lock_give(&records->lock);
    return block;
}

/* Threads that do not own the record may be reading its key and bytes. */
static void clear(struct block *block)
{
    block_set(block, 0, BLOCK_UNUSED);
    block_set_bytes(block, 0);
    counter_set(&block->epoch, 0);
    block->bucket = NULL;
    block->freed_at = 0;
    block->refused = false;
    memset(block->links, 0, sizeof block->links);
    block_set_part(block, PART_NONE);
    block->below = block->above = NULL;
}

void stream_block_put(struct stream_block_records *records, struct stream_block *block)
{
    clear(&block->block);
    atomic_store_explicit(&block->shelf, NULL, memory_order_relaxed);
    atomic_store_explicit(&block->lost, false, memory_order_relaxed);
    if (block->mempool)
        mempool_drop(block->mempool);
    block->mempool = NULL;
    block->context = NULL;
    block->event = NULL;
    atomic_store_explicit(&block->shared, false, memory_order_relaxed);
    lock_take(&records->lock, LOCK_RECORDS);
    put_unused(records, block);
    lock_give(&records->lock);
}
