#include "graph_blocks.h"

#include <stdlib.h>

#include "core/device_memory/device_memory.h"

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
}

/* Of an earlier life of the address: it was freed past the pool, and given out anew. */
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
    /* It has owners already whom there was no memory to note, and nobody says when they go. */
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

void graph_block_parked(struct graph_memory *memory, struct graph_block *block)
{
    struct graph_counters *counters = memory->counters;
    block->parked = true;
    counter_add(&counters->kept_blocks, 1);
    counter_add(&counters->kept_bytes, block->bytes);
    counter_raise_to(&counters->peak_kept_bytes, counter_get(&counters->kept_bytes));
}

static void count_no_longer_kept(struct graph_memory *memory, const struct graph_block *block)
{
    if (!block->parked)
        return;
    counter_subtract(&memory->counters->kept_blocks, 1);
    counter_subtract(&memory->counters->kept_bytes, block->bytes);
}

void graph_block_forget(struct graph_memory *memory, struct graph_block *block)
{
    take_out(&memory->blocks, block);
    count_no_longer_kept(memory, block);
    /* Else it goes with the last link to it. */
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

/* Nobody owns it any more. The bytes that became pending by that. */
static uint64_t let_go(struct pool *pool, struct graph_memory *memory, struct graph_block *block)
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

uint64_t graph_owner_finish(struct pool *pool, struct graph_owner *owner)
{
    uint64_t unparked = 0;
    struct graph_memory *memory = owner->memory;
    for (struct graph_link *next, *link = owner->links; link; link = next) {
        next = link->next;
        if (--link->block->links == 0)
            unparked += let_go(pool, memory, link->block);
        free(link);
    }
    free(owner);
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
