#include "stream_shelf.h"
#include "core/base/size_class.h"

#include <stdlib.h>
#include <string.h>

/* On cache lines of its own: streams that are used by different threads share none. */
static void *make_apart(size_t bytes)
{
    void *made = aligned_alloc(STREAM_APART, size_class_up(bytes, STREAM_APART));
    return made ? memset(made, 0, bytes) : NULL;
}

static bool grow_slots(struct shelf *shelf)
{
    uint32_t count = shelf->slot_count ? 2 * shelf->slot_count : 32;
    struct shelf_bucket **slots = make_apart(count * sizeof(struct shelf_bucket *));
    if (!slots)
        return false;
    struct shelf_bucket *b = atomic_load_explicit(&shelf->buckets, memory_order_relaxed);
    for (; b; b = b->next)
        *shelf_slot(slots, count, b->bucket.bytes) = b;
    free(shelf->slots);
    shelf->slots = slots;
    shelf->slot_count = count;
    return true;
}

/* ---- counters: in the figures, where those of streams are told apart by their place in the list.
 * What the memory pools of a stream have of one size is counted together; and where the figures are
 * nearly full, what a stream has of further sizes is counted as what is not kept. All of it is
 * changed under the stream's lock only. ---- */

static struct bucket_counters *add_counters(struct pool *pool, const struct stream *stream,
                                            uint64_t bytes)
{
    return (bytes ? figures_bucket_to_spare : figures_bucket)(
        &pool->figures, KIND_STREAM_ORDERED, stream->index, stream->device->ordinal, bytes);
}

static struct bucket_counters *counters_of_unkept(struct pool *pool, const struct stream *stream)
{
    const struct shelf *other = atomic_load_explicit(&stream->shelves, memory_order_relaxed);
    return other ? other->unkept.counters : add_counters(pool, stream, 0);
}

static struct bucket_counters *counters_of_size(struct pool *pool, const struct shelf *shelf,
                                                uint64_t bytes)
{
    const struct stream *stream = shelf->stream;
    const struct bucket *of_other = NULL;
    const struct shelf *s = atomic_load_explicit(&stream->shelves, memory_order_relaxed);
    for (; s && !of_other; s = s->next)
        of_other = shelf_find_bucket(s, bytes);
    struct bucket_counters *counters =
        of_other ? of_other->counters : add_counters(pool, stream, bytes);
    return counters ? counters : shelf->unkept.counters;
}

struct shelf *shelf_add(struct pool *pool, struct stream *stream, struct mempool *mempool)
{
    struct shelf *shelf = make_apart(sizeof *shelf);
    if (shelf && grow_slots(shelf))
        shelf->unkept.counters = counters_of_unkept(pool, stream);
    if (!shelf || !shelf->unkept.counters) {
        if (shelf)
            free(shelf->slots);
        free(shelf);
        return NULL;
    }
    shelf->stream = stream;
    shelf->mempool = mempool;
    shelf->next = atomic_load_explicit(&stream->shelves, memory_order_relaxed);
    atomic_store_explicit(&stream->shelves, shelf, memory_order_release);
    shelf->next_recent = stream->recent_shelf;
    stream->recent_shelf = shelf;
    return shelf;
}

struct shelf *shelf_find_and_move(struct stream *stream, const struct mempool *mempool)
{
    struct shelf **link = &stream->recent_shelf, *found;
    while (*link && (*link)->mempool != mempool)
        link = &(*link)->next_recent;
    found = *link;
    if (found) {
        *link = found->next_recent;
        found->next_recent = stream->recent_shelf;
        stream->recent_shelf = found;
    }
    return found;
}

/* Relaxed: a few more or less do no harm. */
static bool may_add_bucket(struct streams *streams)
{
    return atomic_load_explicit(&streams->bucket_count, memory_order_relaxed) <
               STREAM_BUCKETS_MAX &&
           atomic_fetch_add_explicit(&streams->bucket_count, 1, memory_order_relaxed) <
               STREAM_BUCKETS_MAX;
}

struct bucket *shelf_add_bucket(struct pool *pool, struct shelf *shelf, uint64_t bytes)
{
    if (shelf->bucket_count >= HEAP_BUCKETS_MAX || !may_add_bucket(streams_of(pool)) ||
        (2 * (shelf->bucket_count + 1) > shelf->slot_count && !grow_slots(shelf)))
        return NULL;
    struct shelf_bucket *made = make_apart(sizeof *made);
    if (!made)
        return NULL;
    made->bucket.bytes = bytes;
    made->bucket.counters = counters_of_size(pool, shelf, bytes);
    made->next = atomic_load_explicit(&shelf->buckets, memory_order_relaxed);
    *shelf_slot(shelf->slots, shelf->slot_count, bytes) = made;
    shelf->bucket_count++;
    atomic_store_explicit(&shelf->buckets, made, memory_order_release);
    return &made->bucket;
}

void shelf_forgive(struct stream *stream)
{
    struct shelf *shelf = atomic_load_explicit(&stream->shelves, memory_order_relaxed);
    for (; shelf; shelf = shelf->next) {
        struct shelf_bucket *b = atomic_load_explicit(&shelf->buckets, memory_order_relaxed);
        for (; b; b = b->next)
            b->robbed = 0;
    }
}
