#include "stream_choice.h"

#include "core/contexts/device.h"
#include "core/contexts/pool_state.h"
#include "stream_events.h"
#include "stream_shelf.h"

struct choice choice_any(const struct pool *pool)
{
    bool lru = pool->settings.stream_ordered.evict == EVICT_LEAST_RECENTLY_USED;
    return (struct choice){.older_than = UINT64_MAX, .oldest_first = lru};
}

bool choice_is_of(const struct choice *choice, const struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    return stream->context == choice->context && stream->generation == choice->generation;
}

static bool is_better(const struct choice *choice, const struct block *a, const struct block *b)
{
    return !b || (choice->oldest_first ? a->freed_at < b->freed_at : a->bytes > b->bytes);
}

static struct block *best_of(const struct choice *choice, const struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    struct block *best = NULL;
    struct shelf *shelf = atomic_load_explicit(&stream->shelves, memory_order_relaxed);
    for (; shelf; shelf = shelf->next) {
        if (choice->mempool && shelf->mempool != choice->mempool)
            continue;
        for (const struct bucket *b = shelf->buckets.first; b; b = b->next) {
            struct block *oldest = b->clean.first;
            if (!oldest && choice->pending_too)
                oldest = b->pending.first;
            if (oldest && oldest->bytes >= choice->at_least &&
                oldest->freed_at <= choice->older_than && is_better(choice, oldest, best))
                best = oldest;
        }
    }
    return best;
}

struct best {
    struct stream *stream;
    struct block block; /* a copy */
};

static bool is_worth_a_look(const struct choice *choice, const struct stream *stream)
{
    uint64_t bytes = counter_get(choice->hastily ? &stream->clean_bytes : &stream->free_bytes);
    return bytes != 0 && bytes >= choice->at_least;
}

/* A hasty choice looks at some of many streams, from another one on each time, until it has found a
 * block. */
static bool find_best(const struct choice *choice, struct best *best)
{
    struct streams *streams = streams_of(choice->pool);
    unsigned count = stream_count(streams);
    bool few = !choice->hastily || !streams_are_many(streams);
    unsigned from = few ? 0
                        : atomic_fetch_add_explicit(&streams->released_from, STREAMS_MANY,
                                                    memory_order_relaxed);
    best->stream = NULL;
    for (unsigned n = 0; n < count && (few || !best->stream || n < STREAMS_MANY); n++) {
        struct stream *stream = stream_at(streams, (from + n) % count);
        if (!is_worth_a_look(choice, stream))
            continue;
        lock_take(&stream->lock, LOCK_STREAM);
        stream_done_apply(stream);
        struct block *found = choice_is_of(choice, stream) ? best_of(choice, stream) : NULL;
        if (found && is_better(choice, found, best->stream ? &best->block : NULL)) {
            best->stream = stream;
            best->block = *found;
        }
        lock_give(&stream->lock);
    }
    return best->stream != NULL;
}

uint64_t choice_freed_at(const struct choice *choice)
{
    struct best best = {NULL, {0}};
    return find_best(choice, &best) ? best.block.freed_at : UINT64_MAX;
}

void choice_detach(struct pool *pool, struct stream *stream, struct block *found)
{
    lock_must_be_held(&stream->lock);
    struct stream_block *block = stream_block_of(found);
    shelf_detach(stream, block);
    stream_block_is_detached(stream);
    block_table_remove(&streams_of(pool)->blocks, block_address(found), found);
}

/* Prepends the block to the chain. */
static struct block *take(struct pool *pool, struct stream *stream, struct block *found,
                          struct block *chain)
{
    lock_must_be_held(&stream->lock);
    returning_begin(stream->device, found->bytes);
    choice_detach(pool, stream, found);
    found->links[LINK_HEAP].next = chain;
    return found;
}

/* Takes blocks of the best block's stream that are as good. Prepends them to the chain. */
static struct block *take_like(const struct choice *choice, const struct best *best,
                               uint64_t wanted, struct block *chain, uint64_t *taken)
{
    struct stream *stream = best->stream;
    struct block *found;
    lock_take(&stream->lock, LOCK_STREAM);
    while (*taken < wanted && choice_is_of(choice, stream) &&
           (found = best_of(choice, stream)) != NULL &&
           (choice->oldest_first ? found->freed_at <= best->block.freed_at
                                 : found->bytes >= best->block.bytes)) {
        chain = take(choice->pool, stream, found, chain);
        *taken += found->bytes;
    }
    lock_give(&stream->lock);
    return chain;
}

struct block *choice_collect(const struct choice *choice, uint64_t wanted)
{
    struct block *chain = NULL;
    struct best best = {NULL, {0}};
    uint64_t taken = 0;
    while (taken < wanted && find_best(choice, &best)) {
        uint64_t before = taken;
        chain = take_like(choice, &best, wanted, chain, &taken);
        if (taken == before)
            break; /* another thread took it first */
    }
    return chain;
}

struct block *choice_take_pending(struct pool *pool, struct stream *stream, uint64_t stamp,
                                  uint64_t bytes)
{
    lock_must_be_held(&stream->lock);
    struct block *found, *chain = NULL;
    for (uint64_t taken = 0; taken < bytes; taken += found->bytes) {
        found = stream->pending.first;
        if (!found || counter_get(&found->epoch) > stamp)
            break;
        chain = take(pool, stream, found, chain);
    }
    return chain;
}

struct block *choice_find_any(struct stream *stream, const struct context *context)
{
    lock_must_be_held(&stream->lock);
    struct shelf *shelf = stream->context == context
                              ? atomic_load_explicit(&stream->shelves, memory_order_relaxed)
                              : NULL;
    for (; shelf; shelf = shelf->next)
        for (const struct bucket *b = shelf->buckets.first; b; b = b->next)
            if (b->clean.first || b->pending.first)
                return b->clean.first ? b->clean.first : b->pending.first;
    return NULL;
}
