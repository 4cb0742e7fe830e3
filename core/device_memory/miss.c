#include "miss.h"

#include "core/base/clock.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/contexts/return_stream.h"
#include "core/driver/calls.h"
#include "core/reclaim/reclaim.h"
#include "lost.h"
#include "policies.h"
#include "release.h"
#include "sums.h"

/* The mean of the last few misses. Several threads may do this at once, and one of them may be
 * forgotten: it is an estimate. */
static void note_cost(struct heap *heap, uint64_t nanoseconds)
{
    counter_set(&heap->miss_cost, (3 * counter_get(&heap->miss_cost) + nanoseconds) / 4);
}

static CUresult allocate_from_driver(struct pool *pool, struct heap *heap,
                                     struct bucket_counters *cost, CUdeviceptr *address,
                                     uint64_t bytes)
{
    uint64_t started = monotonic_now();
    enter_driver();
    atomic_fetch_add_explicit(&heap->threads_in_miss, 1, memory_order_relaxed);
    CUresult result = pool->driver->cuMemAlloc_v2(address, bytes);
    leave_driver();
    uint64_t nanoseconds = monotonic_now() - started;
    bucket_count_call(cost, nanoseconds, result == CUDA_SUCCESS);
    note_cost(heap, nanoseconds);
    counter_set(&heap->last_miss_at, started + nanoseconds);
    atomic_fetch_sub_explicit(&heap->threads_in_miss, 1, memory_order_relaxed);
    return result;
}

/* Asks the driver, and while it is out of memory has memory given back and asks again. *bytes
 * becomes what was requested where only that fits. */
static CUresult allocate_from_driver_with_reclaim(struct pool *pool, struct context *context,
                                                  struct bucket_counters *cost,
                                                  CUdeviceptr *address, uint64_t *bytes,
                                                  size_t requested)
{
    struct device *device = context->device;
    CUresult result = allocate_from_driver(pool, heap_of(context), cost, address, *bytes);
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        return result;
    struct reclaim progress = {.bytes = *bytes, .wanted = requested};
    while (result == CUDA_ERROR_OUT_OF_MEMORY && reclaim_for_retry(pool, device, &progress))
        result = allocate_from_driver(pool, heap_of(context), cost, address, *bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && *bytes != requested) {
        atomic_fetch_sub_explicit(&device->reserved_bytes, *bytes - requested,
                                  memory_order_relaxed);
        *bytes = requested;
        result = allocate_from_driver(pool, heap_of(context), cost, address, requested);
    }
    return result;
}

/* Raises the device's peaks, which the report shows. Threads of several contexts may do this at
 * once. Blocks that the driver is just making do not count yet. */
static void note_reserved(struct pool *pool, struct device *device)
{
    uint64_t reserved = 0;
    for (struct context *c = context_next(pool, NULL, device); c; c = context_next(pool, c, device))
        reserved += counter_get(&heap_of(c)->reserved_bytes);
    counter_raise_shared(&device->memory->peak_reserved, reserved);
    counter_raise_shared(&device->memory->recent_peak, reserved);
}

/* Makes the memory a live block of the bucket. False where there is no memory for a record. */
static bool record_block(struct pool *pool, struct heap *heap, struct bucket *bucket,
                         CUdeviceptr address, uint64_t bytes, size_t requested)
{
    heap_lock_must_be_held(heap);
    struct block *block = block_records_take(&heap->records, heap);
    if (block) {
        /* All of this comes before the block can be found, since a free takes no lock. */
        block_set_bytes(block, bytes);
        atomic_store_explicit(&block->bin, device_bucket(bucket)->bin, memory_order_relaxed);
        block->bucket = bucket;
        counter_set(&block->requested, requested);
        block_set(block, address, BLOCK_LIVE);
    }
    if (!block || !block_table_insert(&pool->blocks, address, block)) {
        /* Without a record the pool does not know the memory: the program and the driver do. */
        if (block)
            block_records_put(&heap->records, block);
        atomic_fetch_sub_explicit(&context_of_heap(heap)->device->reserved_bytes, bytes,
                                  memory_order_relaxed);
        return false;
    }
    counter_add(&heap->reserved_bytes, bytes);
    note_reserved(pool, context_of_heap(heap)->device);
    /* The peak comes first: a process may be killed at any moment, and its figures are read, in
     * which no number is above its peak. */
    counter_raise_to(&bucket->counters->peak_reserved_bytes,
                     counter_get(&bucket->counters->reserved_bytes) + bytes);
    counter_add(&bucket->counters->reserved_bytes, bytes);
    counter_add(&heap->live_requested, requested);
    heap_raise_peaks(heap, bucket);
    return true;
}

/* Counts what the driver has answered, and records the block that it gave. generation: the
 * context's before the driver was asked. If the context has died since, its memory has died with
 * it, and another context may own the heap. */
static void finish_miss(struct pool *pool, struct context *context, uint64_t generation,
                        struct bucket *bucket, CUdeviceptr address, uint64_t bytes,
                        size_t requested, CUresult result)
{
    struct heap *heap = heap_of(context);
    bool lives = context_generation(context) == generation && (generation & 1) != 0;
    /* A record of this address is stale: the block there was freed past the pool. */
    if (result == CUDA_SUCCESS && lives)
        heap_forget_address(pool, address);
    heap_lock(heap);
    /* If the context dies from here on, heap_reset finds the record: the generation changes before
     * it takes the lock. */
    lives = lives && context_generation(context) == generation;
    counter_add(&bucket->counters->requested_bytes, requested);
    counter_add(&heap->misses, 1);
    bucket_take_wait(bucket);
    counter_raise_to(&heap->largest_request, result == CUDA_SUCCESS ? requested : 0);
    bool met = result == CUDA_SUCCESS, recorded = false;
    if (met && lives)
        recorded = record_block(pool, heap, bucket, address, bytes, requested);
    else
        atomic_fetch_sub_explicit(&context->device->reserved_bytes, bytes, memory_order_relaxed);
    counter_add(bucket_outcome(bucket->counters, met, result == CUDA_ERROR_OUT_OF_MEMORY), 1);
    if (met && !recorded)
        bucket_count_lost(bucket->counters);
    if (keep_is_on_trial(&heap->keep))
        keep_note_miss(&heap->keep, &device_bucket(bucket)->ghosts, bytes,
                       policy_room_to_keep(pool, context));
    policy_watch_rounding(heap, context->device);
    counter_raise_to(&heap->now, counter_get(&heap->last_miss_at));
    heap_unlock(heap);
}

/* Answers a request past the hard limit. The driver is not asked, so no call is counted. */
static CUresult refuse(struct heap *heap, struct bucket *bucket, size_t requested)
{
    heap_lock(heap);
    counter_add(&bucket->counters->requested_bytes, requested);
    bucket_take_wait(bucket);
    counter_add(&bucket->counters->failures[FAILURE_LIMIT], 1);
    heap_unlock(heap);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Asks the driver for more than the device has, for the sake of its own error. Nothing is taken
 * into the reserved bytes beforehand: with so many, other threads' requests would meanwhile seem to
 * be past every limit. */
static CUresult ask_in_vain(struct pool *pool, struct context *context, CUdeviceptr *address,
                            size_t requested)
{
    uint64_t generation = context_generation(context);
    struct bucket *bucket = &heap_of(context)->unkept.bucket;
    CUresult result =
        allocate_from_driver(pool, heap_of(context), bucket->counters, address, requested);
    uint64_t bytes = result == CUDA_SUCCESS ? requested : 0;
    atomic_fetch_add_explicit(&context->device->reserved_bytes, bytes, memory_order_relaxed);
    finish_miss(pool, context, generation, bucket, *address, bytes, requested, result);
    return result;
}

CUresult heap_miss(struct pool *pool, struct context *context, struct bucket *bucket,
                   CUdeviceptr *address, uint64_t bytes, size_t requested)
{
    no_lock_may_be_held_behind(LOCK_LAST_ACROSS_DRIVER_CALLS);
    struct heap *heap = heap_of(context);
    uint64_t generation = context_generation(context);
    /* Nothing is given back for a request that no device could hold. */
    if (requested > context->device->total_bytes)
        return ask_in_vain(pool, context, address, requested);
    release_excess(pool, context, RELEASE_IN_ALLOCATION);
    release_before_growth(pool, context, bytes);
    if (!reserve_take(pool, context, bytes, false)) {
        if (bytes == requested || !reserve_take(pool, context, requested, false))
            return refuse(heap, bucket, requested);
        bytes = requested;
    }
    uint64_t taken = bytes;
    CUresult result = allocate_from_driver_with_reclaim(pool, context, bucket->counters, address,
                                                        &taken, requested);
    /* A block that is smaller than its bucket must not serve it again, so it is not kept. A failure
     * counts as the bucket's. */
    bool fits = taken == bucket->bytes || result != CUDA_SUCCESS;
    finish_miss(pool, context, generation, fits ? bucket : &heap->unkept.bucket, *address, taken,
                requested, result);
    release_look_at_memory(pool, context);
    return result;
}

CUresult heap_allocate_unkept(struct pool *pool, struct context *context, CUdeviceptr *address,
                              size_t bytes)
{
    return heap_miss(pool, context, &heap_of(context)->unkept.bucket, address, bytes, bytes);
}

void heap_adopt(struct pool *pool, struct context *context, uint64_t generation,
                CUdeviceptr address, size_t bytes, size_t reserved)
{
    /* Modulo 2^64: the sum becomes less if fewer bytes came than were reserved. */
    atomic_fetch_add_explicit(&context->device->reserved_bytes, (uint64_t)bytes - reserved,
                              memory_order_relaxed);
    finish_miss(pool, context, generation, &heap_of(context)->unkept.bucket, address, bytes, bytes,
                CUDA_SUCCESS);
}
