#include "heap_miss.h"

#include "core/base/clock.h"
#include "core/contexts/capture.h"
#include "core/contexts/device.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/contexts/return_stream.h"
#include "core/driver/calls.h"
#include "core/housekeeper/housekeeper.h"
#include "core/reclaim/miss.h"
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

static CUresult ask_driver(struct miss *miss)
{
    struct heap *heap = heap_of(miss->context);
    uint64_t started = monotonic_now();
    enter_driver();
    atomic_fetch_add_explicit(&heap->threads_in_miss, 1, memory_order_relaxed);
    struct relaxed_mode beside = relaxed_mode_where_captures_allocate(miss->pool);
    CUresult result = miss->pool->driver->cuMemAlloc_v2(miss->address, miss->bytes);
    relaxed_mode_end(miss->pool->driver, beside);
    leave_driver();
    uint64_t nanoseconds = monotonic_now() - started;
    bucket_count_call(miss->cost, nanoseconds, result == CUDA_SUCCESS);
    note_cost(heap, nanoseconds);
    counter_set(&heap->last_miss_at, started + nanoseconds);
    atomic_fetch_sub_explicit(&heap->threads_in_miss, 1, memory_order_relaxed);
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
static bool record_block(const struct miss *miss, struct heap *heap, struct bucket *bucket)
{
    heap_lock_must_be_held(heap);
    struct block *block = block_records_take(&heap->records, heap);
    if (block) {
        /* All of this comes before the block can be found, since a free takes no lock. */
        block_set_bytes(block, miss->bytes);
        atomic_store_explicit(&block->bin, device_bucket(bucket)->bin, memory_order_relaxed);
        block->bucket = bucket;
        counter_set(&block->requested, miss->requested);
        block_set(block, *miss->address, BLOCK_LIVE);
    }
    if (!block || !block_table_insert(&miss->pool->blocks, *miss->address, block)) {
        /* Without a record the pool does not know the memory: the program and the driver do. */
        if (block)
            block_records_put(&heap->records, block);
        return false;
    }
    counter_add(&heap->reserved_bytes, miss->bytes);
    note_reserved(miss->pool, miss->context->device);
    /* The peak comes first: a process may be killed at any moment, and its figures are read, in
     * which no number is above its peak. */
    counter_raise_to(&bucket->counters->peak_reserved_bytes,
                     counter_get(&bucket->counters->reserved_bytes) + miss->bytes);
    counter_add(&bucket->counters->reserved_bytes, miss->bytes);
    counter_add(&heap->live_requested, miss->requested);
    heap_raise_peaks(heap, bucket);
    return true;
}

/* Counts what the driver has answered, and records the block that it gave. If the context has died
 * since, its memory has died with it, and another context may own the heap. */
static CUresult finish_miss(const struct miss *miss, struct bucket *bucket)
{
    struct context *context = miss->context;
    struct heap *heap = heap_of(context);
    /* A block that is smaller than its bucket must not serve it again, so it is not kept. A failure
     * counts as the bucket's. */
    if (miss->bytes != bucket->bytes && miss->result == CUDA_SUCCESS)
        bucket = &heap->unkept.bucket;
    bool met = miss->result == CUDA_SUCCESS;
    bool lives = context_generation(context) == miss->generation && (miss->generation & 1) != 0;
    /* A record of this address is stale: the block there was freed past the pool. */
    if (met && lives)
        heap_forget_address(miss->pool, *miss->address);
    /* What graphs own is by its address: they own nothing of the one that is just made. */
    if (met && lives && miss->pool->settings.captures.allocate)
        TELL_KINDS(miss->pool, forget_address, miss->pool, *miss->address);
    heap_lock(heap);
    /* If the context dies from here on, heap_reset finds the record: the generation changes before
     * it takes the lock. */
    lives = lives && context_generation(context) == miss->generation;
    miss_count_request(miss, bucket->counters);
    counter_add(&heap->misses, 1);
    counter_raise_to(&heap->largest_request, met ? miss->requested : 0);
    bool recorded = met && lives && record_block(miss, heap, bucket);
    if (!recorded)
        device_unreserve(context->device, miss->bytes);
    miss_count_outcome(miss, bucket->counters, recorded);
    if (keep_is_on_trial(&heap->keep))
        keep_note_miss(&heap->keep, &device_bucket(bucket)->ghosts, miss->bytes,
                       policy_room_to_keep(miss->pool, context));
    policy_watch_rounding(heap, context->device);
    counter_raise_to(&heap->now, counter_get(&heap->last_miss_at));
    heap_unlock(heap);
    return miss->result;
}

static CUresult refuse(struct miss *miss, struct bucket *bucket)
{
    heap_lock(heap_of(miss->context));
    miss_count_refusal(miss, bucket->counters);
    heap_unlock(heap_of(miss->context));
    return miss->result;
}

CUresult heap_miss(struct pool *pool, struct context *context, struct bucket *bucket,
                   CUdeviceptr *address, size_t requested)
{
    no_lock_may_be_held_behind(LOCK_LAST_ACROSS_DRIVER_CALLS);
    struct miss miss = {.pool = pool,
                        .context = context,
                        .generation = context_generation(context),
                        .requested = requested,
                        .bytes = bucket->bytes ? bucket->bytes : requested,
                        .ask = ask_driver,
                        .cost = bucket->counters,
                        .address = address};
    if (miss_ask_in_vain(&miss))
        return finish_miss(&miss, bucket);
    release_excess(pool, context, RELEASE_IN_ALLOCATION);
    release_before_growth(pool, context, miss.bytes);
    if (!miss_reserve(&miss) && !miss_reserve_exactly(&miss))
        return refuse(&miss, bucket);
    miss_ask(&miss);
    miss_ask_again(&miss);
    miss_ask_exactly(&miss);
    finish_miss(&miss, bucket);
    release_look_at_memory(pool, context);
    housekeeper_look_after_miss(pool);
    return miss.result;
}

CUresult heap_allocate_unkept(struct pool *pool, struct context *context, CUdeviceptr *address,
                              size_t bytes)
{
    return heap_miss(pool, context, &heap_of(context)->unkept.bucket, address, bytes);
}

void heap_adopt(struct miss *miss, size_t bytes)
{
    if (bytes > miss->bytes)
        device_reserve(miss->context->device, bytes - miss->bytes);
    else
        device_unreserve(miss->context->device, miss->bytes - bytes);
    miss->bytes = miss->requested = bytes;
    finish_miss(miss, &heap_of(miss->context)->unkept.bucket);
}
