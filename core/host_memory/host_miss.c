#include "host_miss.h"

#include "core/base/bus_guard.h"
#include "core/base/clock.h"
#include "core/contexts/capture.h"
#include "core/driver/calls.h"
#include "core/housekeeper/housekeeper.h"
#include "core/reclaim/miss.h"
#include "core/reclaim/reclaim.h"
#include "host_large.h"
#include "host_release.h"

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
