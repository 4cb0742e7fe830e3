/*
 * The quick path of stream-ordered memory. An allocation takes a block that was freed on the same
 * stream; a free is on the stream on which the block was allocated. Both take the stream's lock
 * without waiting for it. Whatever needs more is left, with nothing done, to the slow functions of
 * pool_stream.c.
 */
#include "pool_stream.h"

#include "core/housekeeper/housekeeper.h"
#include "core/stream_memory/mempool_list.h"
#include "core/stream_memory/stream_free.h"
#include "core/stream_memory/stream_reserve.h"
#include "core/stream_memory/stream_shelf.h"
#include "core/stream_memory/stream_table.h"

CUresult pool_allocate_async_at_once(struct pool *pool, CUdeviceptr *address, size_t bytes,
                                     CUmemoryPool memory_pool, CUstream handle,
                                     allocate_otherwise *otherwise)
{
    if (!address || !bytes || !pool_streams_are_served(pool))
        return otherwise(address, bytes, memory_pool, handle);
    struct stream_ref ref = stream_ask(pool, handle);
    struct stream *stream = ref.stream;
    if (!stream || !lock_try(&stream->lock, LOCK_STREAM))
        return otherwise(address, bytes, memory_pool, handle);
    const struct mempool *mempool = memory_pool ? mempool_find_known(pool, memory_pool)
                                                : mempool_known_current(stream->on_device);
    struct shelf *shelf = shelf_to_front(stream, mempool);
    struct bucket *bucket = shelf ? shelf_bucket_for(shelf, bytes) : NULL;
    struct block *found = NULL;
    if (bucket && stream_is(ref) && shelf_is_usable(stream->context))
        found = shelf_find_own(stream, bucket);
    if (found) {
        shelf_take_own(stream, bucket, stream_block_of(found));
        *address = shelf_hand_out_hit(shelf, bucket, stream_block_of(found), bytes, HIT_CLEAN);
    }
    lock_give(&stream->lock);
    return found ? CUDA_SUCCESS : otherwise(address, bytes, memory_pool, handle);
}

__attribute__((noinline)) static CUresult look(struct pool *pool, struct stream *stream,
                                               uint64_t bytes)
{
    stream_reserve_look(pool, stream, bytes);
    return CUDA_SUCCESS;
}

__attribute__((always_inline)) static inline CUresult
free_where_it_was(struct pool *pool, CUdeviceptr address, struct stream_ref ref, CUstream handle,
                  free_async *otherwise)
{
    struct stream_block *block = stream_block_find(&streams_of(pool)->blocks, address);
    struct shelf *shelf = block ? shelf_of(block) : NULL;
    struct stream *stream = ref.stream;
    if (!shelf || !stream || shelf->stream != stream || !lock_try(&stream->lock, LOCK_STREAM))
        return otherwise(address, handle);
    /* The block and the stream may have changed before the lock was taken, so their fields are read
     * again under it. */
    if (__builtin_expect(!stream->own_order, 0) && stream_is(ref))
        return stream_free_with_marker(pool, shelf, block, address, handle)
                   ? CUDA_SUCCESS
                   : otherwise(address, handle);
    if (__builtin_expect(!stream_is(ref) || !shelf_may_free_at_once(shelf, block, address), 0)) {
        lock_give(&stream->lock);
        return otherwise(address, handle);
    }
    uint64_t bytes = block->block.bytes;
    atomic_store_explicit(&block->held_at, 0, memory_order_relaxed);
    shelf_count_not_live(shelf, block);
    shelf_make_pending_next(stream, block->block.bucket, block, address);
    bool is_time =
        shelf_has_fallen(shelf) || shelf_look_is_due(stream) || bytes >= HOUSEKEEPER_MUCH;
    lock_give(&stream->lock);
    return __builtin_expect(is_time, 0) ? look(pool, stream, bytes) : CUDA_SUCCESS;
}

/* Finding the stream takes a question to the driver, which is not asked for a block that is not the
 * pool's. */
__attribute__((noinline)) static CUresult free_on_asked(struct pool *pool, CUdeviceptr address,
                                                        CUstream handle, free_async *otherwise)
{
    return stream_block_at(pool, address)
               ? free_where_it_was(pool, address, stream_ask(pool, handle), handle, otherwise)
               : otherwise(address, handle);
}

CUresult pool_free_async_at_once(struct pool *pool, CUdeviceptr address, CUstream handle,
                                 free_async *otherwise)
{
    if (!pool_streams_are_served(pool))
        return otherwise(address, handle);
    struct stream_ref ref = stream_recall(pool, handle);
    return __builtin_expect(ref.stream != NULL, 1)
               ? free_where_it_was(pool, address, ref, handle, otherwise)
               : free_on_asked(pool, address, handle, otherwise);
}
