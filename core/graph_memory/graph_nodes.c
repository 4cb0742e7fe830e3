#include "graph_nodes.h"

#include <stdlib.h>

#include "core/contexts/capture.h"
#include "core/contexts/context.h"
#include "core/contexts/device.h"
#include "core/contexts/host_work.h"
#include "core/contexts/registry.h"
#include "core/device_memory/device_memory.h"
#include "core/driver/calls.h"
#include "graph_blocks.h"
#include "graph_held.h"
#include "graph_memory.h"
#include "graph_pools.h"

/* How many free blocks are considered for one allocation. */
#define CANDIDATES 8u

static struct graph_owner *owner_of(const struct graph_memory *memory,
                                    const struct capture_place *place)
{
    lock_must_be_held(&memory->lock);
    struct graph_owner *owner = memory->under_way;
    while (owner && owner->capture_id != place->capture)
        owner = owner->next;
    return owner;
}

/* ---- who is served ---- */

/* Memory nodes allocate from the device's current memory pool. Only the default memory pool is
 * served here: what a program expects of a memory pool of its own is known to the driver alone. */
static bool is_of_default_pool(const struct driver *driver, CUdevice device,
                               const CUmemoryPool *named)
{
    CUmemoryPool standard = NULL, current = NULL;
    if (!driver->cuDeviceGetDefaultMemPool ||
        driver->cuDeviceGetDefaultMemPool(&standard, device) != CUDA_SUCCESS)
        return false;
    if (named)
        return *named == standard;
    return !driver->cuDeviceGetMemPool ||
           (driver->cuDeviceGetMemPool(&current, device) == CUDA_SUCCESS && current == standard);
}

/* The current context, if the stream belongs to it. NULL: the driver answers, as for streams of
 * other contexts and of green contexts. */
static struct context *context_of(struct pool *pool, CUstream stream)
{
    bool green = false;
    CUcontext of = NULL, current = NULL;
    const struct driver *driver = pool->driver;
    struct context *context = context_current(pool, &green);
    if (!context || green || !context_is_usable(context) || !driver->cuStreamGetCtx ||
        driver->cuStreamGetCtx(stream, &of) != CUDA_SUCCESS ||
        driver->cuCtxGetCurrent(&current) != CUDA_SUCCESS || of != current)
        return NULL;
    return context;
}

/* The context to allocate in. NULL: the driver answers. */
static struct context *served_context(struct pool *pool, const CUmemoryPool *memory_pool,
                                      CUstream stream, struct capture_place *place)
{
    if (!graph_memory_serves(pool) || is_in_host_function(pool) ||
        !capture_place_ask(pool->driver, stream, place))
        return NULL;
    struct context *context = context_of(pool, stream);
    if (!context || !is_of_default_pool(pool->driver, context->device->ordinal, memory_pool))
        return NULL;
    struct graph_memory *memory = graph_memory_of(pool);
    lock_take(&memory->lock, LOCK_GRAPHS);
    bool owned = owner_of(memory, place) != NULL;
    lock_give(&memory->lock);
    return owned ? context : NULL;
}

/* ---- blocks that captured streams have freed ---- */

struct candidate {
    CUdeviceptr address;
    uint64_t free_number;
    bool same_graph; /* it was freed in the graph in which it is to be used */
    struct capture_place freed_at;
};

/* Whether the block was freed in the graph that the owner's capture makes. Several captures may
 * make one graph (cuStreamBeginCaptureToGraph). For a block freed before this capture began, an
 * equal handle may be that of an earlier graph. It is the same graph only if it had nodes when this
 * capture began. */
static bool is_of_same_graph(const struct graph_block *block, const struct graph_owner *owner,
                             const struct capture_place *place)
{
    return block->freed_at->capture == place->capture ||
           (block->freed_at->graph == place->graph &&
            (owner->had_nodes || block->free_number > owner->frees));
}

/* The blocks in the pool of this capture that fit, last freed first: the search back through the
 * graph reaches their frees soonest. */
static unsigned find_candidates(struct graph_memory *memory, const struct context *context,
                                const struct capture_place *place, size_t bytes,
                                struct candidate *found)
{
    unsigned count = 0;
    uint64_t size = heap_size_of_block(context, bytes);
    lock_take(&memory->lock, LOCK_GRAPHS);
    const struct graph_owner *owner = owner_of(memory, place);
    const struct graph_block *b = owner && owner->pool ? owner->pool->free : NULL;
    for (; b && count < CANDIDATES; b = b->next_free)
        if (b->bytes == size && b->block->heap == heap_of(context))
            found[count++] = (struct candidate){b->address, b->free_number,
                                                is_of_same_graph(b, owner, place), *b->freed_at};
    lock_give(&memory->lock);
    return count;
}

/* Whether the next use is ordered after all work before the free. For a block of another graph it
 * always is: graphs whose captures share a pool never run at the same time. */
static bool is_behind(struct capture_past *past, const struct candidate *candidate)
{
    return !candidate->same_graph || capture_past_includes(past, &candidate->freed_at);
}

/* Takes the candidate for the capture. False if another thread was faster. */
static bool take(struct graph_memory *memory, const struct candidate *candidate,
                 const struct capture_place *place, size_t bytes)
{
    lock_take(&memory->lock, LOCK_GRAPHS);
    struct graph_owner *owner = owner_of(memory, place);
    struct graph_block *b = graph_blocks_find(&memory->blocks, candidate->address);
    bool taken = owner && b && b->freed_at && b->free_number == candidate->free_number &&
                 b->pool == owner->pool && heap_take_parked(b->block, b->address, bytes);
    if (taken) {
        graph_pool_take(b);
        graph_block_unparked(memory, b);
        graph_block_link(b, owner);
        graph_block_made(b, owner);
        b->freer = 0;
    }
    lock_give(&memory->lock);
    return taken;
}

/* The address of a freed block that the capture takes again; 0: there is none. */
static CUdeviceptr take_freed(struct pool *pool, const struct context *context,
                              const struct capture_place *place, size_t bytes)
{
    struct graph_memory *memory = graph_memory_of(pool);
    struct candidate found[CANDIDATES];
    struct capture_past past;
    if (atomic_load_explicit(&memory->starts_early, memory_order_relaxed))
        return 0;
    unsigned count = find_candidates(memory, context, place, bytes, found);
    if (count)
        capture_past_begin(&past, pool->driver, place);
    for (unsigned i = 0; i < count; i++)
        if (is_behind(&past, &found[i]) && take(memory, &found[i], place, bytes))
            return found[i].address;
    return 0;
}

/* ---- new blocks ---- */

/* Makes the owner own the block. False if memory is short for the record: the block is then parked
 * until its context ends. Left to the program, its free would be the driver's, and a part of the
 * graph. */
static bool own(struct graph_memory *memory, struct graph_owner *owner, CUdeviceptr address,
                struct block *block)
{
    lock_must_be_held(&memory->lock);
    struct graph_pool *pool = graph_pool_of(owner);
    struct graph_block *owned = pool ? graph_blocks_add(memory, address, block) : NULL;
    if (!owned) {
        heap_park(block, address);
        return false;
    }
    heap_own(block, address);
    graph_block_link(owned, owner);
    graph_block_made(owned, owner);
    graph_pool_join(pool, owned);
    return true;
}

static CUresult allocate_anew(struct pool *pool, struct context *context,
                              const struct capture_place *place, CUdeviceptr *address, size_t bytes)
{
    struct graph_memory *memory = graph_memory_of(pool);
    CUresult result = heap_allocate_anew(pool, context, address, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    struct block *block = block_table_find(&pool->blocks, *address);
    lock_take(&memory->lock, LOCK_GRAPHS);
    /* If another thread has ended the capture, the block is the program's like any other. */
    struct graph_owner *owner = owner_of(memory, place);
    if (block && owner && !own(memory, owner, *address, block))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    lock_give(&memory->lock);
    return result;
}

bool graph_nodes_allocate_captured(struct pool *pool, CUdeviceptr *address, size_t bytes,
                                   const CUmemoryPool *memory_pool, CUstream stream,
                                   CUresult *result)
{
    no_lock_may_be_held();
    if (!address || !bytes)
        return false;
    graph_memory_process_ended(pool);
    struct capture_place place;
    /* Captures forbid some of the calls below outside relaxed mode. */
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    struct context *context = served_context(pool, memory_pool, stream, &place);
    CUdeviceptr freed = context ? take_freed(pool, context, &place, bytes) : 0;
    relaxed_mode_end(pool->driver, mode);
    if (!context)
        return false;
    *result = CUDA_SUCCESS;
    if (freed)
        *address = freed;
    else
        *result = allocate_anew(pool, context, &place, address, bytes);
    /* Relaxed, like every counter. */
    if (*result == CUDA_SUCCESS)
        atomic_fetch_add_explicit(&graph_memory_of(pool)->counters->in_place_of_nodes, 1,
                                  memory_order_relaxed);
    return true;
}

/* ---- frees ---- */

/* A capture may free a block of another capture that is already freed, since its graph frees the
 * block once per launch. It may do so once. A block that was freed by the capture that allocated it
 * cannot be freed again. */
static CUresult free_captured(struct graph_memory *memory, struct graph_owner *owner,
                              struct graph_block *block, const struct capture_place *place)
{
    lock_must_be_held(&memory->lock);
    bool freed = block->parked;
    if (freed && (graph_block_was_freed_by_its_capture(block) || block->freer == owner->number))
        return CUDA_ERROR_INVALID_VALUE;
    if (!freed && !heap_park(block->block, block->address))
        return CUDA_ERROR_INVALID_VALUE;
    graph_block_link(block, owner);
    if (!freed)
        graph_block_parked(memory, block);
    block->freer = owner->number;
    block->launches = graph_block_launches(memory, block);
    if (!freed && block->maker == owner->number && block->pool == owner->pool)
        graph_pool_put(memory, block, place);
    return CUDA_SUCCESS;
}

bool graph_nodes_free_on_stream(struct pool *pool, struct block *block, CUdeviceptr address,
                                CUstream stream, CUresult *result)
{
    no_lock_may_be_held();
    struct graph_memory *memory = graph_memory_of(pool);
    struct capture_place place;
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    /* The stream is asked even beside captures without owners: its own capture has one, or the
     * driver answers. */
    bool captured =
        captures_under_way(&pool->captures) && capture_place_ask(pool->driver, stream, &place);
    relaxed_mode_end(pool->driver, mode);
    lock_take(&memory->lock, LOCK_GRAPHS);
    struct graph_block *found = graph_blocks_find(&memory->blocks, address);
    bool ours = found && found->pool && found->block == block;
    struct graph_owner *owner = captured ? owner_of(memory, &place) : NULL;
    if (ours && owner)
        *result = free_captured(memory, owner, found, &place);
    else if (ours && found->parked && !captured)
        *result = graph_block_free_again(memory, found);
    else
        ours = false;
    lock_give(&memory->lock);
    return ours;
}

/* ---- stream-ordered memory from before the capture ---- */

bool graph_nodes_hold_captured(struct pool *pool, const struct graph_held *what, CUstream stream)
{
    struct graph_memory *memory = graph_memory_of(pool);
    struct capture_place place;
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    bool captured = graph_memory_serves(pool) && capture_place_ask(pool->driver, stream, &place);
    relaxed_mode_end(pool->driver, mode);
    struct graph_held *held = captured ? malloc(sizeof *held) : NULL;
    if (!held)
        return false;
    *held = *what;
    lock_take(&memory->lock, LOCK_GRAPHS);
    struct graph_owner *owner = owner_of(memory, &place);
    if (owner)
        graph_held_add(owner, held);
    lock_give(&memory->lock);
    if (!owner)
        free(held);
    return owner != NULL;
}
