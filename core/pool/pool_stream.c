/*
 * Stream-ordered memory: the functions of pool.h that allocate and free it, follow the order of the
 * program's streams and events, and answer the program's questions. pool_stream_quick.c has the
 * quick path of an allocation and a free. No lock is held by the callers.
 */
#include "pool_stream.h"

#include <stdlib.h>

#include "core/base/clock.h"
#include "core/base/size_class.h"
#include "core/contexts/capture.h"
#include "core/contexts/context.h"
#include "core/contexts/epoch.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"
#include "core/graph_memory/graph_memory.h"
#include "core/graph_memory/graph_nodes.h"
#include "core/graph_memory/graph_owners.h"
#include "core/housekeeper/housekeeper.h"
#include "core/stream_memory/mempool_calls.h"
#include "core/stream_memory/mempool_list.h"
#include "core/stream_memory/stream_events.h"
#include "core/stream_memory/stream_free.h"
#include "core/stream_memory/stream_heap.h"
#include "core/stream_memory/stream_order.h"
#include "core/stream_memory/stream_owner.h"
#include "core/stream_memory/stream_part_free.h"
#include "core/stream_memory/stream_pending.h"
#include "core/stream_memory/stream_release.h"
#include "core/stream_memory/stream_reserve.h"
#include "core/stream_memory/stream_shelf.h"
#include "core/stream_memory/stream_table.h"
#include "core/stream_memory/use.h"

/* ---- allocating and freeing ---- */

bool pool_allocate_async(struct pool *pool, CUdeviceptr *address, size_t bytes,
                         const CUmemoryPool *memory_pool, CUstream handle, CUresult *result)
{
    if (!pool_streams_are_served(pool))
        return graph_nodes_allocate(pool, address, bytes, memory_pool, handle, result);
    graph_memory_process_ended(pool);
    if (!address || !bytes || is_in_host_function(pool))
        return false;
    /* Set before the stream becomes known, so that the pool sees the stream's end. */
    if (!atomic_load_explicit(&streams_of(pool)->in_use, memory_order_relaxed))
        atomic_store_explicit(&streams_of(pool)->in_use, true, memory_order_relaxed);
    struct stream_ref ref = stream_find(pool, handle, true);
    if (!ref.stream)
        return false;
    struct mempool *mempool = mempool_take(pool, memory_pool, ref.stream->device);
    if (!mempool)
        return false;
    bool served = stream_allocate(pool, address, bytes, mempool, ref, handle, result);
    mempool_drop(mempool);
    return served;
}

static bool is_captured(const struct pool *pool, CUstream handle)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return program_captures(&pool->captures) && pool->driver->cuStreamIsCapturing &&
           pool->driver->cuStreamIsCapturing(handle, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Counts a request that the driver has answered, although the pool serves the memory pool. One
 * reason is that too many streams are known already. */
static void count_passed_by(struct pool *pool, const struct pool_request *request, CUresult result)
{
    bool green;
    struct context *context = context_current(pool, &green);
    struct mempool *mempool =
        context ? mempool_take(pool, request->memory_pool, context->device) : NULL;
    if (!mempool)
        return;
    stream_count_passed_by(pool, context->device, request->bytes, result);
    mempool_drop(mempool);
}

void pool_note_driver_allocation(struct pool *pool, const struct pool_request *request,
                                 CUresult result)
{
    if (result == CUDA_SUCCESS)
        graph_memory_allocated_on(pool, request->stream);
    if (pool_streams_are_served(pool) && request->bytes && !is_in_host_function(pool) &&
        !is_captured(pool, request->stream))
        count_passed_by(pool, request, result);
}

/* Orders the stream of the free after the uses that the program has announced, whether the pool or
 * the driver frees the block. A captured free is not ordered. */
static CUresult end_uses(struct pool *pool, struct stream_block *block, CUstream handle)
{
    if (!atomic_load_explicit(&block->uses, memory_order_relaxed) || is_captured(pool, handle))
        return CUDA_SUCCESS;
    return use_end(pool, block, handle);
}

static bool may_be_kept(struct pool *pool, struct stream_block *block, CUstream handle)
{
    if (!pool_streams_are_served(pool))
        return false;
    struct stream_ref ref = stream_find(pool, handle, true);
    if (!ref.stream)
        return false;
    return stream_free_in_order(pool, block, ref, handle);
}

struct stream_free {
    free_async *driver;
    CUstream stream;
};

static CUresult free_on_stream(struct pool *pool, const struct stream_block *block,
                               const void *argument)
{
    const struct stream_free *free = argument;
    (void)pool;
    return free->driver(block_address(&block->block), free->stream);
}

static CUresult free_claimed_async(struct pool *pool, free_async *driver,
                                   struct stream_block *block, CUstream handle)
{
    struct stream_free free = {driver, handle};
    struct graph_held held = {block_address(&block->block),
                              atomic_load_explicit(&block->generation, memory_order_relaxed), NULL};
    if (graph_nodes_hold(pool, &held, handle)) {
        housekeeper_look(pool, block->block.bytes);
        return CUDA_SUCCESS;
    }
    bool part = block_is_part(&block->block);
    /* The captured free would become a node of the graph, and the driver cannot free a part. */
    CUresult result = part && is_captured(pool, handle) ? CUDA_ERROR_INVALID_VALUE
                                                        : end_uses(pool, block, handle);
    if (result != CUDA_SUCCESS) {
        /* The free has failed, so the block belongs to the program again. */
        atomic_store_explicit(&block->held_at, block_address(&block->block), memory_order_release);
        return result;
    }
    if (part)
        return may_be_kept(pool, block, handle) ? CUDA_SUCCESS
                                                : stream_part_free_apart(pool, block, handle);
    return may_be_kept(pool, block, handle)
               ? CUDA_SUCCESS
               : stream_free_by_driver(pool, block, free_on_stream, &free);
}

static CUresult free_claimed_plainly(struct pool *pool, struct stream_block *block)
{
    bool green;
    struct fence_event behind = {NULL, 0, NULL, false};
    if (block_is_part(&block->block))
        return stream_part_free_plainly(pool, block);
    if (pool_streams_are_served(pool) && context_current(pool, &green) &&
        stream_free_plainly(pool, block, &behind)) {
        use_forget(pool, block);
        return CUDA_SUCCESS;
    }
    return stream_free_by_plain_call(pool, block, &behind);
}

static CUresult free_claimed(struct pool *pool, struct stream_block *block)
{
    struct shelf *counted;
    uint64_t asked = stream_block_begin_plain_free(pool, block, &counted);
    CUresult result = free_claimed_plainly(pool, block);
    if (result != CUDA_SUCCESS)
        stream_block_plain_free_failed(block, counted, asked);
    return result;
}

bool pool_stream_free_async(struct pool *pool, free_async *driver, CUdeviceptr address,
                            CUstream handle, CUresult *result)
{
    struct stream_block *block = stream_block_at(pool, address);
    if (block && is_in_host_function(pool))
        *result = driver(address, handle);
    else if (block)
        *result = stream_block_claim(block, address)
                      ? free_claimed_async(pool, driver, block, handle)
                      : CUDA_ERROR_INVALID_VALUE;
    return block != NULL;
}

bool pool_stream_free(struct pool *pool, CUdeviceptr address, CUresult *result)
{
    struct stream_block *block = stream_block_at(pool, address);
    if (block)
        *result = stream_block_claim(block, address) ? free_claimed(pool, block)
                                                     : CUDA_ERROR_INVALID_VALUE;
    return block != NULL;
}

/* ---- following the program's order ---- */

bool pool_follows_streams(struct pool *pool)
{
    return streams_are_in_use(pool);
}

/* Nobody can wait for the stream any more. A fence tells when its blocks are clean. An older driver
 * records none, so it gets the blocks in the stream's order. */
static void leave_behind_fence(struct pool *pool, struct stream_ref ref, CUstream handle)
{
    lock_take(&ref.stream->lock, LOCK_STREAM);
    stream_done_apply(ref.stream);
    uint64_t newest = stream_newest_unclean(ref.stream);
    struct context *context = ref.stream->context;
    lock_give(&ref.stream->lock);
    if (newest && pool->driver->cuCtxRecordEvent)
        epoch_fence_in_order(pool, context, newest);
    else if (newest)
        stream_release_at_the_end(pool, ref, handle);
}

void pool_stream_ending(struct pool *pool, CUstream handle)
{
    if (!stream_is_created(handle))
        return;
    /* In a thread that the driver has called back from a call of the pool's, the stream only loses
     * its handle. What is pending on the stream waits for a later fence of its context. */
    if (driver_calls.depth) {
        streams_end_handle(pool, handle);
        return;
    }
    struct stream_ref ref = stream_find_beside_captures(pool, handle, false);
    if (!ref.stream) {
        /* The stream may be known all the same. Perhaps the thread has no context, or a capture has
         * the stream. What is pending on the stream waits for a later fence of its context. */
        streams_end_handle(pool, handle);
        return;
    }
    leave_behind_fence(pool, ref, handle);
    stream_end(pool, ref);
}

struct order_mark pool_stream_wait_begin(struct pool *pool, CUstream handle)
{
    struct order_mark mark = order_take_mark(pool, handle);
    if (program_captures(&pool->captures))
        mark.ref.stream = NULL;
    return mark;
}

/* An error that the program's own wait has found stays in the context. The pool leaves that context
 * to the driver, as it does after an error of its own calls. NULL: the current context. */
static void note_error(struct pool *pool, struct context *context, CUresult result)
{
    bool green;
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY)
        return;
    if (!context)
        context = context_current(pool, &green);
    if (context)
        epoch_note_error(context, result);
}

void pool_stream_wait_end(struct pool *pool, struct order_mark mark, CUresult result)
{
    /* Nothing is learned where captures are under way: one that began during the wait may have the
     * stream. */
    if (result == CUDA_SUCCESS && mark.ref.stream && !program_captures(&pool->captures))
        order_mark_is_over(mark);
    else
        note_error(pool, mark.context, result);
}

void pool_event_wait_ended(struct pool *pool, CUresult result)
{
    /* Among several contexts, the pool does not know which one the event belongs to. Its own calls
     * there find the error. Relaxed: it orders nothing. */
    if (!atomic_load_explicit(&pool->several_contexts, memory_order_relaxed))
        note_error(pool, NULL, result);
}

/* A program that launches this way, and uses no stream-ordered memory, only pays for a look at a
 * short list. */
void pool_early_launch(struct pool *pool, CUstream handle)
{
    graph_nodes_note_early_launch(pool);
    /* A captured launch is a node of a graph, and graphs get no memory that streams reuse. */
    if (!streams_of(pool) || is_captured(pool, handle))
        return;
    if (!pool_follows_streams(pool)) {
        streams_note_early_launch(streams_of(pool), stream_spelled_out(handle));
        return;
    }
    struct stream_ref ref = stream_find_beside_captures(pool, handle, true);
    /* A stream that the pool does not know may become known later. */
    if (!ref.stream)
        streams_note_early_launch(streams_of(pool), stream_spelled_out(handle));
    if (ref.stream)
        stream_launches_early(ref);
}

/* ---- memory pools ---- */

void pool_mempool_created(struct pool *pool, CUmemoryPool handle, CUdevice device)
{
    if (streams_of(pool))
        mempool_created(pool, handle, device);
}

void pool_mempool_chosen(struct pool *pool)
{
    if (streams_of(pool))
        mempool_chosen(pool);
}

void pool_mempool_destroying(struct pool *pool, CUmemoryPool handle)
{
    if (streams_of(pool))
        mempool_destroying(pool, handle);
}

void pool_mempool_destroyed(struct pool *pool, CUmemoryPool handle, CUresult result)
{
    if (streams_of(pool))
        mempool_destroyed(pool, handle, result == CUDA_SUCCESS);
}

void pool_mempool_trimming(struct pool *pool, CUmemoryPool handle, size_t keep)
{
    if (pool_streams_are_served(pool))
        mempool_trimming(pool, handle, keep);
}

void pool_mempool_setting(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute)
{
    if (streams_of(pool))
        mempool_setting(pool, handle, attribute);
}

void pool_mempool_set(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute,
                      const void *value)
{
    if (streams_of(pool))
        mempool_set(pool, handle, attribute, value);
}

void pool_mempool_got(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute,
                      void *value)
{
    if (streams_of(pool))
        mempool_got(pool, handle, attribute, value);
}

/* ---- what programs may ask for ---- */

bool pool_stream_bytes(struct pool *pool, CUstream handle, struct kept_bytes *bytes)
{
    struct stream_ref ref = streams_of(pool) ? stream_find_beside_captures(pool, handle, false)
                                             : (struct stream_ref){NULL, 0};
    if (!ref.stream)
        return false;
    struct stream *stream = ref.stream;
    lock_take(&stream->lock, LOCK_STREAM);
    stream_done_apply(stream);
    uint64_t free = counter_get(&stream->free_bytes);
    uint64_t clean = counter_get(&stream->clean_bytes);
    uint64_t spare = counter_get(&stream->parts.spare_bytes);
    uint64_t waiting = counter_get(&stream->parts.waiting_bytes);
    bytes->live = counter_get(&stream->reserved_bytes) - free - spare;
    bytes->cached = clean + spare - waiting;
    bytes->pending = free - clean + waiting;
    lock_give(&stream->lock);
    return true;
}

/* How many streams have something pending. */
static unsigned streams_pending(struct pool *pool)
{
    struct streams *streams = streams_of(pool);
    unsigned count = 0;
    for (unsigned i = 0; i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        lock_take(&stream->lock, LOCK_STREAM);
        stream_done_apply(stream);
        count += stream->pending.first != NULL || stream->parts.waiting.first != NULL;
        lock_give(&stream->lock);
    }
    return count;
}

/* The wait is no blocking driver call. The context may be about to end, and its end waits for this
 * thread; the work may wait for that end. */
unsigned pool_reap(struct pool *pool)
{
    if (!pool_streams_are_served(pool))
        return 0;
    unsigned before = streams_pending(pool);
    stream_pending_fence_device(pool, NULL);
    uint64_t give_up_at = monotonic_now() + LAST_RESORT_NANOSECONDS;
    for (struct context *c = context_next(pool, NULL, NULL); c; c = context_next(pool, c, NULL))
        stream_pending_wait_for(pool, c, stream_pending_newest(pool, c), give_up_at);
    stream_pending_query(pool, NULL);
    unsigned after = streams_pending(pool);
    return before > after ? before - after : 0;
}

uint64_t pool_generation(struct pool *pool, CUdeviceptr address)
{
    return streams_of(pool) ? use_generation(pool, address) : 0;
}

CUresult pool_record_use(struct pool *pool, CUdeviceptr address, uint64_t generation,
                         CUstream stream, bool write)
{
    if (!streams_of(pool))
        return CUDA_ERROR_NOT_SUPPORTED;
    return use_record(pool, address, generation, stream, write);
}
