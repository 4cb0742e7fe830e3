#include "stream_shelf.h"
#include "core/base/lines.h"
#include "core/base/size_class.h"

#include <stdlib.h>
#include <string.h>

/* ---- what core/segments asks of a shelf ---- */

static struct shelf *shelf_of_segments(const struct segments *segments)
{
    return (struct shelf *)((char *)(uintptr_t)segments - offsetof(struct shelf, segments));
}

/* The block table is the first member of struct streams. */
static struct streams *streams_of_segments(const struct segments *segments)
{
    _Static_assert(offsetof(struct streams, blocks) == 0, "the table is the first");
    return (struct streams *)(void *)segments->table;
}

static struct block *take_record(struct segments *segments, const struct block *like)
{
    const struct stream_block *of = stream_block_of((struct block *)(uintptr_t)like);
    struct shelf *shelf = shelf_of_segments(segments);
    struct stream_block *made = stream_block_take(&streams_of_segments(segments)->records);
    if (!made)
        return NULL;
    made->mempool = of->mempool;
    mempool_use(made->mempool);
    made->context = of->context;
    made->context_generation = of->context_generation;
    atomic_store_explicit(&made->shelf, shelf, memory_order_relaxed);
    return &made->block;
}

static void put_record(struct segments *segments, struct block *record)
{
    stream_block_put(&streams_of_segments(segments)->records, stream_block_of(record));
}

/* Whether the stream's next work comes after the block's last use, and the block is in the stream's
 * context. What a former owner of the stream's record has left in another context is not cut. */
static bool may_be_cut(const struct segments *segments, const struct block *block)
{
    const struct stream *stream = shelf_of_segments(segments)->stream;
    const struct stream_block *of = stream_block_of((struct block *)(uintptr_t)block);
    lock_must_be_held(&stream->lock);
    bool ordered = stream->own_order || counter_get(&block->epoch) <= stream_done(stream) ||
                   (!shelf_launches_early(stream) && shelf_is_marked(stream, block));
    return ordered && of->context == stream->context &&
           of->context_generation == stream->generation;
}

static const struct segments_kind shelf_segments_kind = {.lock = LOCK_STREAM,
                                                         .take_record = take_record,
                                                         .put_record = put_record,
                                                         .may_be_cut = may_be_cut};

/* ---- counters ----
 *
 * The counters of a stream are in the figures, under the stream's index in the list. All memory
 * pools of a stream share the counters of a size. If the figures are nearly full, further sizes of
 * a stream are counted together with those that are not cached. All counters change only under the
 * stream's lock. */

static struct bucket_counters *add_counters(struct pool *pool, const struct stream *stream,
                                            uint64_t bytes)
{
    return (bytes ? figures_bucket_to_spare : figures_bucket)(
        &pool->figures, KIND_STREAM_ORDERED, stream->index, stream->device->ordinal, bytes);
}

static struct bucket_counters *counters_of_unkept(struct pool *pool, const struct stream *stream)
{
    const struct shelf *other = atomic_load_explicit(&stream->shelves, memory_order_relaxed);
    return other ? other->unkept.bucket.counters : add_counters(pool, stream, 0);
}

static struct bucket_counters *counters_of_size(struct pool *pool, const struct shelf *shelf,
                                                uint64_t bytes)
{
    const struct stream *stream = shelf->stream;
    const struct bucket *of_other = NULL;
    const struct shelf *s = atomic_load_explicit(&stream->shelves, memory_order_relaxed);
    for (; s && !of_other; s = s->next)
        of_other = bucket_set_find(&s->buckets, bytes);
    struct bucket_counters *counters =
        of_other ? of_other->counters : add_counters(pool, stream, bytes);
    return counters ? counters : shelf->unkept.bucket.counters;
}

/* The counters of the first bucket of a size have the peaks of all streams of the device. */
static void sum_up(struct shelf_bucket *bucket)
{
    struct bucket_counters *none = NULL;
    atomic_compare_exchange_strong_explicit(&bucket->of_device->peaks, &none,
                                            bucket->bucket.counters, memory_order_relaxed,
                                            memory_order_relaxed);
}

struct shelf *shelf_add(struct pool *pool, struct stream *stream, struct mempool *mempool)
{
    lock_must_be_held(&stream->lock);
    struct shelf *shelf = allocate_apart(STREAM_APART, sizeof *shelf);
    if (shelf && bucket_set_make_room(&shelf->buckets))
        shelf->unkept.of_device = stream_holders_get(streams_of(pool), stream->on_device, 0);
    if (shelf && shelf->unkept.of_device)
        shelf->unkept.bucket.counters = counters_of_unkept(pool, stream);
    if (!shelf || !shelf->unkept.bucket.counters) {
        if (shelf)
            free_apart(shelf->buckets.slots);
        free_apart(shelf);
        return NULL;
    }
    shelf->stream = stream;
    shelf->mempool = mempool;
    sum_up(&shelf->unkept);
    const struct segment_settings *segments = &pool->settings.stream_ordered.segments;
    shelf->segments = (struct segments){.kind = &shelf_segments_kind,
                                        .table = &streams_of(pool)->blocks,
                                        .small = segments->small,
                                        .large = segments->large};
    shelf->next = atomic_load_explicit(&stream->shelves, memory_order_relaxed);
    atomic_store_explicit(&stream->shelves, shelf, memory_order_release);
    shelf->next_recent = stream->recent_shelf;
    stream->recent_shelf = shelf;
    return shelf;
}

struct shelf *shelf_find_and_move(struct stream *stream, const struct mempool *mempool)
{
    lock_must_be_held(&stream->lock);
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

/* Relaxed: a few buckets more or less do no harm. */
static bool may_add_bucket(struct streams *streams)
{
    return atomic_load_explicit(&streams->bucket_count, memory_order_relaxed) <
               STREAM_BUCKETS_MAX &&
           atomic_fetch_add_explicit(&streams->bucket_count, 1, memory_order_relaxed) <
               STREAM_BUCKETS_MAX;
}

struct bucket *shelf_add_bucket(struct pool *pool, struct shelf *shelf, uint64_t bytes)
{
    lock_must_be_held(&shelf->stream->lock);
    if (!bucket_set_make_room(&shelf->buckets) || !may_add_bucket(streams_of(pool)))
        return NULL;
    struct streams *streams = streams_of(pool);
    struct stream_holders *holders = stream_holders_get(streams, shelf->mempool, bytes);
    struct stream_holders *of_device = stream_holders_get(streams, shelf->stream->on_device, bytes);
    struct shelf_bucket *made =
        holders && of_device ? allocate_apart(STREAM_APART, sizeof *made) : NULL;
    if (!made)
        return NULL;
    made->holders = holders;
    made->of_device = of_device;
    made->bucket.bytes = bytes;
    made->bucket.counters = counters_of_size(pool, shelf, bytes);
    sum_up(made);
    made->requests = size_class_span(&shelf->stream->on_device->classes, bytes, 1);
    bucket_set_add(&shelf->buckets, &made->bucket);
    return &made->bucket;
}

struct bucket *shelf_look_up_bucket(struct shelf *shelf, uint64_t bytes)
{
    const struct stream_device *device = shelf->stream->on_device;
    uint64_t rounded = size_class_round(&device->classes, bytes);
    struct bucket *bucket = bucket_set_find(&shelf->buckets, rounded);
    /* Blocks that are cut need more steps than the quick path has. */
    if (shelf_splits(shelf->stream))
        return NULL;
    if (bucket)
        shelf->by_request[size_class_place(bytes, SHELF_PLACES)] = shelf_bucket_of(bucket);
    return bucket;
}

void shelf_begin(struct stream *stream)
{
    stream->given.handed_out = (uint64_t)(stream->index + 1) << 48;
}

void shelf_has_new_owner(struct stream *stream, uint64_t now)
{
    lock_must_be_held(&stream->lock);
    stream->now = now;
    stream->given.handed_before = stream->given.handed_out;
    stream->given.before = stream->given.missed + stream->given.adopted;
    struct shelf *shelf = atomic_load_explicit(&stream->shelves, memory_order_relaxed);
    for (; shelf; shelf = shelf->next)
        for (struct bucket *b = shelf->buckets.first; b; b = b->next)
            shelf_bucket_of(b)->taken_by_others = 0;
}

/* ---- counting, listing and handing out blocks ---- */

/* Returns what to count when used bytes are in use and counted bytes were counted before. */
static uint64_t counted_of(uint64_t used, uint64_t counted)
{
    return used < counted ? rest_of(used, SHELF_STEP / 2) : used;
}

static void note_bucket(struct shelf_bucket *bucket)
{
    const struct bucket_counters *counters = bucket->bucket.counters;
    struct stream_holders *all = bucket->of_device;
    uint64_t live =
        rest_of(counter_get(&counters->reserved_bytes), counter_get(&counters->free_bytes));
    uint64_t counted = counted_of(live, bucket->counted_bytes);
    uint64_t more = counted - bucket->counted_bytes; /* modulo 2^64 */
    uint64_t sum = atomic_fetch_add_explicit(&all->live_bytes, more, memory_order_relaxed) + more;
    counter_raise_shared(&atomic_load_explicit(&all->peaks, memory_order_relaxed)->peak_live_bytes,
                         sum);
    bucket->peak_live_bytes = larger_of(bucket->peak_live_bytes, live);
    bucket->counted_bytes = counted;
    bucket->noted_up_to = smaller_of(bucket->peak_live_bytes, counted + SHELF_STEP);
}

static void note_all_buckets(struct shelf *shelf)
{
    for (struct bucket *b = shelf->buckets.first; b; b = b->next)
        note_bucket(shelf_bucket_of(b));
    note_bucket(&shelf->unkept);
}

void shelf_note_used(struct shelf *shelf, struct bucket *bucket)
{
    lock_must_be_held(&shelf->stream->lock);
    struct stream_device *device = shelf->stream->on_device;
    uint64_t used = counter_get(&shelf->used_bytes);
    uint64_t counted = counted_of(used, shelf->counted_bytes);
    uint64_t more = counted - shelf->counted_bytes; /* modulo 2^64 */
    uint64_t live =
        atomic_fetch_add_explicit(&device->live_bytes, more, memory_order_relaxed) + more;
    counter_raise_shared(&device->counters->peak_requested, live);
    mempool_raise(&device->peak_live, live);
    counter_raise_to(&shelf->peak_used_bytes, used);
    shelf->counted_bytes = counted;
    shelf->noted_up_to = smaller_of(counter_get(&shelf->peak_used_bytes), counted + SHELF_STEP);
    if (bucket)
        note_bucket(shelf_bucket_of(bucket));
    else
        note_all_buckets(shelf);
}

static void put_among_clean(struct stream *stream, struct bucket *bucket,
                            struct stream_block *block)
{
    lock_must_be_held(&stream->lock);
    block_set_state(&block->block, BLOCK_CLEAN);
    block_list_append(&bucket->clean, &block->block, LINK_BUCKET);
    shelf_count_clean(stream, bucket, block->block.bytes);
}

void shelf_make_clean(struct stream *stream, struct stream_block *block)
{
    lock_must_be_held(&stream->lock);
    struct bucket *bucket = block->block.bucket;
    block_list_remove(&bucket->pending, &block->block, LINK_BUCKET);
    block_list_remove(&stream->pending, &block->block, LINK_HEAP);
    put_among_clean(stream, bucket, block);
    if (shelf_is_covered(stream, &block->block))
        stream->covered_bytes -= block->block.bytes;
    shelf_set_unchecked(stream);
}

void shelf_detach(struct stream *stream, struct stream_block *block)
{
    lock_must_be_held(&stream->lock);
    shelf_take(stream, block->block.bucket, block);
    shelf_count_out(shelf_of(block), block->block.bucket, block);
    block_set_state(&block->block, BLOCK_LEAVING);
}

void shelf_list_bucket(const struct pool *pool, const struct stream *stream, struct bucket *bucket)
{
    lock_must_be_held(&stream->lock);
    struct shelf_bucket *of = shelf_bucket_of(bucket);
    if (of->room)
        return;
    if (!shelf_splits(stream))
        of->room = pool->settings.stream_ordered.caps.blocks_per_bucket;
    stream_holders_add(of->holders, stream);
}

void shelf_unlist_if_empty(const struct stream *stream, struct bucket *bucket)
{
    lock_must_be_held(&stream->lock);
    struct shelf_bucket *of = shelf_bucket_of(bucket);
    if (bucket->free_blocks)
        return;
    of->room = 0;
    stream_holders_remove(of->holders, stream);
}

static void put_back(struct stream *stream, struct stream_block *block)
{
    lock_must_be_held(&stream->lock);
    struct bucket *bucket = block->block.bucket;
    shelf_add_free(stream, bucket, block->block.bytes);
    if (shelf_splits(stream))
        segments_list(&shelf_of(block)->segments, &block->block);
    uint64_t stamp = counter_get(&block->block.epoch);
    if (stamp <= stream_done(stream)) {
        put_among_clean(stream, bucket, block);
    } else {
        block_set_state(&block->block, BLOCK_PENDING);
        shelf_insert_pending(&bucket->pending, &block->block, stamp, LINK_BUCKET);
        shelf_insert_pending(&stream->pending, &block->block, stamp, LINK_HEAP);
        shelf_count_if_covered(stream, block);
    }
    shelf_set_unchecked(stream);
}

void shelf_attach(const struct pool *pool, struct shelf *shelf, struct stream_block *block)
{
    lock_must_be_held(&shelf->stream->lock);
    shelf_count_in(shelf, block->block.bucket, block);
    shelf_list_bucket(pool, shelf->stream, block->block.bucket);
    put_back(shelf->stream, block);
}

void shelf_cover(struct stream *stream, uint64_t stamp)
{
    lock_must_be_held(&stream->lock);
    uint64_t bytes = counter_get(&stream->free_bytes) - counter_get(&stream->clean_bytes);
    if (stamp <= stream->covered)
        return;
    for (const struct block *b = stream->pending.last; b && counter_get(&b->epoch) > stamp;
         b = b->links[LINK_HEAP].previous)
        bytes -= b->bytes;
    stream->covered = stamp;
    stream->covered_bytes = bytes;
}
