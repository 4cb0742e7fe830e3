#include "graph_memory.h"

#include <stdlib.h>

#include "core/contexts/capture.h"
#include "core/contexts/registry.h"
#include "core/device_memory/device_memory.h"
#include "core/driver/calls.h"
#include "graph_blocks.h"

bool graph_memory_serves(struct pool *pool)
{
    return graph_memory_of(pool) && captures_are_going_on(&pool->captures) &&
           captures_are_all_owned(&pool->captures);
}

/* All captures under way own the block. Where there is no memory to say so, nobody says when they
 * do no longer: it stays marked, and parked when it is freed, until its context ends. */
static void link_all(struct graph_memory *memory, struct graph_block *block)
{
    lock_must_be_held(&memory->lock);
    for (struct graph_owner *owner = memory->under_way; block && owner; owner = owner->next)
        graph_block_link(block, owner);
}

void graph_memory_own(struct pool *pool, CUdeviceptr address)
{
    no_lock_may_be_held();
    struct graph_memory *memory = graph_memory_of(pool);
    struct block *block = block_table_find(&pool->blocks, address);
    lock_take(&memory->lock, LOCK_GRAPHS);
    if (block && memory->under_way) {
        struct graph_block *owned = graph_blocks_add(memory, address, block);
        if (heap_own(block, address))
            link_all(memory, owned);
        else if (owned)
            graph_block_forget(memory, owned);
    }
    lock_give(&memory->lock);
}

CUresult graph_memory_allocate(struct pool *pool, struct context *context, CUdeviceptr *address,
                               size_t bytes)
{
    no_lock_may_be_held();
    CUresult result = heap_allocate_anew(pool, context, address, bytes);
    if (result == CUDA_SUCCESS)
        graph_memory_own(pool, *address);
    return result;
}

/* After an error that stays in a context the driver answers there, and no graph of it is any use.
 */
static bool is_usable(struct block *block)
{
    return context_is_usable(context_of_heap(block->heap));
}

/* Whether graphs own the block, or are about to. What they own stays theirs wherever the pool has
 * stepped aside: they may be launched all the same, and parking asks the driver for nothing. */
static bool is_of_graphs(struct pool *pool, struct block *block)
{
    return block_is_owned(block) || (graph_memory_serves(pool) && is_usable(block));
}

/* Parks the block for its owners, those of captures under way included. */
static CUresult park(struct graph_memory *memory, struct block *block, CUdeviceptr address)
{
    lock_must_be_held(&memory->lock);
    if (!block_is_live_at(block, address))
        return CUDA_ERROR_INVALID_VALUE;
    struct graph_block *owned = graph_blocks_add(memory, address, block);
    if (!heap_park(block, address)) {
        if (owned && owned->links == 0)
            graph_block_forget(memory, owned);
        return CUDA_ERROR_INVALID_VALUE;
    }
    link_all(memory, owned);
    if (owned)
        graph_block_parked(memory, owned);
    return CUDA_SUCCESS;
}

/* A thread that only stands by makes graphs keep what they may have no use for. */
static void count_bystander(struct pool *pool, struct graph_memory *memory, uint64_t bytes)
{
    const struct graph_owner *owner = memory->under_way;
    uint64_t thread = thread_id(pool);
    while (owner && owner->thread != thread)
        owner = owner->next;
    if (memory->under_way && !owner)
        counter_add(&memory->counters->bystander_bytes, bytes);
}

bool graph_memory_free_owned(struct pool *pool, struct block *block, CUdeviceptr address,
                             CUresult *result)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct graph_memory *memory = graph_memory_of(pool);
    graph_memory_take_up(pool);
    if (!is_of_graphs(pool, block))
        return false;
    lock_take(&memory->lock, LOCK_GRAPHS);
    /* The last capture may have ended since, or the last owner gone. */
    bool ours = block_is_owned(block) || (memory->under_way && is_usable(block));
    uint64_t bytes = block_bytes(block);
    if (ours)
        *result = park(memory, block, address);
    if (ours && *result == CUDA_SUCCESS)
        count_bystander(pool, memory, bytes);
    lock_give(&memory->lock);
    return ours;
}

static void forget_address(struct pool *pool, CUdeviceptr address)
{
    struct graph_memory *memory = graph_memory_of(pool);
    if (!memory)
        return;
    lock_take(&memory->lock, LOCK_GRAPHS);
    struct graph_block *found = graph_blocks_find(&memory->blocks, address);
    if (found)
        graph_block_forget(memory, found);
    lock_give(&memory->lock);
}

void graph_memory_look_again(struct pool *pool, struct block *block, CUdeviceptr address)
{
    no_lock_may_be_held();
    struct graph_memory *memory = graph_memory_of(pool);
    lock_take(&memory->lock, LOCK_GRAPHS);
    struct graph_block *found = graph_blocks_find(&memory->blocks, address);
    if (found && !found->parked && !heap_own(block, address))
        graph_block_forget(memory, found);
    lock_give(&memory->lock);
}

/* ---- the kind ---- */

static bool starts(struct pool *pool)
{
    const struct settings *settings = &pool->settings;
    if (!settings->captures.allocate || !settings->device.enabled)
        return true;
    struct graph_memory *memory = calloc(1, sizeof *memory);
    if (!memory)
        return false;
    pthread_mutex_init(&memory->lock, NULL);
    memory->counters = &memory->first_counters;
    pool->of_kind[KIND_GRAPH] = memory;
    return true;
}

/* Captures may have begun before the first device was known. */
static bool made_device(struct pool *pool, struct device *device)
{
    struct graph_memory *memory = graph_memory_of(pool);
    (void)device;
    if (!memory || memory->counters != &memory->first_counters)
        return true;
    struct graph_counters *counters = figures_graphs(&pool->figures);
    if (!counters)
        return false;
    lock_take(&memory->lock, LOCK_GRAPHS);
    graph_counters_copy(counters, memory->counters);
    memory->counters = counters;
    lock_give(&memory->lock);
    return true;
}

static void ended(struct pool *pool, struct context *context)
{
    struct graph_memory *memory = graph_memory_of(pool);
    if (!memory)
        return;
    lock_take(&memory->lock, LOCK_GRAPHS);
    graph_blocks_forget_context(memory, context);
    lock_give(&memory->lock);
}

static void ask(struct pool *pool, struct device *device)
{
    (void)device;
    graph_memory_take_up(pool);
}

/* What it keeps is in use, and what it keeps no more is the heaps'. */
static uint64_t give_back(struct pool *pool, struct device *device, uint64_t bytes)
{
    (void)pool, (void)device, (void)bytes;
    return 0;
}

static uint64_t release_idle(struct pool *pool, struct device *device, uint64_t now)
{
    (void)device, (void)now;
    graph_memory_take_up(pool);
    return UINT64_MAX;
}

/* What graphs keep becomes free when the last of them goes, which happens inside the driver and
 * passes no slow path: as long as there may be such memory somebody has to look. */
static bool watch(struct pool *pool)
{
    struct graph_memory *memory = graph_memory_of(pool);
    if (!memory)
        return false;
    lock_take(&memory->lock, LOCK_GRAPHS);
    bool kept = counter_get(&memory->counters->kept_blocks) != 0;
    lock_give(&memory->lock);
    return kept || atomic_load_explicit(&memory->gone, memory_order_relaxed);
}

const struct kind graph_memory = {
    .name = "graph",
    .number = KIND_GRAPH,
    .starts = starts,
    .made_device = made_device,
    .ended = ended,
    .capture_began = graph_capture_began,
    .capture_ended = graph_capture_ended,
    .forget_address = forget_address,
    .ask = ask,
    .give_back = give_back,
    .make_room = give_back,
    .release_idle = release_idle,
    .watch = watch,
};
