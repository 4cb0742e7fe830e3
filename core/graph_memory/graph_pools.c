#include "graph_pools.h"

#include <stdlib.h>

#include "core/blocks/block.h"

static void drop(struct graph_pool *pool)
{
    if (--pool->users == 0)
        free(pool);
}

static void take_all(struct graph_pool *pool)
{
    while (pool->free)
        graph_pool_take(pool->free);
}

static void seal(struct graph_pool *pool)
{
    pool->sealed = true;
    take_all(pool);
}

struct graph_pool *graph_pool_of(struct graph_owner *owner)
{
    lock_must_be_held(&owner->memory->lock);
    if (owner->pool && owner->pool->sealed)
        graph_pool_end(owner);
    if (!owner->pool) {
        owner->pool = calloc(1, sizeof *owner->pool);
        if (owner->pool)
            owner->pool->users = 1;
    }
    return owner->pool;
}

void graph_pool_end(struct graph_owner *owner)
{
    lock_must_be_held(&owner->memory->lock);
    struct graph_pool *pool = owner->pool;
    owner->pool = NULL;
    if (!pool)
        return;
    if (pool->number == 0)
        seal(pool);
    drop(pool);
}

void graph_pool_join(struct graph_pool *pool, struct graph_block *block)
{
    pool->users++;
    block->pool = pool;
}

void graph_pool_leave(struct graph_block *block)
{
    struct graph_pool *pool = block->pool;
    if (!pool)
        return;
    graph_pool_take(block);
    block->pool = NULL;
    drop(pool);
}

void graph_pool_put(struct graph_memory *memory, struct graph_block *block,
                    const struct capture_place *place)
{
    lock_must_be_held(&memory->lock);
    block->free_number = ++memory->frees;
    if (block->pool->sealed)
        return;
    block->freed_at = malloc(sizeof *place);
    if (!block->freed_at)
        return;
    *block->freed_at = *place;
    block->next_free = block->pool->free;
    block->pool->free = block;
}

void graph_pool_take(struct graph_block *block)
{
    if (!block->freed_at)
        return;
    struct graph_block **link = &block->pool->free;
    while (*link != block)
        link = &(*link)->next_free;
    *link = block->next_free;
    free(block->freed_at);
    block->freed_at = NULL;
}

/* ---- pools with numbers ---- */

static struct graph_pool **find(struct graph_memory *memory, uint64_t number)
{
    lock_must_be_held(&memory->lock);
    struct graph_pool **link = &memory->named;
    while (*link && (*link)->number != number)
        link = &(*link)->next;
    return link;
}

static struct graph_pool_use **find_use(struct graph_memory *memory, CUstream stream)
{
    lock_must_be_held(&memory->lock);
    struct graph_pool_use **link = &memory->uses;
    while (*link && (*link)->stream != stream)
        link = &(*link)->next;
    return link;
}

static void end_use(struct graph_pool_use **link)
{
    struct graph_pool_use *use = *link;
    if (!use)
        return;
    *link = use->next;
    drop(use->pool);
    free(use);
}

bool graph_pool_is_used(struct graph_memory *memory, CUstream stream)
{
    lock_take(&memory->lock, LOCK_GRAPHS);
    bool used = *find_use(memory, stream) != NULL;
    lock_give(&memory->lock);
    return used;
}

void graph_pool_is_used_by(struct graph_memory *memory, CUstream stream, unsigned long long id)
{
    lock_take(&memory->lock, LOCK_GRAPHS);
    struct graph_pool_use **link = find_use(memory, stream);
    if (*link && (*link)->id != id)
        end_use(link);
    lock_give(&memory->lock);
}

void graph_pool_begin(struct graph_owner *owner, CUstream stream)
{
    struct graph_pool_use **link = find_use(owner->memory, stream);
    if (!*link)
        return;
    if ((*link)->pool->sealed) {
        end_use(link);
        return;
    }
    owner->pool = (*link)->pool;
    owner->pool->users++;
}

uint64_t graph_pool_create(struct graph_memory *memory)
{
    struct graph_pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return 0;
    lock_take(&memory->lock, LOCK_GRAPHS);
    uint64_t number = ++memory->pools;
    *pool = (struct graph_pool){.number = number, .users = 1, .next = memory->named};
    memory->named = pool;
    lock_give(&memory->lock);
    return number;
}

static bool begin_use(struct graph_memory *memory, uint64_t number, CUstream stream,
                      unsigned long long id)
{
    struct graph_pool *pool = *find(memory, number);
    struct graph_pool_use *use = pool && !pool->sealed ? malloc(sizeof *use) : NULL;
    if (!use)
        return false;
    end_use(find_use(memory, stream));
    *use = (struct graph_pool_use){stream, id, pool, memory->uses};
    memory->uses = use;
    pool->users++;
    return true;
}

bool graph_pool_use(struct graph_memory *memory, uint64_t number, CUstream stream,
                    unsigned long long id)
{
    bool used = true;
    lock_take(&memory->lock, LOCK_GRAPHS);
    if (number)
        used = begin_use(memory, number, stream, id);
    else
        end_use(find_use(memory, stream));
    lock_give(&memory->lock);
    return used;
}

bool graph_pool_seal(struct graph_memory *memory, uint64_t number)
{
    lock_take(&memory->lock, LOCK_GRAPHS);
    struct graph_pool *pool = *find(memory, number);
    if (pool)
        seal(pool);
    lock_give(&memory->lock);
    return pool != NULL;
}

bool graph_pool_clear(struct graph_memory *memory, uint64_t number)
{
    lock_take(&memory->lock, LOCK_GRAPHS);
    struct graph_pool *pool = *find(memory, number);
    if (pool)
        take_all(pool);
    lock_give(&memory->lock);
    return pool != NULL;
}

static void add_bytes(const struct graph_block *block, struct kept_bytes *bytes)
{
    if (!block->parked)
        bytes->live += block->bytes;
    else if (block->freed_at)
        bytes->cached += block->bytes;
    else
        bytes->pending += block->bytes;
}

bool graph_pool_bytes(struct graph_memory *memory, uint64_t number, struct kept_bytes *bytes)
{
    *bytes = (struct kept_bytes){0};
    lock_take(&memory->lock, LOCK_GRAPHS);
    const struct graph_pool *pool = *find(memory, number);
    for (size_t i = 0; pool && i < memory->blocks.place_count; i++)
        for (const struct graph_block *b = memory->blocks.places[i]; b; b = b->next)
            if (b->pool == pool)
                add_bytes(b, bytes);
    lock_give(&memory->lock);
    return pool != NULL;
}

bool graph_pool_destroy(struct graph_memory *memory, uint64_t number)
{
    lock_take(&memory->lock, LOCK_GRAPHS);
    struct graph_pool **link = find(memory, number), *pool = *link;
    if (pool) {
        *link = pool->next;
        seal(pool);
        drop(pool);
    }
    lock_give(&memory->lock);
    return pool != NULL;
}
