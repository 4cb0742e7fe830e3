#include "heap_miss.h"

#include "cache_set.h"
#include "core/base/bus_guard.h"
#include "core/base/clock.h"
#include "core/base/numbers.h"
#include "core/contexts/capture.h"
#include "core/contexts/device.h"
#include "core/contexts/epoch.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/contexts/return_stream.h"
#include "core/driver/calls.h"
#include "core/housekeeper/housekeeper.h"
#include "core/reclaim/miss.h"
#include "driver_free.h"
#include "parts.h"
#include "place.h"
#include "policies.h"
#include "release.h"
#include "sums.h"

/* Updates the mean cost of the last few misses. Several threads may do this at once and lose an
 * update: the mean is an estimate. */
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

/* Raises the device's peak of reserved bytes, which the report shows. Threads of several contexts
 * may do this at once. Blocks that the driver is just making do not count yet. */
static void note_reserved(struct pool *pool, struct device *device)
{
    uint64_t reserved = 0;
    for (struct context *c = context_next(pool, NULL, device); c; c = context_next(pool, c, device))
        reserved += counter_get(&heap_of(c)->reserved_bytes);
    counter_raise_shared(&device->memory->peak_reserved, reserved);
}

/* Makes a record of the memory that the driver returned, to be found by its address. NULL if there
 * is no memory for a record. In that case the pool does not know the memory: only the program and
 * the driver do. */
static struct block *make_record(const struct miss *miss, struct heap *heap, struct bucket *bucket,
                                 enum block_state state)
{
    heap_lock_must_be_held(heap);
    struct block *block = block_records_take(&heap->records, heap);
    if (!block)
        return NULL;
    /* All fields are written before the block can be found, since a free takes no lock. */
    block_set_bytes(block, miss->bytes);
    atomic_store_explicit(&block->bin, device_bucket(bucket)->bin, memory_order_relaxed);
    block->bucket = bucket;
    counter_set(&block->requested, miss->requested);
    block_set(block, *miss->address, state);
    if (!heap_enter_table(miss->pool, heap, block)) {
        block_records_put(&heap->records, block);
        return NULL;
    }
    counter_add(&heap->reserved_bytes, miss->bytes);
    note_reserved(miss->pool, miss->context->device);
    device_count_given(miss->context->device, miss->bytes);
    return block;
}

/* Records the memory as a live block of the bucket. False if there is no memory for a record. */
static bool record_block(const struct miss *miss, struct heap *heap, struct bucket *bucket)
{
    heap_lock_must_be_held(heap);
    if (!make_record(miss, heap, bucket, BLOCK_LIVE))
        return false;
    /* The peak is raised first. A process may be killed at any moment, and no number in its figures
     * may be above its peak. */
    counter_raise_to(&bucket->counters->peak_reserved_bytes,
                     counter_get(&bucket->counters->reserved_bytes) + miss->bytes);
    counter_add(&bucket->counters->reserved_bytes, miss->bytes);
    counter_add(&heap->live_requested, miss->requested);
    heap_raise_peaks(heap, bucket);
    return true;
}

/* Records the memory as a segment, and a part of it as the live block. If there is no memory for
 * the records of parts, the whole is the block. */
static bool record_segment(const struct miss *miss, struct heap *heap, struct bucket *bucket)
{
    heap_lock_must_be_held(heap);
    struct bucket *unkept = &heap->unkept.bucket;
    struct block *whole = make_record(miss, heap, unkept, BLOCK_LEAVING);
    if (!whole)
        return false;
    struct block *block = heap_cut_new(heap, whole, bucket);
    if (!block) {
        counter_add(&unkept->counters->reserved_bytes, miss->bytes);
        block = whole;
    }
    counter_set(&block->requested, miss->requested);
    block_set_state(block, BLOCK_LIVE);
    *miss->address = block_address(block);
    counter_add(&heap->live_requested, miss->requested);
    heap_raise_peaks(heap, bucket);
    return true;
}

/* Counts the driver's answer, and records the block that it returned. If the context has died
 * since, its memory has died with it, and another context may own the heap. */
static CUresult finish_miss(const struct miss *miss, struct bucket *bucket)
{
    struct context *context = miss->context;
    struct heap *heap = heap_of(context);
    bool met = miss->result == CUDA_SUCCESS;
    bool segment = met && miss->bytes > bucket->bytes && bucket->bytes != 0;
    /* A block that is smaller than its bucket must not serve the bucket again, so it is not cached.
     * A failure counts for the bucket. */
    if (met && miss->bytes < bucket->bytes)
        bucket = &heap->unkept.bucket;
    bool lives = context_generation(context) == miss->generation && (miss->generation & 1) != 0;
    /* A record of this address is stale: the block there was freed without the pool. */
    if (met && lives)
        heap_forget_address(miss->pool, *miss->address);
    /* Graphs own blocks by address, and must own nothing of the new block. */
    if (met && lives && miss->pool->settings.captures.allocate)
        TELL_KINDS(miss->pool, forget_address, miss->pool, *miss->address);
    heap_lock(heap);
    /* If the context dies from here on, heap_reset finds the record: the generation changes before
     * heap_reset takes the lock. */
    lives = lives && context_generation(context) == miss->generation;
    miss_count_request(miss, bucket->counters);
    counter_add(&heap->misses, 1);
    if (met)
        miss_note_met(miss);
    bool recorded =
        met && lives &&
        (segment ? record_segment(miss, heap, bucket) : record_block(miss, heap, bucket));
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

/* ---- where blocks are cut out of segments ---- */

/* How long a thread waits for another thread's segment before it asks for its own, in nanoseconds.
 */
#define SEGMENT_WAIT_NANOSECONDS (UINT64_C(100) * 1000 * 1000)

/* What a miss of device memory has in addition to struct miss. While a segment is wanted,
 * miss->bytes are the segment's, and bucket->bytes the block's. */
struct cutting {
    struct bucket *bucket;
    bool done;                  /* the block was cut out of clean memory: no new memory is needed */
    struct situation situation; /* before the miss; cut_before_growth renews `requested` */
};

/* Cuts a block for the program out of clean memory, and counts it as a hit. Returns false if there
 * is no such memory, or if the context is ending. anywhere: see heap_cut. */
static bool cut_for(struct miss *miss, bool anywhere)
{
    heap_lock_must_be_held(heap_of(miss->context));
    struct cutting *cutting = miss->with;
    struct heap *heap = heap_of(miss->context);
    if (heap->ending || context_generation(miss->context) != miss->generation)
        return false;
    struct block *block = heap_cut(heap, cutting->bucket, anywhere);
    if (!block)
        return false;
    place_hand_out(heap, block, miss->requested, HIT_CLEAN);
    thread_count_wait(cutting->bucket->counters);
    *miss->address = block_address(block);
    cutting->done = true;
    miss->result = CUDA_SUCCESS;
    return true;
}

static bool lock_and_cut_for(struct miss *miss, bool anywhere)
{
    struct heap *heap = heap_of(miss->context);
    heap_lock(heap);
    bool done = cut_for(miss, anywhere);
    heap_unlock(heap);
    return done;
}

static CUresult ask_driver_or_cut(struct miss *miss)
{
    CUresult result = ask_driver(miss);
    bool cut = result == CUDA_ERROR_OUT_OF_MEMORY && lock_and_cut_for(miss, true);
    return cut ? CUDA_SUCCESS : result;
}

static CUresult cut_or_ask_driver(struct miss *miss)
{
    return lock_and_cut_for(miss, false) ? CUDA_SUCCESS : ask_driver_or_cut(miss);
}

/* Tries to cut the block out of clean memory of any size. If that fails, and the heap's free memory
 * might be enough, it empties the caches, queries the fences of pending blocks and tries again.
 * Pending blocks without a fence get one that is only queried. Releases and retakes the lock. */
static bool cut_what_is_over(struct miss *miss)
{
    struct context *context = miss->context;
    struct heap *heap = heap_of(context);
    heap_lock_must_be_held(heap);
    if (cut_for(miss, false))
        return true;
    struct heap_bytes bytes = heap_bytes(heap);
    if (bytes.clean + bytes.pending < miss->requested)
        return false;
    thread_caches_collect(heap);
    heap_unlock(heap);
    epoch_fence_the_rest_at_once(miss->pool, context);
    epoch_ask_all(miss->pool, context);
    heap_lock(heap);
    return cut_for(miss, false);
}

/* Tries to cut the block before the reserve grows. If the reserve may not grow, it also waits, as
 * far as an allocation may, for the blocks that were pending when the wait began. */
static bool cut_before_growth(struct miss *miss)
{
    struct context *context = miss->context;
    struct heap *heap = heap_of(context);
    heap_lock(heap);
    bool done = cut_what_is_over(miss);
    uint64_t last = heap->pending.last ? counter_get(&heap->pending.last->epoch) : 0;
    struct cutting *cutting = miss->with;
    cutting->situation.requested = heap_bytes(heap).requested;
    uint64_t bound =
        release_bound(miss->pool, context, cutting->situation.requested, miss->requested);
    while (!done && counter_get(&heap->reserved_bytes) + miss->bytes > bound &&
           heap->pending.first && counter_get(&heap->pending.first->epoch) <= last &&
           epoch_wait_in_allocation(miss->pool, context, counter_get(&heap->pending.first->epoch)))
        done = cut_for(miss, false);
    heap_unlock(heap);
    return done;
}

/* Whether this thread is now the one that asks for a segment. Many threads that begin at the same
 * moment need one segment, and not one each. The driver makes one at a time anyway. False: the
 * block was cut meanwhile (cutting->done), or the thread has waited too long and asks unclaimed. */
static bool claim_segment(struct miss *miss, _Atomic bool *asked)
{
    uint64_t started = monotonic_now();
    /* Acquire: pairs with the release store in miss_and_cut, so that this thread finds what the
     * other thread has recorded. */
    while (atomic_exchange_explicit(asked, true, memory_order_acquire)) {
        if (monotonic_now() - started > SEGMENT_WAIT_NANOSECONDS)
            return false;
        patient_nap(started);
        if (lock_and_cut_for(miss, false))
            return false;
    }
    return true;
}

/* Asks for the block alone, which may fit where the segment did not. If it does not fit either,
 * reclaim then releases memory for the block, and not for a whole segment. */
static void ask_for_block_alone(struct miss *miss)
{
    struct cutting *cutting = miss->with;
    device_unreserve(miss->context->device, miss->bytes - cutting->bucket->bytes);
    miss->bytes = cutting->bucket->bytes;
    miss_ask(miss);
}

/* Reserves a segment's bytes, or the block's bytes if the segment would pass a limit. False if the
 * block was cut after all, or is refused. */
static bool reserve_segment(struct miss *miss)
{
    struct bucket *bucket = ((struct cutting *)miss->with)->bucket;
    if (!device_limits_allow(miss->context->device, miss->bytes))
        miss->bytes = bucket->bytes;
    if (!device_limits_allow(miss->context->device, miss->bytes) && lock_and_cut_for(miss, true))
        return false;
    if (miss_reserve(miss) || miss_reserve_exactly(miss))
        return true;
    if (!lock_and_cut_for(miss, true))
        refuse(miss, bucket);
    return false;
}

static void finish_cutting(struct miss *miss, struct bucket *bucket)
{
    const struct cutting *cutting = miss->with;
    if (cutting->done)
        device_unreserve(miss->context->device, miss->bytes);
    else
        finish_miss(miss, bucket);
}

static void ask_for_segment(struct miss *miss)
{
    struct cutting *cutting = miss->with;
    if (!reserve_segment(miss))
        return;
    miss_ask(miss);
    if (miss_is_out_of_memory(miss) && miss->bytes > cutting->bucket->bytes)
        ask_for_block_alone(miss);
    miss_ask_again(miss);
    miss_ask_exactly(miss);
    finish_cutting(miss, cutting->bucket);
}

/* Whether the driver is asked for no more than the block takes. */
static bool is_alone(struct heap *heap, const struct bucket *bucket)
{
    heap_lock(heap);
    bool alone = !segment_is_for_several(&heap->segments, bucket->bytes) ||
                 policy_spares_too_much(heap, bucket->bytes);
    heap_unlock(heap);
    return alone;
}

/* Gets a block that may be cut out of a new segment. */
static void miss_and_cut(struct miss *miss, struct bucket *bucket)
{
    struct heap *heap = heap_of(miss->context);
    const struct cutting *cutting = miss->with;
    miss->ask = cut_or_ask_driver;
    bool alone = is_alone(heap, bucket);
    miss->bytes = alone ? segment_bytes_of_one(bucket->bytes)
                        : segment_bytes_for(&heap->segments, bucket->bytes);
    if (cut_before_growth(miss))
        return;
    bool large = miss->bytes != heap->segments.small;
    bool claimed = !alone && claim_segment(miss, &heap->segment_asked[large]);
    if (!cutting->done && !(claimed && lock_and_cut_for(miss, false))) {
        release_before_growth(miss->pool, miss->context, &cutting->situation, miss->bytes);
        ask_for_segment(miss);
    }
    if (claimed)
        atomic_store_explicit(&heap->segment_asked[large], false, memory_order_release);
}

/* ---- misses ---- */

/* Gets a block that is a driver allocation of its own. */
static void miss_alone(struct miss *miss, struct bucket *bucket)
{
    const struct cutting *cutting = miss->with;
    release_before_growth(miss->pool, miss->context, &cutting->situation, miss->bytes);
    if (!miss_reserve(miss) && !miss_reserve_exactly(miss)) {
        refuse(miss, bucket);
        return;
    }
    miss_ask(miss);
    miss_ask_again(miss);
    miss_ask_exactly(miss);
    finish_cutting(miss, bucket);
}

/* Gets a block as miss_alone does. If the driver has no memory, the block is cut out of clean
 * memory. Spare memory cannot be released to the driver, but it can serve the request. */
static void miss_alone_or_cut(struct miss *miss, struct bucket *bucket)
{
    struct heap *heap = heap_of(miss->context);
    struct cutting *cutting = miss->with;
    uint64_t of_bucket = size_class_round(&heap->classes, miss->requested);
    heap_lock(heap);
    cutting->bucket = of_bucket ? heap_bucket(heap, of_bucket) : bucket;
    heap_unlock(heap);
    miss->ask = ask_driver_or_cut;
    miss_alone(miss, bucket);
}

/* Gets a new block in this way, unless the request exceeds the device. Heap lock held; the function
 * releases it. */
static CUresult miss_by(void (*way)(struct miss *, struct bucket *), struct pool *pool,
                        struct context *context, struct bucket *bucket, CUdeviceptr *address,
                        size_t requested)
{
    struct heap *heap = heap_of(context);
    heap_lock_must_be_held(heap);
    struct cutting cutting = {.bucket = bucket, .situation = release_look(pool, heap)};
    cutting.situation.requested = heap_bytes(heap).requested;
    struct miss miss = {.pool = pool,
                        .context = context,
                        .generation = context_generation(context),
                        .requested = requested,
                        .bytes = bucket->bytes ? bucket->bytes : requested,
                        .ask = ask_driver,
                        .with = &cutting,
                        .cost = bucket->counters,
                        .address = address};
    heap_unlock(heap);
    bus_guard_thread();
    if (miss_ask_beyond_device(&miss))
        return finish_miss(&miss, bucket);
    release_excess(pool, context, &cutting.situation, RELEASE_IN_ALLOCATION);
    way(&miss, bucket);
    release_look_at_memory(pool, context);
    housekeeper_look_after_miss(pool);
    return miss.result;
}

CUresult heap_miss(struct pool *pool, struct context *context, struct bucket *bucket,
                   CUdeviceptr *address, size_t requested)
{
    bool cut = heap_splits(heap_of(context)) && bucket->bytes != 0;
    return miss_by(cut ? miss_and_cut : miss_alone, pool, context, bucket, address, requested);
}

CUresult heap_miss_alone(struct pool *pool, struct context *context, struct bucket *bucket,
                         CUdeviceptr *address, size_t requested)
{
    return miss_by(miss_alone, pool, context, bucket, address, requested);
}

CUresult heap_allocate_unkept(struct pool *pool, struct context *context, CUdeviceptr *address,
                              size_t bytes)
{
    no_lock_may_be_held_behind(LOCK_LAST_ACROSS_DRIVER_CALLS);
    struct heap *heap = heap_of(context);
    heap_lock(heap);
    return miss_by(heap_splits(heap) ? miss_alone_or_cut : miss_alone, pool, context,
                   &heap->unkept.bucket, address, bytes);
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
