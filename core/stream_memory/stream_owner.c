#include "stream_owner.h"

#include "core/contexts/device.h"
#include "core/contexts/pool_state.h"
#include "mempool_list.h"
#include "stream_parts.h"
#include "stream_shelf.h"
#include "stream_table.h"
#include "use.h"

bool stream_block_claim(struct stream_block *block, CUdeviceptr address)
{
    /* Until the lock is taken, the block may be freed, and move to another stream's shelf. */
    for (;;) {
        struct shelf *shelf = shelf_of(block);
        if (!shelf || !stream_block_is_held(block, address))
            return false;
        lock_take(&shelf->stream->lock, LOCK_STREAM);
        bool same = shelf_of(block) == shelf;
        bool held = same && stream_block_is_held(block, address);
        if (held)
            atomic_store_explicit(&block->held_at, 0, memory_order_relaxed);
        lock_give(&shelf->stream->lock);
        if (same)
            return held;
    }
}

void stream_block_leave_shelf(struct stream_block *block)
{
    struct shelf *shelf = shelf_of(block);
    lock_take(&shelf->stream->lock, LOCK_STREAM);
    shelf_count_not_live(shelf, block);
    shelf_count_out(shelf, block->block.bucket, block);
    shelf_follow_fall(shelf);
    lock_give(&shelf->stream->lock);
}

void stream_block_return_to_shelf(struct stream_block *block)
{
    struct shelf *shelf = shelf_of(block);
    lock_take(&shelf->stream->lock, LOCK_STREAM);
    shelf_count_in(shelf, block->block.bucket, block);
    shelf_count_live(shelf, block->block.bucket, shelf_asked(block));
    lock_give(&shelf->stream->lock);
}

/* ---- plain frees ---- */

CUresult stream_block_free_plainly(const struct driver *driver, const struct stream_block *block)
{
    CUresult result = driver->cuMemFree_v2(block_address(&block->block));
    if (result == CUDA_SUCCESS)
        atomic_fetch_add(&block->mempool->stays, block->block.bytes);
    return result;
}

/* Moves the requested bytes from used_bytes to plainly_freed while it holds the stream's lock. */
uint64_t stream_block_begin_plain_free(struct pool *pool, struct stream_block *block,
                                       struct shelf **counted)
{
    struct shelf *shelf = *counted = shelf_of(block);
    bool noted = mempool_note_plain_free(pool, block->mempool);
    lock_take(&shelf->stream->lock, LOCK_STREAM);
    uint64_t asked = shelf_asked(block);
    shelf_count_not_live(shelf, block);
    counter_add(&shelf->plainly_freed, asked);
    atomic_store_explicit(&block->asked, 0, memory_order_relaxed);
    shelf_note_used(shelf, NULL);
    lock_give(&shelf->stream->lock);
    if (noted)
        mempool_start_shelves_again(pool, block->mempool);
    return asked;
}

void stream_block_plain_free_failed(struct stream_block *block, struct shelf *counted,
                                    uint64_t asked)
{
    lock_take(&counted->stream->lock, LOCK_STREAM);
    counter_subtract(&counted->plainly_freed, asked);
    if (shelf_of(block) == counted && shelf_asked(block) == 0) {
        atomic_store_explicit(&block->asked, asked, memory_order_relaxed);
        counter_add(&counted->used_bytes, asked);
    }
    shelf_note_used(counted, NULL);
    lock_give(&counted->stream->lock);
}

/* ---- blocks that leave the pool ---- */

void stream_block_begin_free(struct pool *pool, struct stream_block *block)
{
    stream_block_leave_shelf(block);
    block_set_state(&block->block, BLOCK_LEAVING);
    block_table_remove(&streams_of(pool)->blocks, block_address(&block->block), &block->block);
}

static void forget_block(const struct stream_block *block)
{
    struct device *device = block->context->device;
    device_unreserve(device, block->block.bytes);
    device_count_returned(device, block->block.bytes);
    mempool_block_is_gone(block->mempool, block->block.bytes);
    /* Relaxed: it is only compared with limits. */
    atomic_fetch_sub_explicit(&stream_device(device)->reserved_bytes, block->block.bytes,
                              memory_order_relaxed);
}

void stream_block_recycle(struct pool *pool, struct stream_block *block)
{
    forget_block(block);
    stream_block_put(&streams_of(pool)->records, block);
}

void stream_block_freed(struct pool *pool, struct stream_block *block, uint64_t nanoseconds)
{
    struct shelf *shelf = shelf_of(block);
    struct bucket_counters *counters = block->block.bucket->counters;
    lock_take(&shelf->stream->lock, LOCK_STREAM);
    bucket_count_return(counters, EVICTION_FREE, nanoseconds);
    counter_add(&counters->frees, 1);
    lock_give(&shelf->stream->lock);
    stream_block_recycle(pool, block);
}

/* Forgets a block that no driver call of the pool has freed. It counts the block as lost, not as
 * freed. */
static void lose(struct pool *pool, struct stream_block *block)
{
    struct shelf *shelf = shelf_of(block);
    lock_take(&shelf->stream->lock, LOCK_STREAM);
    bucket_count_lost(block->block.bucket->counters);
    lock_give(&shelf->stream->lock);
    stream_block_recycle(pool, block);
}

void stream_block_free_failed(struct pool *pool, struct stream_block *block)
{
    if (!block_table_insert(&streams_of(pool)->blocks, block_address(&block->block), &block->block))
        return;
    block_set_state(&block->block, BLOCK_LIVE);
    stream_block_return_to_shelf(block);
    atomic_store_explicit(&block->held_at, block_address(&block->block), memory_order_release);
}

/* ---- blocks that were freed without the pool ---- */

static bool forget_held(struct pool *pool, struct stream_block *block, CUdeviceptr address)
{
    if (!stream_block_claim(block, address))
        return false;
    use_forget(pool, block);
    stream_block_begin_free(pool, block);
    lose(pool, block);
    return true;
}

bool stream_block_freed_outside(struct pool *pool, CUdeviceptr address)
{
    struct stream_block *block = stream_block_find(&streams_of(pool)->blocks, address);
    /* The driver cannot free a part, so the program still holds the part. */
    return !block || (!block_is_part(&block->block) && forget_held(pool, block, address));
}

/* The pool counts the block as free, but the driver has allocated its address anew. So somebody
 * freed the block without the pool. */
static void forget_stale(struct pool *pool, struct stream_block *block, CUdeviceptr address)
{
    struct shelf *shelf = shelf_of(block);
    if (!shelf)
        return;
    lock_take(&shelf->stream->lock, LOCK_STREAM);
    bool stale =
        shelf_of(block) == shelf && block_address(&block->block) == address &&
        (block_state(&block->block) == BLOCK_CLEAN || block_state(&block->block) == BLOCK_PENDING);
    if (stale) {
        shelf_detach(shelf->stream, block);
        counter_add(&block->block.bucket->counters->evictions[EVICTION_CONTEXT], 1);
        block_table_remove(&streams_of(pool)->blocks, address, &block->block);
    }
    lock_give(&shelf->stream->lock);
    if (stale)
        stream_block_recycle(pool, block);
}

/* Forgets the segment of this record, which somebody has freed without the pool. */
static void lose_segment(struct pool *pool, struct stream_block *record)
{
    struct shelf *home = stream_part_shelf(record);
    struct block *chain = NULL;
    if (!home)
        return;
    lock_take(&home->stream->lock, LOCK_STREAM);
    /* Meanwhile the segment may have become a whole block again. */
    if (stream_part_shelf(record) == home && block_is_part(&record->block))
        chain = stream_parts_lose(home, record);
    lock_give(&home->stream->lock);
    for (struct block *next; chain; chain = next) {
        next = chain->links[LINK_HEAP].next;
        stream_block_recycle(pool, stream_block_of(chain));
    }
}

void stream_block_forget_address(struct pool *pool, CUdeviceptr address)
{
    struct stream_block *block = stream_block_at(pool, address);
    if (block && block_is_part(&block->block)) {
        lose_segment(pool, block);
        block = stream_block_at(pool, address);
    }
    if (block && !forget_held(pool, block, address))
        forget_stale(pool, block, address);
}
