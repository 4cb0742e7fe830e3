#include "stream_miss.h"

#include "core/base/clock.h"
#include "core/contexts/capture.h"
#include "core/contexts/pool_state.h"
#include "core/driver/calls.h"
#include "core/reclaim/reclaim.h"
#include "mempool.h"
#include "mempool_sums.h"
#include "stream_payoff.h"
#include "stream_release.h"
#include "stream_reserve.h"

/* The stamp of a live block's last free was another stream's, and may not be over. */
#define STAMP_OF_ANOTHER UINT64_MAX

/* ---- asking the driver ---- */

static CUresult ask_driver(struct pool *pool, struct bucket_counters *cost, CUdeviceptr *address,
                           uint64_t bytes, const struct search *search)
{
    uint64_t started = monotonic_now();
    enter_driver();
    CUresult result = pool->driver->cuMemAllocFromPoolAsync(
        address, bytes, atomic_load_explicit(&search->mempool->handle, memory_order_relaxed),
        search->handle);
    leave_driver();
    bucket_count_call(cost, monotonic_now() - started, result == CUDA_SUCCESS);
    return result;
}

/* What helps on all streams alike. */
static CUresult ask_driver_again(struct pool *pool, struct bucket_counters *cost,
                                 CUdeviceptr *address, uint64_t bytes, struct search *search)
{
    struct reclaim progress = {.bytes = bytes, .in_stream_order = true};
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    while (result == CUDA_ERROR_OUT_OF_MEMORY &&
           reclaim_for_retry(pool, search->context->device, &progress))
        result = ask_driver(pool, cost, address, bytes, search);
    return result;
}

/* The driver, and everything that may help when it is out of memory. *bytes falls back to what was
 * requested where only that fits. A block of another stream's may be found instead. */
static CUresult ask_driver_hard(struct pool *pool, struct bucket_counters *cost,
                                CUdeviceptr *address, uint64_t *bytes, size_t requested,
                                struct search *search)
{
    struct device *device = search->context->device;
    CUresult result = ask_driver(pool, cost, address, *bytes, search);
    uint64_t behind = 0;
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        return result;
    /* In the stream's own order nothing has to be waited for. */
    if (stream_release_in_order(pool, search->ref, search->handle) != 0 ||
        stream_release_behind(pool, search->ref, search->context, &behind) != 0)
        result = ask_driver(pool, cost, address, *bytes, search);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && search_harder(search))
        return CUDA_SUCCESS;
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        result = ask_driver_again(pool, cost, address, *bytes, search);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && behind &&
        stream_release_wait_behind(pool, search->ref.stream, behind))
        result = ask_driver_again(pool, cost, address, *bytes, search);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && *bytes != requested) {
        atomic_fetch_sub_explicit(&device->reserved_bytes, *bytes - requested,
                                  memory_order_relaxed);
        *bytes = requested;
        result = ask_driver(pool, cost, address, requested, search);
    }
    return result;
}

/* ---- what comes of it ---- */

static bool record_block(struct pool *pool, struct shelf *shelf, struct bucket *bucket,
                         CUdeviceptr address, uint64_t bytes, const struct search *search)
{
    lock_must_be_held(&shelf->stream->lock);
    struct stream_block *block = stream_block_take(&streams_of(pool)->records);
    if (block) {
        block_set(&block->block, address, BLOCK_UNUSED);
        block_set_bytes(&block->block, bytes);
    }
    if (!block || !block_table_insert(&streams_of(pool)->blocks, address, &block->block)) {
        /* Without a record the memory is the program's and the driver's business alone. */
        if (block)
            stream_block_put(&streams_of(pool)->records, block);
        return false;
    }
    block->block.bucket = bucket;
    block->mempool = search->mempool;
    mempool_use(block->mempool);
    block->context = search->context;
    block->context_generation = search->generation;
    atomic_store_explicit(&block->shelf, shelf, memory_order_relaxed);
    shelf_count_in(shelf, bucket, block);
    atomic_fetch_add_explicit(&stream_device(search->context->device)->reserved_bytes, bytes,
                              memory_order_relaxed);
    return true;
}

static void forget_reserved(struct device *device, uint64_t bytes)
{
    /* Relaxed: a number that is compared with limits, and orders nothing. */
    atomic_fetch_sub_explicit(&device->reserved_bytes, bytes, memory_order_relaxed);
}

/* What this thread has waited lately, for a block of this bucket. */
static void take_wait(const struct bucket *bucket)
{
    bucket_count_wait(bucket->counters, thread_state.waited_ns);
    thread_state.waited_ns = 0;
}

static void finish_miss(struct pool *pool, struct shelf *shelf, struct bucket *bucket,
                        CUdeviceptr address, uint64_t bytes, size_t requested,
                        const struct search *search, CUresult result)
{
    bool recorded = false;
    /* A capture that began meanwhile may have the stream, and the memory is the graph's. */
    bool may_record = result == CUDA_SUCCESS && !program_captures(&pool->captures);
    if (result == CUDA_SUCCESS) {
        /* Whoever freed this address did so behind our back. */
        TELL_KINDS(pool, forget_address, pool, address);
    }
    lock_take(&shelf->stream->lock, LOCK_STREAM);
    counter_add(&bucket->counters->requested_bytes, requested);
    if (may_record)
        recorded = record_block(pool, shelf, bucket, address, bytes, search);
    shelf->stream->missed += recorded;
    if (recorded)
        shelf_hand_out(shelf, bucket, stream_block_find(&streams_of(pool)->blocks, address),
                       requested);
    take_wait(bucket);
    bool met = result == CUDA_SUCCESS, short_of = result == CUDA_ERROR_OUT_OF_MEMORY;
    counter_add(bucket_outcome(bucket->counters, met, short_of), 1);
    if (met && !recorded)
        bucket_count_lost(bucket->counters);
    lock_give(&shelf->stream->lock);
    if (!recorded)
        forget_reserved(search->context->device, bytes);
}

void stream_adopt(struct shelf *shelf, struct bucket *bucket, struct stream_block *block,
                  size_t bytes, enum hit hit)
{
    struct stream *former = shelf_of(block)->stream;
    lock_take(&shelf->stream->lock, LOCK_STREAM);
    counter_set(&block->block.epoch,
                hit == HIT_WAITED || hit == HIT_BARRIER ? STAMP_OF_ANOTHER : 0);
    block->block.bucket = bucket;
    atomic_store_explicit(&block->shelf, shelf, memory_order_relaxed);
    shelf_count_in(shelf, bucket, block);
    take_wait(bucket);
    shelf_hand_out_hit(shelf, bucket, block, bytes, hit);
    shelf->stream->adopted++;
    lock_give(&shelf->stream->lock);
    stream_block_has_a_place(former);
}

static CUresult hand_out_found(const struct search *search, struct shelf *shelf,
                               struct bucket *bucket, CUdeviceptr *address, size_t requested)
{
    stream_adopt(shelf, bucket, search->found, requested, search->found_by);
    *address = block_address(&search->found->block);
    return CUDA_SUCCESS;
}

static CUresult refuse(struct shelf *shelf, struct bucket *bucket, size_t requested)
{
    lock_take(&shelf->stream->lock, LOCK_STREAM);
    counter_add(&bucket->counters->requested_bytes, requested);
    take_wait(bucket);
    counter_add(&bucket->counters->failures[FAILURE_LIMIT], 1);
    lock_give(&shelf->stream->lock);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---- a miss ---- */

CUresult stream_miss(struct pool *pool, struct shelf *shelf, struct bucket *bucket,
                     CUdeviceptr *address, size_t requested, struct search *search)
{
    struct context *context = search->context;
    uint64_t bytes = bucket->bytes ? bucket->bytes : requested;
    bool possible = requested <= context->device->total_bytes;
    CUresult result;
    /* What no device can hold is not worth giving anything back for. */
    if (possible && stream_reserve_before_growth(pool, context, search->mempool, bytes, search->ref,
                                                 search->handle))
        payoff_note_at_bound(shelf->stream);
    if (possible && !reserve_take(pool, context, bytes, true)) {
        if (search_harder(search))
            return hand_out_found(search, shelf, bucket, address, requested);
        if (bytes == requested || !reserve_take(pool, context, requested, true))
            return refuse(shelf, bucket, requested);
        bytes = requested;
    }
    if (possible) {
        result = ask_driver_hard(pool, bucket->counters, address, &bytes, requested, search);
        if (search->found) {
            forget_reserved(context->device, bytes);
            return hand_out_found(search, shelf, bucket, address, requested);
        }
    } else {
        atomic_fetch_add_explicit(&context->device->reserved_bytes, bytes, memory_order_relaxed);
        result = ask_driver(pool, bucket->counters, address, bytes, search);
    }
    /* A block that is smaller than its bucket must not serve it again. A failure is the bucket's.
     */
    bool fits = bytes == bucket->bytes || result != CUDA_SUCCESS;
    finish_miss(pool, shelf, fits ? bucket : &shelf->unkept, result == CUDA_SUCCESS ? *address : 0,
                bytes, requested, search, result);
    mempool_note_use(pool, search->mempool);
    return result;
}
