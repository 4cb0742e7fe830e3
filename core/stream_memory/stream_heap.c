#include "stream_heap.h"

#include "core/contexts/pool_state.h"
#include "stream_cut.h"
#include "stream_miss.h"
#include "stream_search.h"
#include "stream_shelf.h"

/* What the stream's own order does not give at once. */
static bool allocate_slowly(struct pool *pool, struct stream_ref ref, CUstream handle,
                            struct shelf *shelf, struct bucket *bucket, CUdeviceptr *address,
                            size_t bytes, CUresult *result)
{
    struct search search;
    struct stream_block *block = NULL;
    enum hit hit = HIT_CLEAN;
    if (!search_begin(&search, pool, ref, handle, shelf, bucket))
        return false;
    *result = CUDA_SUCCESS;
    if (bucket->bytes && shelf_splits(ref.stream)) {
        if (stream_cut_after_asking(&search, shelf, bucket, address, bytes))
            return true;
        stream_cut_search_segment(&search, shelf, bucket);
    }
    if (bucket->bytes && !search_replaces_taken(&search, search.whole ? search.whole : bucket))
        block = search_others(&search, &hit);
    if (!block && bucket->bytes && search.host_only && search_asks(&search)) {
        block = search_ask_about_own(&search, bucket);
        hit = HIT_QUERIED;
    }
    if (block)
        *address = stream_adopt(&search, shelf, bucket, block, bytes, hit);
    else
        *result = stream_miss(pool, shelf, bucket, address, bytes, &search);
    /* What is wrong beside want of memory the driver shall say of the program's own call. */
    return *result == CUDA_SUCCESS || *result == CUDA_ERROR_OUT_OF_MEMORY;
}

bool stream_allocate(struct pool *pool, CUdeviceptr *address, size_t bytes, struct mempool *mempool,
                     struct stream_ref ref, CUstream handle, CUresult *result)
{
    struct stream *stream = ref.stream;
    struct stream_block *block = NULL;
    uint64_t rounded = size_class_round(&stream->on_device->classes, bytes);
    lock_take(&stream->lock, LOCK_STREAM);
    bool served = stream_is(ref) && shelf_is_usable(stream->context);
    struct shelf *shelf = served ? shelf_get(pool, stream, mempool) : NULL;
    if (!shelf) {
        lock_give(&stream->lock);
        return false;
    }
    struct bucket *bucket = rounded ? shelf_get_bucket(pool, shelf, rounded) : NULL;
    if (bucket && shelf_splits(stream))
        block = stream_cut_own(stream, shelf, bucket, false);
    else if (bucket)
        block = search_take_own(stream, bucket);
    else
        bucket = &shelf->unkept;
    if (block)
        shelf_hand_out_hit(shelf, bucket, block, bytes, HIT_CLEAN);
    lock_give(&stream->lock);
    if (!block)
        return allocate_slowly(pool, ref, handle, shelf, bucket, address, bytes, result);
    *address = block_address(&block->block);
    *result = CUDA_SUCCESS;
    return true;
}
