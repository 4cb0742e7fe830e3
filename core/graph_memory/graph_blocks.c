#include "graph_blocks.h"

#include <stdlib.h>

#include "core/device_memory/device_memory.h"
#include "graph_pools.h"

#define FIRST_PLACES 64u

static size_t place_of(const struct graph_blocks *blocks, CUdeviceptr address)
{
    return (size_t)((address >> 8) * UINT64_C(0x9e3779b97f4a7c15) >> 32) &
           (blocks->place_count - 1);
}

static bool grow(struct graph_blocks *blocks)
{
    struct graph_blocks larger = {.place_count =
                                      blocks->place_count ? 2 * blocks->place_count : FIRST_PLACES,
                                  .count = blocks->count};
    larger.places = calloc(larger.place_count, sizeof(struct graph_block *));
    if (!larger.places)
        return blocks->place_count != 0;
    for (size_t i = 0; i < blocks->place_count; i++)
        for (struct graph_block *next, *b = blocks->places[i]; b; b = next) {
            struct graph_block **place = &larger.places[place_of(&larger, b->address)];
            next = b->next;
            b->next = *place;
            *place = b;
        }
    free(blocks->places);
    *blocks = larger;
    return true;
}

struct graph_block *graph_blocks_find(const struct graph_blocks *blocks, CUdeviceptr address)
{
    if (blocks->place_count == 0)
        return NULL;
    struct graph_block *block = blocks->places[place_of(blocks, address)];
    while (block && block->address != address)
        block = block->next;
    return block;
}

static void take_out(struct graph_blocks *blocks, struct graph_block *block)
{
    struct graph_block **link = &blocks->places[place_of(blocks, block->address)];
    while (*link != block)
        link = &(*link)->next;
    *link = block->next;
    blocks->count--;
    block->forgotten = true;
    graph_pool_leave(block);
}

/* Whether the record is of an earlier life of the address: the block was freed past the pool, and
 * the address was handed out again. */
static bool is_of_earlier_life(const struct graph_block *found, struct block *block)
{
    return found->parked || found->block != block || !block_is_owned(block);
}

struct graph_block *graph_blocks_add(struct graph_memory *memory, CUdeviceptr address,
                                     struct block *block)
{
    struct graph_blocks *blocks = &memory->blocks;
    struct graph_block *found = graph_blocks_find(blocks, address);
    if (found && !is_of_earlier_life(found, block))
        return found;
    if (found)
        graph_block_forget(memory, found);
    if (blocks->count == blocks->place_count && !grow(blocks))
        return NULL;
    struct graph_block *made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    made->address = address;
    made->block = block;
    made->bytes = block_bytes(block);
    /* The block already has owners that memory was too short to record. Nobody tells when they end,
     * so this link is never removed. */
    if (block_is_owned(block))
        made->links = 1;
    struct graph_block **place = &blocks->places[place_of(blocks, address)];
    made->next = *place;
    *place = made;
    blocks->count++;
    return made;
}

static void count_owned(struct graph_owner *owner, const struct graph_block *block)
{
    struct graph_counters *counters = owner->memory->counters;
    owner->bytes += block->bytes;
    if (owner->bytes <= counter_get(&counters->most_owned_bytes))
        return;
    counter_set(&counters->most_owned_bytes, owner->bytes);
    counter_set(&counters->most_owned_capture, owner->number);
    counter_set(&counters->most_owned_stream, owner->stream);
    counter_set(&counters->most_owned_nanoseconds, owner->began);
}

void graph_block_link(struct graph_block *block, struct graph_owner *owner)
{
    if (block->last_owner == owner->number)
        return;
    struct graph_link *link = malloc(sizeof *link);
    block->links++;
    count_owned(owner, block);
    if (!link)
        return;
    *link = (struct graph_link){block, owner->links};
    owner->links = link;
    block->last_owner = owner->number;
}

static void count_no_longer_kept(struct graph_memory *memory, const struct graph_block *block)
{
    if (!block->parked)
        return;
    counter_subtract(&memory->counters->kept_blocks, 1);
    counter_subtract(&memory->counters->kept_bytes, block->bytes);
}

void graph_block_unparked(struct graph_memory *memory, struct graph_block *block)
{
    count_no_longer_kept(memory, block);
    block->parked = false;
}

void graph_block_parked(struct graph_memory *memory, struct graph_block *block)
{
    struct graph_counters *counters = memory->counters;
    block->parked = true;
    counter_add(&counters->kept_blocks, 1);
    counter_add(&counters->kept_bytes, block->bytes);
    counter_raise_to(&counters->peak_kept_bytes, counter_get(&counters->kept_bytes));
}

void graph_block_forget(struct graph_memory *memory, struct graph_block *block)
{
    take_out(&memory->blocks, block);
    count_no_longer_kept(memory, block);
    /* Otherwise the record is freed with the last link to it. */
    if (block->links == 0)
        free(block);
}

void graph_blocks_forget_context(struct graph_memory *memory, struct context *context)
{
    struct graph_blocks *blocks = &memory->blocks;
    for (size_t i = 0; i < blocks->place_count; i++)
        for (struct graph_block *next, *b = blocks->places[i]; b; b = next) {
            next = b->next;
            if (context_of_heap(b->block->heap) == context)
                graph_block_forget(memory, b);
        }
}

/* ---- lives, as the program sees them ---- */

uint64_t graph_block_launches(const struct graph_memory *memory, const struct graph_block *block)
{
    lock_must_be_held(&memory->lock);
    uint64_t own = block->made_by ? block->made_by->own_launches : block->made_launches;
    return graph_launches(memory) + own;
}

void graph_block_made(struct graph_block *block, struct graph_owner *owner)
{
    lock_must_be_held(&owner->memory->lock);
    bool linked = block->last_owner == owner->number;
    block->maker = owner->number;
    block->made_by = linked ? owner : NULL;
    owner->memory->counts_all = owner->memory->counts_all || !linked;
}

bool graph_block_is_live_again(const struct graph_memory *memory, const struct graph_block *block)
{
    lock_must_be_held(&memory->lock);
    return block->parked && block->pool && !graph_block_was_freed_by_its_capture(block) &&
           (block->freer != 0 || block->launches != graph_block_launches(memory, block));
}

CUresult graph_block_free_again(struct graph_memory *memory, struct graph_block *block)
{
    if (!graph_block_is_live_again(memory, block))
        return CUDA_ERROR_INVALID_VALUE;
    block->freer = 0;
    block->launches = graph_block_launches(memory, block);
    return CUDA_SUCCESS;
}

bool graph_blocks_free_again(struct graph_memory *memory, CUdeviceptr address, CUresult *result)
{
    lock_take(&memory->lock, LOCK_GRAPHS);
    struct graph_block *found = graph_blocks_find(&memory->blocks, address);
    bool ours = found && found->pool && found->parked;
    if (ours)
        *result = graph_block_free_again(memory, found);
    lock_give(&memory->lock);
    return ours;
}

bool graph_blocks_are_live_again(struct graph_memory *memory, CUdeviceptr address)
{
    lock_take(&memory->lock, LOCK_GRAPHS);
    const struct graph_block *found = graph_blocks_find(&memory->blocks, address);
    bool live = found && graph_block_is_live_again(memory, found);
    lock_give(&memory->lock);
    return live;
}

/* To the program, an allocation of a captured stream comes to life when its graph is launched. If
 * the capture has not freed it and the graph was never launched, it is nobody's; so it is after a
 * capture that has failed. It then counts as freed by its capture. Another graph that shares the
 * pool may keep it. */
static void end_unlaunched_life(struct graph_memory *memory, const struct graph_owner *owner,
                                struct graph_block *block)
{
    bool launched =
        !owner->failed && (owner->own_launches || owner->launches != graph_launches(memory));
    if (!block->pool || block->forgotten || block->parked || block->maker != owner->number ||
        launched || !heap_park(block->block, block->address))
        return;
    graph_block_parked(memory, block);
    block->freer = block->maker;
}

/* Called when the last owner ends: the block is the program's again if a launch came after its
 * free. */
static void keep_launched_life(struct graph_memory *memory, struct graph_block *block)
{
    if (!block->forgotten && graph_block_is_live_again(memory, block) &&
        heap_take_parked(block->block, block->address, counter_get(&block->block->requested)))
        graph_block_unparked(memory, block);
}

/* Ends the record of a block that nobody owns any more. Returns the bytes that became pending. */
static uint64_t freed_outside(struct pool *pool, struct graph_memory *memory,
                              struct graph_block *block)
{
    uint64_t unparked = 0;
    if (!block->forgotten && block->parked)
        unparked = heap_unpark(pool, block->block, block->address) ? block->bytes : 0;
    else if (!block->forgotten)
        heap_disown(block->block, block->address);
    if (!block->forgotten)
        graph_block_forget(memory, block);
    else
        free(block);
    return unparked;
}

/* Removes one link to the block. Returns the bytes that became pending. */
static uint64_t unlink_block(struct pool *pool, struct graph_owner *owner,
                             struct graph_block *block)
{
    struct graph_memory *memory = owner->memory;
    if (block->made_by == owner) {
        block->made_by = NULL;
        block->made_launches = owner->own_launches;
    }
    if (block->links == 1)
        keep_launched_life(memory, block);
    return --block->links == 0 ? freed_outside(pool, memory, block) : 0;
}

uint64_t graph_owner_finish(struct pool *pool, struct graph_owner *owner)
{
    uint64_t unparked = 0;
    struct graph_memory *memory = owner->memory;
    for (struct graph_link *next, *link = owner->links; link; link = next) {
        next = link->next;
        end_unlaunched_life(memory, owner, link->block);
        unparked += unlink_block(pool, owner, link->block);
        free(link);
    }
    free(owner);
    return unparked;
}

uint64_t graph_owner_spoil(struct pool *pool, struct graph_owner *owner)
{
    uint64_t unparked = 0;
    struct graph_link **place = &owner->links, *link;
    owner->spoilt = true;
    while ((link = *place)) {
        if (link->block->pool) {
            place = &link->next;
            continue;
        }
        *place = link->next;
        unparked += unlink_block(pool, owner, link->block);
        free(link);
    }
    return unparked;
}

void graph_blocks_check(struct graph_owner *owner)
{
    for (const struct graph_link *link = owner->links; link; link = link->next) {
        struct graph_block *b = link->block;
        if (!b->forgotten && !b->astray && heap_would_hand_out(b->block, b->address)) {
            b->astray = true;
            counter_add(&owner->memory->counters->astray, 1);
        }
    }
}
