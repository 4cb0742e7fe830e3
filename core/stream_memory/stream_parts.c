#include "stream_parts.h"

#include "core/contexts/context.h"
#include "core/contexts/pool_state.h"

/* ---- counting ---- */

static struct segments_counters *counters_of(const struct shelf *shelf)
{
    return &shelf->stream->on_device->counters->segments;
}

static void count_spare(struct shelf *shelf, uint64_t bytes)
{
    struct stream *stream = shelf->stream;
    struct bucket_counters *counters = shelf->unkept.bucket.counters;
    lock_must_be_held(&stream->lock);
    counter_add(&stream->parts.spare_bytes, bytes);
    counter_add(&stream->reserved_bytes, bytes);
    shelf_raise_reserved(&shelf->unkept.bucket, bytes);
    counter_add(&counters->reserved_bytes, bytes);
    counter_add(&counters->free_bytes, bytes);
    counter_add(&counters->clean_bytes, bytes);
    counter_add_shared(&counters_of(shelf)->spare_bytes, bytes);
}

static void count_no_longer_spare(struct shelf *shelf, uint64_t bytes)
{
    struct stream *stream = shelf->stream;
    struct bucket_counters *counters = shelf->unkept.bucket.counters;
    lock_must_be_held(&stream->lock);
    counter_subtract_shared(&counters_of(shelf)->spare_bytes, bytes);
    counter_subtract(&counters->clean_bytes, bytes);
    counter_subtract(&counters->free_bytes, bytes);
    counter_subtract(&counters->reserved_bytes, bytes);
    atomic_fetch_sub_explicit(&shelf->unkept.of_device->reserved_bytes, bytes,
                              memory_order_relaxed);
    counter_subtract(&stream->reserved_bytes, bytes);
    counter_subtract(&stream->parts.spare_bytes, bytes);
}

static void count_segment(const struct shelf *shelf, uint64_t bytes)
{
    counter_add_shared(&counters_of(shelf)->count, 1);
    counter_add_shared(&counters_of(shelf)->bytes, bytes);
}

static void count_segment_out(const struct shelf *shelf, uint64_t bytes)
{
    counter_subtract_shared(&counters_of(shelf)->count, 1);
    counter_subtract_shared(&counters_of(shelf)->bytes, bytes);
}

/* ---- cutting ---- */

/* Cuts a part out of spare memory, which may be a whole block. */
static struct stream_block *cut_out(struct shelf *shelf, struct block *from, struct bucket *bucket)
{
    lock_must_be_held(&shelf->stream->lock);
    bool whole = !block_is_part(from);
    uint64_t bytes = from->bytes;
    struct block *part = segments_cut(&shelf->segments, from, bucket->bytes);
    if (!part)
        return NULL;
    if (whole)
        count_segment(shelf, bytes);
    counter_add_shared(&counters_of(shelf)->cuts, 1);
    counter_raise_to(&shelf->stream->parts.spare_stamp, counter_get(&part->epoch));
    count_no_longer_spare(shelf, part->bytes);
    part->bucket = bucket;
    struct stream_block *block = stream_block_of(part);
    shelf_count_in(shelf, bucket, block);
    block_set_state(part, BLOCK_LEAVING);
    return block;
}

struct stream_block *stream_parts_cut_new(struct shelf *shelf, struct stream_block *whole,
                                          struct bucket *bucket)
{
    lock_must_be_held(&shelf->stream->lock);
    struct bucket *of_whole = whole->block.bucket;
    whole->block.bucket = &shelf->unkept.bucket;
    count_spare(shelf, whole->block.bytes);
    struct stream_block *part = cut_out(shelf, &whole->block, bucket);
    if (!part) {
        count_no_longer_spare(shelf, whole->block.bytes);
        whole->block.bucket = of_whole;
    }
    return part;
}

struct stream_block *stream_parts_cut(struct shelf *shelf, struct bucket *bucket, bool anywhere)
{
    struct stream *stream = shelf->stream;
    lock_must_be_held(&stream->lock);
    if (!shelf_splits(stream) || bucket->bytes == 0)
        return NULL;
    struct block *from = segments_find(&shelf->segments, bucket->bytes, anywhere);
    if (!from || block_is_part(from))
        return from ? cut_out(shelf, from, bucket) : NULL;
    struct stream_block *whole = stream_block_of(from);
    shelf_take(stream, from->bucket, whole);
    if (from->bytes == bucket->bytes)
        return whole;
    shelf_count_out(shelf, from->bucket, whole);
    block_set_state(from, BLOCK_LEAVING);
    struct stream_block *part = stream_parts_cut_new(shelf, whole, bucket);
    if (!part)
        shelf_attach(NULL, shelf, whole);
    return part;
}

/* ---- merging ---- */

static bool context_lives(const struct stream_block *block)
{
    return context_generation(block->context) == block->context_generation;
}

/* Whether a whole block must not be cached on the shelf:
 * - its context has ended, so nobody would release it there; or
 * - its memory pool or context ends or is not served, and the block can be freed right now. It can
 *   be in the stream's order (in_order), or once its work has completed. Until then it stays. */
static bool must_leave(const struct shelf *shelf, const struct stream_block *whole, bool in_order)
{
    const struct stream *stream = shelf->stream;
    lock_must_be_held(&stream->lock);
    bool lives = context_lives(whole);
    bool can_stay = whole->context == stream->context &&
                    whole->context_generation == stream->generation && lives;
    bool may_leave = in_order || !lives || counter_get(&whole->block.epoch) <= stream_done(stream);
    bool is_wanted = shelf_is_usable(stream->context) &&
                     !atomic_load_explicit(&shelf->mempool->closed, memory_order_relaxed);
    return !can_stay || (may_leave && !is_wanted);
}

/* All of the segment is spare, and in no tree: makes it a whole block. Its bucket exists since it
 * was cut. */
static enum merged become_whole(struct shelf *home, struct stream_block *whole, bool leaves,
                                bool in_order)
{
    lock_must_be_held(&home->stream->lock);
    count_segment_out(home, whole->block.bytes);
    count_no_longer_spare(home, whole->block.bytes);
    whole->block.bucket = bucket_set_find(&home->buckets, whole->block.bytes);
    if (leaves || !whole->block.bucket || must_leave(home, whole, in_order)) {
        if (!whole->block.bucket)
            whole->block.bucket = &home->unkept.bucket;
        block_set_state(&whole->block, BLOCK_LEAVING);
        block_table_remove(home->segments.table, block_address(&whole->block), &whole->block);
        return MERGED_LEAVES;
    }
    shelf_attach(NULL, home, whole);
    return MERGED_WHOLE;
}

/* Makes the part spare and merges it. Returns the whole segment if all of it is spare now;
 * otherwise NULL. */
static struct stream_block *make_spare(struct shelf *home, struct stream_block *part,
                                       uint64_t stamp)
{
    struct stream *stream = home->stream;
    lock_must_be_held(&stream->lock);
    part->event = NULL;
    part->block.refused = false;
    part->block.bucket = &home->unkept.bucket;
    part->block.freed_at = stream->now;
    counter_set(&part->block.epoch, stamp);
    counter_raise_to(&stream->parts.spare_stamp, stamp);
    count_spare(home, part->block.bytes);
    struct block *merged = segments_merge(&home->segments, &part->block);
    return merged ? stream_block_of(merged) : NULL;
}

enum merged stream_parts_merge(struct shelf *home, struct stream_block *part, uint64_t stamp,
                               bool in_order, struct stream_block **whole)
{
    lock_must_be_held(&home->stream->lock);
    *whole = make_spare(home, part, stamp);
    return *whole ? become_whole(home, *whole, false, in_order) : MERGED_PART;
}

struct block *stream_parts_head(struct stream_block *part)
{
    struct block *record = &part->block;
    while (record->below)
        record = record->below;
    return record;
}

/* Returns the first record that is marked to leave. NULL if there is none, or if a record is
 * neither spare nor marked. */
static struct block *first_to_merge(struct stream_block *part)
{
    struct block *first = NULL;
    for (struct block *r = stream_parts_head(part)->above; r; r = r->above) {
        bool leaves = block_state(r) == BLOCK_LEAVING && r->refused;
        if (block_state(r) != BLOCK_SPARE && !leaves)
            return NULL;
        if (!first && leaves)
            first = r;
    }
    return first;
}

bool stream_parts_may_merge_all(struct stream_block *part)
{
    lock_must_be_held(&shelf_of(part)->stream->lock);
    return first_to_merge(part);
}

struct stream_block *stream_parts_merge_all(struct shelf *home, struct stream_block *part)
{
    lock_must_be_held(&home->stream->lock);
    struct block *next = first_to_merge(part);
    struct stream_block *whole = NULL;
    /* From below upwards. make_spare absorbs spare records above the part, so they are skipped. */
    while (next && !whole) {
        struct block *above = next->above;
        while (above && block_state(above) == BLOCK_SPARE)
            above = above->above;
        whole = make_spare(home, stream_block_of(next), 0);
        next = above;
    }
    if (whole)
        become_whole(home, whole, true, true);
    return whole;
}

/* ---- waiting ---- */

void stream_parts_begin_to_wait(struct shelf *home, struct stream_block *part)
{
    lock_must_be_held(&home->stream->lock);
    part->block.bucket = &home->unkept.bucket;
    part->block.refused = false;
    block_set_state(&part->block, BLOCK_LEAVING);
    count_spare(home, part->block.bytes);
    if (!part->event)
        counter_raise_to(&home->stream->parts.spare_stamp, counter_get(&part->block.epoch));
    block_list_append(&home->stream->parts.waiting, &part->block, LINK_HEAP);
    counter_add(&home->stream->parts.waiting_bytes, part->block.bytes);
}

void stream_parts_end_to_wait(struct stream *stream, struct stream_block *part)
{
    lock_must_be_held(&stream->lock);
    block_list_remove(&stream->parts.waiting, &part->block, LINK_HEAP);
    counter_subtract(&stream->parts.waiting_bytes, part->block.bytes);
    count_no_longer_spare(shelf_of(part), part->block.bytes);
}

/* ---- losing ---- */

struct block *stream_parts_lose(struct shelf *home, struct stream_block *any)
{
    lock_must_be_held(&home->stream->lock);
    struct block *chain = NULL, *record = stream_parts_head(any);
    uint64_t bytes = 0;
    for (struct block *above; record; record = above) {
        above = record->above;
        bytes += record->bytes;
        atomic_store_explicit(&stream_block_of(record)->lost, true, memory_order_relaxed);
        if (block_state(record) != BLOCK_SPARE)
            continue;
        if (record->below)
            segments_unlist(&home->segments, record);
        count_no_longer_spare(home, record->bytes);
        block_table_remove(home->segments.table, block_address(record), record);
        block_set_state(record, BLOCK_LEAVING);
        record->links[LINK_HEAP].next = chain;
        chain = record;
    }
    count_segment_out(home, bytes);
    return chain;
}
