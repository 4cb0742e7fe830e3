#include "stream_heap.h"

#include "core/contexts/pool_state.h"
#include "stream_cut.h"
#include "stream_miss.h"
#include "stream_search.h"
#include "stream_shelf.h"

/* For a request that no block in the stream's own order serves. */
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
    /* Any other error than out of memory the driver must report for the program's own call. */
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
        bucket = &shelf->unkept.bucket;
    if (block)
        shelf_hand_out_hit(shelf, bucket, block, bytes, HIT_CLEAN);
    lock_give(&stream->lock);
    if (!block)
        return allocate_slowly(pool, ref, handle, shelf, bucket, address, bytes, result);
    *address = block_address(&block->block);
    *result = CUDA_SUCCESS;
    return true;
}

/* The first such request makes the counters. If two threads make them at once, one set stays
 * unused. */
static struct bucket_counters *counters_of_passed_by(struct pool *pool, const struct device *device)
{
    _Atomic(struct bucket_counters *) *place = &stream_device(device)->passed_by;
    struct bucket_counters *counters = atomic_load_explicit(place, memory_order_relaxed);
    if (!counters) {
        counters =
            figures_bucket(&pool->figures, KIND_STREAM_ORDERED, STREAMS_MAX, device->ordinal, 0);
        atomic_store_explicit(place, counters, memory_order_relaxed);
    }
    return counters;
}

void stream_count_passed_by(struct pool *pool, struct device *device, uint64_t bytes,
                            CUresult result)
{
    struct bucket_counters *counters = counters_of_passed_by(pool, device);
    bool met = result == CUDA_SUCCESS;
    if (!counters)
        return;
    counter_add_shared(&counters->requested_bytes, bytes);
    counter_add_shared(&counters->allocation_calls, 1);
    counter_add_shared(bucket_outcome(counters, met, result == CUDA_ERROR_OUT_OF_MEMORY), 1);
    if (!met)
        return;
    counter_add_shared(&counters->evictions[EVICTION_CONTEXT], 1);
    counter_add_shared(&counters->frees, 1);
}
