#include "use.h"

#include <stdlib.h>

#include "core/contexts/capture.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"
#include "mempool.h"
#include "stream_shelf.h"
#include "stream_table.h"

struct use {
    struct stream_ref stream;
    CUstream handle;
    uint64_t thread; /* whose own stream it is, or 0 */
    struct context *context;
    uint64_t generation; /* of the context */
};

struct uses {
    struct use write;
    unsigned count, room;
    struct use *reads;
};

/* The earlier uses that a later use has to wait for. They are a copy, since the driver is called
 * without the lock. */
struct waits {
    unsigned count;
    struct use uses[];
};

uint64_t use_generation(struct pool *pool, CUdeviceptr address)
{
    const struct stream_block *block = stream_block_find(&streams_of(pool)->blocks, address);
    if (!block || !stream_block_is_held(block, address))
        return 0;
    return atomic_load_explicit(&block->generation, memory_order_relaxed);
}

/* ---- the record ---- */

static struct use use_on(struct stream_ref ref)
{
    struct stream *stream = ref.stream;
    lock_take(&stream->lock, LOCK_STREAM);
    struct use use = {ref, stream->handle, stream->thread, stream->context, stream->generation};
    lock_give(&stream->lock);
    return use;
}

static bool is_same(const struct use *a, struct stream_ref b)
{
    return a->stream.stream == b.stream && a->stream.id == b.id;
}

static struct waits *waits_for(const struct uses *uses, struct stream_ref ref, bool for_reads)
{
    lock_of_rank_must_be_held(LOCK_USES);
    unsigned most = 1 + (for_reads ? uses->count : 0);
    struct waits *waits = malloc(sizeof *waits + most * sizeof waits->uses[0]);
    if (!waits)
        return NULL;
    waits->count = 0;
    if (uses->write.stream.stream && !is_same(&uses->write, ref))
        waits->uses[waits->count++] = uses->write;
    for (unsigned i = 0; for_reads && i < uses->count; i++)
        if (!is_same(&uses->reads[i], ref))
            waits->uses[waits->count++] = uses->reads[i];
    return waits;
}

static bool add_read(struct uses *uses, const struct use *use)
{
    lock_of_rank_must_be_held(LOCK_USES);
    for (unsigned i = 0; i < uses->count; i++)
        if (is_same(&uses->reads[i], use->stream))
            return true;
    if (uses->count == uses->room) {
        unsigned room = uses->room ? 2 * uses->room : 4;
        struct use *reads = realloc(uses->reads, room * sizeof *reads);
        if (!reads)
            return false;
        uses->reads = reads;
        uses->room = room;
    }
    uses->reads[uses->count++] = *use;
    return true;
}

static void free_uses(struct uses *uses)
{
    if (uses)
        free(uses->reads);
    free(uses);
}

static struct uses *uses_of(const struct stream_block *block)
{
    return atomic_load_explicit(&block->uses, memory_order_relaxed);
}

static struct uses *take_uses(struct stream_block *block)
{
    return atomic_exchange_explicit(&block->uses, NULL, memory_order_relaxed);
}

/* Returns the allocation as a use. If its stream has ended, or the record belongs to another stream
 * now, the use can't name the stream any more. */
static struct use allocation_of(struct pool *pool, const struct stream_block *block,
                                struct stream *stream)
{
    struct use use = use_on((struct stream_ref){stream, stream_id(streams_of(pool), stream)});
    lock_take(&stream->lock, LOCK_STREAM);
    if (atomic_load_explicit(&block->generation, memory_order_relaxed) <=
        stream->given.handed_before)
        use.stream.id = 0;
    lock_give(&stream->lock);
    use.context = block->context;
    use.generation = block->context_generation;
    return use;
}

/* Returns the block's uses so far. If none was announced, it makes them with the allocation, a
 * write on the stream that counts the block. */
static struct uses *get_uses(struct pool *pool, struct stream_block *block)
{
    lock_of_rank_must_be_held(LOCK_USES);
    struct uses *uses = uses_of(block);
    struct shelf *shelf = atomic_load_explicit(&block->shelf, memory_order_relaxed);
    if (uses || !shelf)
        return uses;
    uses = calloc(1, sizeof *uses);
    if (uses)
        uses->write = allocation_of(pool, block, shelf->stream);
    atomic_store_explicit(&block->uses, uses, memory_order_relaxed);
    return uses;
}

/* ---- waiting ---- */

static bool can_be_named_here(const struct pool *pool, const struct use *use)
{
    return use->stream.id != 0 &&
           stream_id(streams_of(pool), use->stream.stream) == use->stream.id &&
           (!use->thread || use->thread == thread_state.id);
}

/* Captures forbid any wait for a context. */
static CUresult record_end_of_context(struct pool *pool, const struct use *use, CUevent event)
{
    const struct driver *driver = pool->driver;
    if (!driver->cuCtxRecordEvent && program_captures(&pool->captures))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!driver->cuCtxRecordEvent)
        return driver->cuCtxSynchronize();
    lock_take(&pool->fence_lock, LOCK_FENCE);
    CUresult result = program_captures(&pool->captures)
                          ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                          : driver->cuCtxRecordEvent(use->context->handle, event);
    lock_give(&pool->fence_lock);
    return result;
}

static CUresult record_end(struct pool *pool, const struct use *use, CUevent event)
{
    if (!can_be_named_here(pool, use))
        return record_end_of_context(pool, use, event);
    /* An event recorded in a capture would draw whoever waits for it into the capture. */
    if (stream_may_be_captured(pool, use->handle))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    CUresult result = pool->driver->cuEventRecord(event, use->handle);
    /* If the stream can't be named any more, another stream may have got the handle meanwhile. */
    return can_be_named_here(pool, use) ? result : record_end_of_context(pool, use, event);
}

static CUresult wait_for(struct pool *pool, const struct use *use, CUstream handle)
{
    const struct driver *driver = pool->driver;
    CUevent event;
    bool pushed;
    if (!context_pin(use->context, use->generation))
        return CUDA_SUCCESS; /* its work has ended with it */
    CUresult result = CUDA_ERROR_INVALID_CONTEXT;
    enter_driver();
    if (context_push(pool, use->context, &pushed)) {
        result = driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
        bool made = result == CUDA_SUCCESS;
        if (made)
            result = record_end(pool, use, event);
        context_pop(pool, pushed);
        if (made && result == CUDA_SUCCESS)
            result = driver->cuStreamWaitEvent(handle, event, 0);
        if (made)
            driver->cuEventDestroy_v2(event);
    }
    leave_driver();
    context_unpin(use->context);
    return result;
}

static CUresult wait_for_all(struct pool *pool, struct waits *waits, CUstream handle)
{
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; i < waits->count && result == CUDA_SUCCESS; i++)
        result = wait_for(pool, &waits->uses[i], handle);
    free(waits);
    return result;
}

/* ---- announcing uses ---- */

/* Notes the use. The stream's later work already waits for the uses before it. */
static CUresult note_use(struct pool *pool, struct stream_block *block, CUdeviceptr address,
                         uint64_t generation, const struct use *use, bool write)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    lock_take(&streams_of(pool)->use_lock, LOCK_USES);
    struct uses *uses = use_generation(pool, address) == generation ? uses_of(block) : NULL;
    if (uses && write) {
        uses->write = *use;
        uses->count = 0;
        result = CUDA_SUCCESS;
    } else if (uses) {
        result = add_read(uses, use) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    lock_give(&streams_of(pool)->use_lock);
    return result;
}

static struct waits *begin_use(struct pool *pool, struct stream_block *block, CUdeviceptr address,
                               uint64_t generation, struct stream_ref ref, bool write,
                               CUresult *result)
{
    struct waits *waits = NULL;
    *result = CUDA_ERROR_INVALID_VALUE;
    lock_take(&streams_of(pool)->use_lock, LOCK_USES);
    if (use_generation(pool, address) == generation) {
        struct uses *uses = get_uses(pool, block);
        waits = uses ? waits_for(uses, ref, write) : NULL;
        *result = waits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    lock_give(&streams_of(pool)->use_lock);
    return waits;
}

CUresult use_record(struct pool *pool, CUdeviceptr address, uint64_t generation, CUstream handle,
                    bool write)
{
    struct stream_block *block = stream_block_find(&streams_of(pool)->blocks, address);
    CUresult result;
    if (!block || generation == 0 || use_generation(pool, address) != generation)
        return CUDA_ERROR_INVALID_VALUE;
    /* A captured stream that is made to wait for work outside of its capture would end the capture.
     */
    if (stream_may_be_captured(pool, handle))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct stream_ref ref = stream_find_beside_captures(pool, handle, true);
    if (!ref.stream || ref.stream->device != block->mempool->device)
        return CUDA_ERROR_INVALID_HANDLE;
    struct waits *waits = begin_use(pool, block, address, generation, ref, write, &result);
    if (!waits)
        return result;
    result = wait_for_all(pool, waits, handle);
    if (result != CUDA_SUCCESS)
        return result;
    struct use use = use_on(ref);
    return note_use(pool, block, address, generation, &use, write);
}

CUresult use_end(struct pool *pool, struct stream_block *block, CUstream handle)
{
    struct stream_ref ref = stream_find_beside_captures(pool, handle, true);
    struct waits *waits = NULL;
    lock_take(&streams_of(pool)->use_lock, LOCK_USES);
    struct uses *uses = uses_of(block);
    if (uses)
        waits = waits_for(uses, ref, true);
    lock_give(&streams_of(pool)->use_lock);
    if (!uses)
        return CUDA_SUCCESS;
    CUresult result = waits ? wait_for_all(pool, waits, handle) : CUDA_ERROR_OUT_OF_MEMORY;
    /* After an error, the next free has to wait for all of them again. */
    if (result == CUDA_SUCCESS)
        use_forget(pool, block);
    return result;
}

void use_forget(struct pool *pool, struct stream_block *block)
{
    lock_take(&streams_of(pool)->use_lock, LOCK_USES);
    struct uses *uses = take_uses(block);
    lock_give(&streams_of(pool)->use_lock);
    free_uses(uses);
}
