#include "host_allocate.h"

#include "core/base/bus_guard.h"
#include "core/base/clock.h"
#include "core/base/numbers.h"
#include "core/contexts/capture.h"
#include "core/contexts/epoch.h"
#include "core/contexts/fence_list.h"
#include "core/driver/calls.h"
#include "core/housekeeper/housekeeper.h"
#include "core/reclaim/miss.h"
#include "core/reclaim/reclaim.h"
#include "host_large.h"
#include "host_release.h"

/* Nanoseconds that the driver is assumed to take for a new block while no call has been measured.
 */
#define MISS_NANOSECONDS 100000u

/* Nanoseconds: an allocation that could get a new block never waits longer for a fence, however
 * long the driver's calls have taken. A few calls that were delayed by another thread's lock say
 * nothing about the next one. */
#define MOMENT_NANOSECONDS UINT64_C(100000000)

/* Another thread may take the block that has become clean. The allocation goes on to the driver
 * once it has lost so many races and has waited as long as a fence is worth. */
#define TRIES 4

uint64_t host_key(struct pool *pool, const struct host_heap *heap,
                  const struct host_request *request)
{
    const struct host_memory *memory = host_memory_of(pool);
    uint64_t bytes = memory->keeps_any ? host_block_bytes(&heap->classes, request->bytes) : 0;
    if (bytes == 0)
        return 0;
    unsigned node = machine_node(&memory->machine);
    return bytes | request->sort | node * HOST_SORT_NODE;
}

/* Later requests of this size find the bin in by_request at once. */
static void note_request(struct host_bin *bin, size_t bytes)
{
    lock_must_be_held(&bin->shard->lock);
    if (size_span_has(&bin->requests, bytes))
        bin->shard->by_request[host_place(bytes, bin->sort)] = bin;
}

struct block *host_take_at_once(struct pool *pool, struct host_heap *heap, uint64_t key,
                                size_t bytes)
{
    struct block *block = NULL;
    struct host_shard *shard = host_shard_of_thread(pool, heap);
    if (!shard)
        return NULL;
    host_lock(shard);
    struct host_bin *bin = host_bin_find(shard, key);
    if (bin && !host_is_ending(heap))
        block = host_unused_block(bin, host_clean_epoch(heap));
    if (block) {
        uint64_t live = host_live_with(shard, bytes);
        host_hand_out(shard, bin, block, bytes, live);
        if (!host_is_noted(shard, live))
            host_note_peaks(shard);
        note_request(bin, bytes);
    }
    host_unlock(shard);
    return block;
}

/* The result of a look through all shards. */
struct look {
    struct block *block; /* a clean block, now live; NULL: there was none */
    uint64_t oldest;     /* the oldest stamp of the pending blocks; 0: no block is pending */
};

static void look_into(struct host_heap *heap, struct host_shard *shard, uint64_t key, size_t bytes,
                      struct look *look)
{
    host_lock(shard);
    struct host_bin *bin = host_bin_find(shard, key);
    if (bin && !host_is_ending(heap)) {
        look->block = host_unused_block(bin, host_clean_epoch(heap));
        const struct block *pending = bin->bucket.pending.first;
        if (look->block)
            host_take_over(bin, look->block, bytes);
        else if (pending && (!look->oldest || counter_get(&pending->epoch) < look->oldest))
            look->oldest = counter_get(&pending->epoch);
    }
    host_unlock(shard);
}

/* Whether the shard is known to have clean blocks. */
static bool has_clean(const struct host_shard *shard)
{
    return counter_get(&shard->clean_bytes) != 0;
}

/* Whether a fence that may be waited for has been recorded for this stamp. False for 0. */
static bool is_fenced(const struct host_heap *heap, uint64_t stamp)
{
    return stamp &&
           stamp <= atomic_load_explicit(&heap->context->epochs.fenced, memory_order_relaxed);
}

/* Looks into the calling thread's shard first. If that shard has a pending block whose fence may be
 * waited for, pending blocks of other shards are no better. Then the others are only searched if
 * they are known to have clean blocks. */
static struct look look_through(struct pool *pool, struct host_heap *heap, uint64_t key,
                                size_t bytes)
{
    struct look look = {NULL, 0};
    uint64_t own = thread_id(pool);
    for (unsigned i = 0; i < HOST_SHARDS && !look.block; i++) {
        struct host_shard *shard = host_shard_at(heap, (own + i) % HOST_SHARDS);
        if (shard && (!is_fenced(heap, look.oldest) || has_clean(shard)))
            look_into(heap, shard, key, bytes, &look);
    }
    return look;
}

/* Nanoseconds that a fence is worth waiting for where a new block of this key may be had: as long
 * as the driver takes for one. Without room within the reserve ratio a new block costs more. Then
 * another block must be released, inside a free that waits for the context's work. */
static uint64_t moment_for(struct pool *pool, struct host_heap *heap, uint64_t key)
{
    if (!host_has_room(pool, heap, host_key_bytes(key)))
        return MOMENT_NANOSECONDS;
    context_lock(heap->context);
    const struct bucket_counters *counters = host_bucket(pool, heap, key)->bucket.counters;
    context_unlock(heap->context);
    uint64_t calls = counter_get(&counters->allocation_calls);
    uint64_t mean =
        calls ? counter_get(&counters->allocation_nanoseconds) / calls : MISS_NANOSECONDS;
    return smaller_of(mean, MOMENT_NANOSECONDS);
}

static bool may_grow(struct pool *pool, struct host_heap *heap)
{
    uint64_t budget = host_memory_of(pool)->growth_budget;
    return host_sum(heap).pending_bytes < budget || host_sweep_and_sum(heap).pending_bytes < budget;
}

/* Step 4 of host_allocate.h. False if the wait ended without result. */
static bool wait_for(struct pool *pool, struct host_heap *heap, uint64_t stamp,
                     uint64_t moment_ends)
{
    struct context *context = heap->context;
    bool grows = may_grow(pool, heap);
    context_lock(context);
    bool over = epoch_wait_in_allocation_until(pool, context, stamp, grows ? moment_ends : 0);
    context_unlock(context);
    return over;
}

/* Steps 2 to 4 of host_allocate.h, without counting the hit. */
static struct block *find(struct pool *pool, struct host_heap *heap, uint64_t key, size_t bytes,
                          enum hit *hit)
{
    struct look look = look_through(pool, heap, key, bytes);
    *hit = HIT_CLEAN;
    if (look.block || !look.oldest)
        return look.block;
    context_lock(heap->context);
    epoch_query_for(pool, heap->context, look.oldest);
    context_unlock(heap->context);
    look = look_through(pool, heap, key, bytes);
    *hit = HIT_QUERIED;
    uint64_t moment_ends = monotonic_now() + moment_for(pool, heap, key);
    for (int tries = 0;
         !look.block && look.oldest && (tries < TRIES || monotonic_now() < moment_ends); tries++) {
        if (!wait_for(pool, heap, look.oldest, moment_ends))
            return NULL;
        look = look_through(pool, heap, key, bytes);
        *hit = HIT_WAITED;
    }
    return look.block;
}

struct block *host_take(struct pool *pool, struct host_heap *heap, uint64_t key, size_t bytes)
{
    enum hit hit;
    struct block *block = find(pool, heap, key, bytes, &hit);
    if (!block)
        return NULL;
    /* Counts in the bucket of all shards, not in the block's bin: another thread may own the block
     * by now. */
    context_lock(heap->context);
    struct bucket_counters *counters = host_bucket(pool, heap, key)->bucket.counters;
    counter_add(&counters->requested_bytes, bytes);
    thread_count_wait(counters);
    counter_add(&counters->hits[hit], 1);
    context_unlock(heap->context);
    return block;
}

/* ---- misses ---- */

static CUresult call_driver(const struct driver *driver, void **address, uint64_t bytes,
                            unsigned sort)
{
    if (sort & HOST_SORT_PLAIN)
        return driver->cuMemAllocHost_v2(address, bytes);
    return driver->cuMemHostAlloc(address, bytes, sort & HOST_SORT_FLAGS);
}

/* Whether to ask again after this answer of the driver's. Nothing is released for a request that is
 * larger than the machine's memory. */
static bool is_worth_another_try(struct pool *pool, const struct host_request *request,
                                 CUresult result, struct reclaim *progress)
{
    const struct host_memory *memory = host_memory_of(pool);
    return result == CUDA_ERROR_OUT_OF_MEMORY && memory &&
           request->bytes <= memory->machine.memory_bytes &&
           reclaim_for_retry(pool, NULL, progress);
}

CUresult host_ask_driver(struct pool *pool, const struct host_request *request)
{
    struct reclaim progress = {
        .bound = RECLAIM_MACHINE, .bytes = request->bytes, .wanted = request->bytes};
    CUresult result;
    do
        result = call_driver(pool->driver, request->address, request->bytes, request->sort);
    while (is_worth_another_try(pool, request, result, &progress));
    if (result == CUDA_SUCCESS && request->address && *request->address)
        host_heap_forget_address(pool, (CUdeviceptr)(uintptr_t)*request->address);
    return result;
}

/* If memory runs out as it is touched, the kernel kills a process. The driver's call would only
 * fail. */
static bool has_room_to_touch(const struct pool *pool, uint64_t bytes)
{
    return machine_memory_missing(&host_memory_of(pool)->machine, bytes) == 0;
}

struct host_new {
    uint64_t bytes; /* of the block */
    enum host_origin origin;
    CUresult result;
};

/* Uses host_large_make where that is faster. If that fails, the driver is asked, and its error is
 * the result. */
static void ask_once(struct pool *pool, const struct host_request *request,
                     struct bucket_counters *cost, struct host_new *made)
{
    uint64_t started = monotonic_now();
    enter_driver();
    made->origin = HOST_REGISTERED;
    made->result = CUDA_ERROR_OUT_OF_MEMORY;
    unsigned flags = request->sort & HOST_SORT_FLAGS;
    if (!program_captures(&pool->captures) && host_large_serves(pool, made->bytes, flags) &&
        has_room_to_touch(pool, made->bytes))
        made->result = host_large_make(pool, request->address, made->bytes, flags);
    if (made->result != CUDA_SUCCESS) {
        made->origin = HOST_BY_DRIVER;
        made->result = call_driver(pool->driver, request->address, made->bytes, request->sort);
    }
    leave_driver();
    bucket_count_call(cost, monotonic_now() - started, made->result == CUDA_SUCCESS);
}

/* Asks for the block's full size as long as memory can be released for it, and then for exactly
 * what the program requested. */
static void ask(struct pool *pool, const struct host_request *request, struct bucket_counters *cost,
                struct host_new *made)
{
    struct reclaim progress = {
        .bound = RECLAIM_MACHINE, .bytes = made->bytes, .wanted = request->bytes};
    do
        ask_once(pool, request, cost, made);
    while (is_worth_another_try(pool, request, made->result, &progress));
    if (made->result != CUDA_ERROR_OUT_OF_MEMORY || made->bytes == request->bytes)
        return;
    made->bytes = request->bytes;
    ask_once(pool, request, cost, made);
}

/* Records the block. If the context has died since, its memory has died with it. */
static bool record(struct pool *pool, struct host_heap *heap, struct host_bin *bucket,
                   uint64_t generation, const struct host_request *request,
                   const struct host_new *made)
{
    lock_must_be_held(&heap->context->lock);
    if (made->result != CUDA_SUCCESS || !host_lives_on(heap, generation))
        return false;
    host_count_live(pool, heap, request->bytes);
    bool recorded = host_record(pool, heap, bucket, (CUdeviceptr)(uintptr_t)*request->address,
                                made->bytes, request->bytes, made->origin);
    if (!recorded)
        host_count_live(pool, heap, 0 - (uint64_t)request->bytes);
    return recorded;
}

static void finish(struct pool *pool, struct host_heap *heap, struct host_bin *bucket,
                   uint64_t generation, const struct host_request *request,
                   const struct host_new *made)
{
    struct miss miss = {.requested = request->bytes, .result = made->result};
    struct bucket_counters *counters = bucket->bucket.counters;
    if (made->result == CUDA_SUCCESS)
        host_heap_forget_address(pool, (CUdeviceptr)(uintptr_t)*request->address);
    context_lock(heap->context);
    miss_count_request(&miss, counters);
    bool recorded = record(pool, heap, bucket, generation, request, made);
    miss_count_outcome(&miss, counters, recorded);
    context_unlock(heap->context);
}

/* Makes the next free record a fence, since a new block was needed. */
static void ask_for_a_fence(struct pool *pool, struct host_heap *heap)
{
    struct host_shard *shard = host_shard_of_thread(pool, heap);
    if (!shard)
        return;
    host_lock(shard);
    host_want_fence(shard);
    host_unlock(shard);
}

CUresult host_miss(struct pool *pool, struct host_heap *heap, uint64_t key,
                   const struct host_request *request)
{
    bus_guard_thread();
    uint64_t generation = context_generation(heap->context);
    context_lock(heap->context);
    struct host_bin *bucket = host_bucket(pool, heap, key);
    context_unlock(heap->context);
    uint64_t bytes = host_key_bytes(bucket->bucket.bytes);
    struct host_new made = {.bytes = bytes ? bytes : request->bytes};
    host_release_before_growth(pool, made.bytes);
    ask(pool, request, bucket->bucket.counters, &made);
    /* A block smaller than its bucket's size must not serve that bucket again, so it is not cached.
     */
    if (bytes && made.bytes != bytes && made.result == CUDA_SUCCESS)
        bucket = &heap->unkept;
    finish(pool, heap, bucket, generation, request, &made);
    ask_for_a_fence(pool, heap);
    housekeeper_look_after_miss(pool);
    return made.result;
}
