#include "stream_shelf.h"

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

/* In the figures, where those of streams are told apart by their place in the list. */
static bool bucket_init(struct pool *pool, const struct stream *stream, struct bucket *bucket,
                        uint64_t bytes)
{
    bucket->bytes = bytes;
    bucket->counters = figures_bucket(&pool->figures, KIND_STREAM_ORDERED, stream->index,
                                      stream->device->ordinal, bytes);
    return bucket->counters != NULL;
}

struct shelf *shelf_add(struct pool *pool, struct stream *stream, struct mempool *mempool)
{
    struct shelf *shelf = make_apart(sizeof *shelf);
    if (!shelf || !grow_slots(shelf) || !bucket_init(pool, stream, &shelf->unkept, 0)) {
        if (shelf)
            free(shelf->slots);
        free(shelf);
        return NULL;
    }
    shelf->stream = stream;
    shelf->mempool = mempool;
    shelf->next = atomic_load_explicit(&stream->shelves, memory_order_relaxed);
    atomic_store_explicit(&stream->shelves, shelf, memory_order_release);
    return shelf;
}

struct bucket *shelf_add_bucket(struct pool *pool, struct shelf *shelf, uint64_t bytes)
{
    if (shelf->bucket_count >= HEAP_BUCKETS_MAX ||
        (2 * (shelf->bucket_count + 1) > shelf->slot_count && !grow_slots(shelf)))
        return NULL;
    struct shelf_bucket *made = make_apart(sizeof *made);
    if (!made || !bucket_init(pool, shelf->stream, &made->bucket, bytes)) {
        free(made);
        return NULL;
    }
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
