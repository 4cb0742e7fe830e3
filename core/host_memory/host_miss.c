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

/* Blocks by hand leave so much of the machine's memory, or of the cgroup's. */
#define SPARE_SHARE 16u

static CUresult call_driver(const struct driver *driver, void **address, uint64_t bytes,
                            unsigned sort)
{
    if (sort & HOST_SORT_PLAIN)
        return driver->cuMemAllocHost_v2(address, bytes);
    return driver->cuMemHostAlloc(address, bytes, sort & HOST_SORT_FLAGS);
}

/* After the driver has answered so. What the machine does not have, nothing is given back for. */
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

/* Where memory runs out as it is touched, the kernel ends a process; the driver's call only fails.
 */
static bool has_room_to_touch(const struct pool *pool, uint64_t bytes)
{
    const struct machine *machine = &host_memory_of(pool)->machine;
    return bytes + machine->memory_bytes / SPARE_SHARE <= machine_memory_available(machine);
}

struct host_new {
    uint64_t bytes; /* of the block */
    enum host_origin origin;
    CUresult result;
};

/* By hand where that is quicker; where that fails, the driver is the one to say why. */
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

/* The block's size, as long as there is memory; then exactly what is wanted. */
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

/* If the context has died since, its memory has died with it. */
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

/* A new block was wanted, so the next free is worth a fence of its own. */
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
    /* A block that is smaller than its bucket must not serve it again, so it is not kept. */
    if (bytes && made.bytes != bytes && made.result == CUDA_SUCCESS)
        bucket = &heap->unkept;
    finish(pool, heap, bucket, generation, request, &made);
    ask_for_a_fence(pool, heap);
    housekeeper_look_after_miss(pool);
    return made.result;
}
