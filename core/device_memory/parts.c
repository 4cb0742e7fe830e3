#include "parts.h"

#include "core/base/numbers.h"

/* Cuts a part of the bucket's size out of from, whose bytes count as spare. The part is as if just
 * taken out of a thread's cache. NULL where memory for its record is short. */
static struct block *cut_out(struct heap *heap, struct block *from, struct bucket *bucket)
{
    struct heap_counters *counters = heap->counters;
    bool whole = !block_is_part(from);
    uint64_t bytes = from->bytes;
    struct block *part = segments_cut(&heap->segments, from, bucket->bytes);
    if (!part)
        return NULL;
    if (whole) {
        counter_add(&counters->segments.count, 1);
        counter_add(&counters->segments.bytes, bytes);
    }
    counter_add(&counters->segments.cuts, 1);
    part->bucket = bucket;
    atomic_store_explicit(&part->bin, device_bucket(bucket)->bin, memory_order_relaxed);
    counter_set(&part->epoch, 0);
    counter_raise_to(&bucket->counters->peak_reserved_bytes,
                     counter_get(&bucket->counters->reserved_bytes) + part->bytes);
    counter_add(&bucket->counters->reserved_bytes, part->bytes);
    heap_count_no_longer_spare(heap, part->bytes);
    page_counts_unlist(&heap->pages, part);
    block_set_state(part, BLOCK_CACHED);
    return part;
}

/* Counts a whole block as spare, before it is cut. Spare memory is the bucket unkept's. */
static void make_spare(struct heap *heap, struct block *whole)
{
    whole->bucket = &heap->unkept.bucket;
    heap_count_spare(heap, whole->bytes);
    page_counts_open(&heap->pages, whole);
}

struct block *heap_cut_new(struct heap *heap, struct block *whole, struct bucket *bucket)
{
    heap_lock_must_be_held(heap);
    make_spare(heap, whole);
    struct block *part = cut_out(heap, whole, bucket);
    if (!part) {
        heap_count_no_longer_spare(heap, whole->bytes);
        page_counts_close(&heap->pages, whole);
    }
    return part;
}

/* Takes a whole clean block out of its bucket, and makes it spare. */
static void take_whole(struct heap *heap, struct block *whole)
{
    heap_begin_leaving(heap, whole);
    make_spare(heap, whole);
}

struct block *heap_cut(struct heap *heap, struct bucket *bucket, bool anywhere)
{
    heap_lock_must_be_held(heap);
    if (!heap_splits(heap) || bucket->bytes == 0)
        return NULL;
    struct block *from = segments_find(&heap->segments, bucket->bytes, anywhere);
    if (!from || block_is_part(from))
        return from ? cut_out(heap, from, bucket) : NULL;
    /* A whole block of just this size is in the bucket's list. */
    if (from->bytes == bucket->bytes)
        return from;
    take_whole(heap, from);
    struct block *part = cut_out(heap, from, bucket);
    if (!part)
        heap_put_whole(heap, from);
    return part;
}

/* ---- what can't be released to the driver ---- */

struct stuck {
    uint64_t bytes, longest;
};

static bool is_in_use(const struct block *part)
{
    return block_state(part) == BLOCK_LIVE || block_state(part) == BLOCK_KEPT;
}

/* Adds what is stuck in the segment of this head. Does nothing for other records. */
static void add_stuck(struct block *head, void *argument)
{
    struct stuck *stuck = argument;
    uint64_t bytes = 0, piece = 0, longest = 0;
    bool in_use = false;
    if (!block_is_part(head) || head->below)
        return;
    for (const struct block *part = head; part; part = part->above) {
        piece = is_in_use(part) ? 0 : piece + part->bytes;
        bytes += is_in_use(part) ? 0 : part->bytes;
        in_use = in_use || is_in_use(part);
        longest = larger_of(longest, piece);
    }
    if (!in_use)
        return;
    stuck->bytes += bytes;
    stuck->longest = larger_of(stuck->longest, longest);
}

uint64_t heap_stuck_bytes(struct heap *heap)
{
    heap_lock_must_be_held(heap);
    struct stuck stuck = {0, 0};
    block_records_visit(&heap->records, add_stuck, &stuck);
    return stuck.bytes - stuck.longest;
}
