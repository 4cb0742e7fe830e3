#include "graph_memory.h"

#include <stdlib.h>

#include "core/base/clock.h"
#include "core/contexts/capture.h"
#include "core/contexts/registry.h"
#include "core/device_memory/device_memory.h"
#include "core/driver/calls.h"
#include "graph_blocks.h"

/* One of so many frees beside captures checks whether a capture was invalidated. */
#define PARKED_PER_LOOK 64u

bool graph_memory_serves(struct pool *pool)
{
    return graph_memory_of(pool) && captures_under_way(&pool->captures) &&
           captures_are_all_owned(&pool->captures);
}

/* Makes all captures under way own the block, except those that will leave no graph. If memory was
 * short for the record, nobody tells when these owners end. The block then stays marked, and is
 * parked when it is freed, until its context ends. */
static void link_all(struct graph_memory *memory, struct graph_block *block)
{
    lock_must_be_held(&memory->lock);
    struct graph_owner *owner = graph_owner_at_work(memory->under_way);
    for (; block && owner; owner = graph_owner_at_work(owner->next))
        graph_block_link(block, owner);
}

void graph_memory_own(struct pool *pool, CUdeviceptr address)
{
    no_lock_may_be_held();
    struct graph_memory *memory = graph_memory_of(pool);
    struct block *block = block_table_find(&pool->blocks, address);
    lock_take(&memory->lock, LOCK_GRAPHS);
    if (block && graph_owner_at_work(memory->under_way)) {
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

/* After an error that stays in a context the driver answers there, and no graph of the context is
 * of any use. */
static bool is_usable(struct block *block)
{
    return context_is_usable(context_of_heap(block->heap));
}

/* Whether graphs own the block, or are about to. A block that graphs own stays theirs even in a
 * context that the pool no longer serves. The graphs may still be launched, and parking makes no
 * driver call. */
static bool is_of_graphs(struct pool *pool, struct block *block)
{
    return block_is_owned(block) || (graph_memory_serves(pool) && is_usable(block));
}

/* Parks the block for its owners, which include the captures under way. */
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
    if (owned) {
        graph_block_parked(memory, owned);
        owned->freer = 0;
        owned->launches = graph_block_launches(memory, owned);
    }
    return CUDA_SUCCESS;
}

/* Counts bytes freed by a thread that has begun none of the captures under way: graphs may keep
 * them without needing them. */
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
    graph_memory_process_ended(pool);
    if (memory->serves_nodes && block_state(block) == BLOCK_KEPT &&
        graph_blocks_free_again(memory, address, result))
        return true;
    if (!is_of_graphs(pool, block))
        return false;
    lock_take(&memory->lock, LOCK_GRAPHS);
    /* The last capture may have ended since the check above, or the last owner. */
    bool ours =
        block_is_owned(block) || (graph_owner_at_work(memory->under_way) && is_usable(block));
    uint64_t bytes = block_bytes(block);
    if (ours)
        *result = park(memory, block, address);
    if (ours && *result == CUDA_SUCCESS)
        count_bystander(pool, memory, bytes);
    bool look = ours && memory->under_way && ++memory->parked % PARKED_PER_LOOK == 0;
    lock_give(&memory->lock);
    if (look)
        graph_owners_look_for_spoilt(pool);
    return ours;
}

void graph_memory_allocated_on(struct pool *pool, CUstream stream)
{
    struct graph_memory *memory = graph_memory_of(pool);
    /* Relaxed, like every counter. */
    if (memory && stream_may_be_captured(pool, stream))
        atomic_fetch_add_explicit(&memory->counters->memory_nodes, 1, memory_order_relaxed);
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
    memory->serves_nodes = settings->captures.memory_nodes == MEMORY_NODES_POOL;
    pool->of_kind[KIND_GRAPH] = memory;
    return true;
}

/* Moves the counters to the figures, since captures may have begun before the first device was
 * known. */
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

static bool keeps_anything(struct graph_memory *memory)
{
    lock_take(&memory->lock, LOCK_GRAPHS);
    bool kept = counter_get(&memory->counters->kept_blocks) != 0;
    lock_give(&memory->lock);
    return kept || atomic_load_explicit(&memory->held, memory_order_relaxed);
}

/* Nanoseconds that a thread of the driver's may take to run the destructor after the program has
 * destroyed an executable. This is about executables of which only the driver knows that they keep
 * an owner. */
#define DESTRUCTOR_NANOSECONDS (UINT64_C(100) * 1000 * 1000)

static void await_destructors(struct graph_memory *memory)
{
    uint64_t started = monotonic_now();
    while (monotonic_now() - atomic_load_explicit(&memory->ended_unseen, memory_order_relaxed) <
               DESTRUCTOR_NANOSECONDS &&
           !atomic_load_explicit(&memory->gone, memory_order_relaxed) && keeps_anything(memory))
        patient_nap(started);
}

/* Called for a thread that is out of memory. */
static void ask(struct pool *pool, struct device *device)
{
    (void)device;
    if (graph_memory_of(pool))
        await_destructors(graph_memory_of(pool));
    if (graph_memory_of(pool) && captures_under_way(&pool->captures))
        graph_owners_look_for_spoilt(pool);
    graph_memory_process_ended(pool);
}

static uint64_t release_idle(struct pool *pool, struct device *device, uint64_t now)
{
    (void)device, (void)now;
    graph_memory_process_ended(pool);
    return UINT64_MAX;
}

/* What graphs keep becomes free when the last of them is destroyed. That happens inside the driver
 * and reaches no slow path, so the housekeeper must stay while there may be such memory. */
static bool watch(struct pool *pool)
{
    struct graph_memory *memory = graph_memory_of(pool);
    if (!memory)
        return false;
    return keeps_anything(memory) || atomic_load_explicit(&memory->gone, memory_order_relaxed);
}

const struct kind graph_memory = {
    .name = "graph",
    .number = KIND_GRAPH,
    .starts = starts,
    .made_device = made_device,
    .ended = ended,
    .capture_is_coming = graph_capture_is_coming,
    .capture_began = graph_capture_began,
    .capture_ended = graph_capture_ended,
    .forget_address = forget_address,
    .ask = ask,
    .release_idle = release_idle,
    .watch = watch,
};
