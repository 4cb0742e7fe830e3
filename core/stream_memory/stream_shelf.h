/*
 * Shelves: the free blocks of one stream and one memory pool, in buckets, and what is counted of
 * all its blocks. These are the steps that every allocation and every free take, inline: for
 * core/pool/pool_stream.c, which does nothing else where the stream's own order is enough, and for
 * the files that do the rest.
 *
 * Locking: all of them with the stream's lock held, but for shelf_of and shelf_asked.
 */
#ifndef CUDAPOOL_CORE_STREAM_SHELF_H
#define CUDAPOOL_CORE_STREAM_SHELF_H

#include "core/base/numbers.h"
#include "core/base/size_class.h"
#include "core/blocks/bucket.h"
#include "core/contexts/pool_state.h"
#include "core/segments/segments.h"
#include "mempool.h"
#include "stream.h"
#include "stream_block.h"
#include "stream_holders.h"
#include "streams.h"

/* Each look for idle blocks reads the clock: so many frees go without. */
#define FREES_PER_LOOK 32u

struct shelf_bucket {
    _Alignas(STREAM_APART) struct bucket bucket;
    struct size_span requests;                            /* that it serves */
    struct stream_holders *holders;                       /* of its memory pool and size */
    struct stream_holders *of_device;                     /* of its device and size */
    uint64_t peak_live_bytes, counted_bytes, noted_up_to; /* as in struct shelf, of its blocks */
    uint64_t room; /* so many may be free before a free has to look at more; 0 while the stream is
                      not listed in holders, and where blocks are cut */
    unsigned looks_in_vain; /* other streams' looks in vain at what is pending here, since one took
                      something */
    unsigned not_kept;      /* frees from other streams that were the driver's because of that */
    uint64_t hits;          /* as these were counted */
    uint64_t
        taken_by_others; /* blocks that other streams have taken, and that no new ones stand for */
};

/* The bucket is not one of blocks that are not kept. */
static inline struct shelf_bucket *shelf_bucket_of(struct bucket *bucket)
{
    return (struct shelf_bucket *)((char *)bucket - offsetof(struct shelf_bucket, bucket));
}

#define SHELF_PLACES 64u

struct shelf {
    _Alignas(STREAM_APART) struct stream *stream;
    struct mempool *mempool;
    struct bucket_set buckets;
    struct shelf_bucket unkept; /* live blocks of sizes that are not kept */
    counter used_bytes;         /* by the program, as it asked for them */
    counter plainly_freed;      /* by the program's cuMemFree, ever, as it asked for them */
    counter peak_used_bytes;
    uint64_t counted_bytes;    /* of used_bytes, in the device's sum: see shelf_note_used */
    uint64_t noted_up_to;      /* that function need not look while no more than this is used */
    struct shelf *next;        /* of the same stream; written before it is listed */
    struct shelf *next_recent; /* of the same stream, in the order in which they were last used */
    struct shelf_bucket *by_request[SHELF_PLACES]; /* that served such a request last, or NULL; see
                                                      size_class_place. None where blocks are cut */
    struct segments segments; /* with the policy split, like all that is free and whole */
};

/* Whether blocks are cut out of larger ones. No lock needed. */
static inline bool shelf_splits(const struct stream *stream)
{
    return stream->on_device->classes.policy == BUCKETS_SPLIT;
}

static inline struct shelf *shelf_of(const struct stream_block *block)
{
    return atomic_load_explicit(&block->shelf, memory_order_relaxed);
}

/* NULL where it can't be made. */
struct shelf *shelf_add(struct pool *pool, struct stream *stream, struct mempool *mempool);
struct bucket *shelf_add_bucket(struct pool *pool, struct shelf *shelf, uint64_t bytes);

/* A stream's record is new, and nobody else's; it has a new owner, from whom nobody has taken
 * anything. */
void shelf_begin(struct stream *stream);
void shelf_has_new_owner(struct stream *stream, uint64_t now);

/* The clock was looked at. */
static inline void shelf_note_time(struct stream *stream, uint64_t now)
{
    lock_must_be_held(&stream->lock);
    stream->now = now;
}

/* ---- shelves and buckets ---- */

static inline struct shelf *shelf_find(const struct stream *stream, const struct mempool *mempool)
{
    struct shelf *shelf = stream->recent_shelf;
    while (shelf && shelf->mempool != mempool)
        shelf = shelf->next_recent;
    return shelf;
}

struct shelf *shelf_find_and_move(struct stream *stream, const struct mempool *mempool);

/* The same, and the next look for it is short. */
static inline struct shelf *shelf_to_front(struct stream *stream, const struct mempool *mempool)
{
    lock_must_be_held(&stream->lock);
    struct shelf *shelf = stream->recent_shelf;
    return __builtin_expect(shelf && shelf->mempool == mempool, 1)
               ? shelf
               : shelf_find_and_move(stream, mempool);
}

static inline struct shelf *shelf_get(struct pool *pool, struct stream *stream,
                                      struct mempool *mempool)
{
    struct shelf *shelf = shelf_find(stream, mempool);
    return shelf ? shelf : shelf_add(pool, stream, mempool);
}

static inline struct bucket *shelf_get_bucket(struct pool *pool, struct shelf *shelf,
                                              uint64_t bytes)
{
    struct bucket *found = bucket_set_find(&shelf->buckets, bytes);
    return found ? found : shelf_add_bucket(pool, shelf, bytes);
}

/* The bucket that serves such a request, and finds the next one at once; NULL: there is none, or
 * blocks are cut. */
struct bucket *shelf_look_up_bucket(struct shelf *shelf, uint64_t bytes);

static inline struct bucket *shelf_bucket_for(struct shelf *shelf, uint64_t bytes)
{
    struct shelf_bucket *found = shelf->by_request[size_class_place(bytes, SHELF_PLACES)];
    return __builtin_expect(found && size_span_has(&found->requests, bytes), 1)
               ? &found->bucket
               : shelf_look_up_bucket(shelf, bytes);
}

/* ---- blocks coming and going ---- */

/* What the program holds on a device is summed up without a walk over its streams. Each shelf
 * counts its part in steps, and never more than it has:
 *
 *   used_bytes - SHELF_STEP <= counted_bytes <= used_bytes
 *
 * The same is done for each size, but that a bucket's fall is counted only with one of the shelf.
 */
#define SHELF_STEP (UINT64_C(32) << 20)

/* Counts all that is used; where less than counted_bytes is, half a step less, so that not each
 * free counts anew. Raises the shelf's peak and the device's. */
void shelf_note_used(struct shelf *shelf, struct bucket *bucket);

/* So many bytes more are to be reserved in the bucket. What streams take from each other is in the
 * peak of its size once. */
static inline void shelf_raise_reserved(const struct bucket *bucket, uint64_t bytes)
{
    struct stream_holders *all = shelf_bucket_of((struct bucket *)(uintptr_t)bucket)->of_device;
    uint64_t reserved =
        atomic_fetch_add_explicit(&all->reserved_bytes, bytes, memory_order_relaxed) + bytes;
    counter_raise_shared(
        &atomic_load_explicit(&all->peaks, memory_order_relaxed)->peak_reserved_bytes, reserved);
}

static inline void shelf_count_in(struct shelf *shelf, struct bucket *bucket,
                                  const struct stream_block *block)
{
    lock_must_be_held(&shelf->stream->lock);
    uint64_t bytes = block->block.bytes;
    counter_add(&shelf->stream->reserved_bytes, bytes);
    /* The peak comes first: see stats.h. */
    shelf_raise_reserved(bucket, bytes);
    counter_add(&bucket->counters->reserved_bytes, bytes);
}

static inline void shelf_count_out(struct shelf *shelf, struct bucket *bucket,
                                   const struct stream_block *block)
{
    lock_must_be_held(&shelf->stream->lock);
    uint64_t bytes = block->block.bytes;
    counter_subtract(&shelf->stream->reserved_bytes, bytes);
    counter_subtract(&bucket->counters->reserved_bytes, bytes);
    atomic_fetch_sub_explicit(&shelf_bucket_of(bucket)->of_device->reserved_bytes, bytes,
                              memory_order_relaxed);
}

static inline void shelf_count_live(struct shelf *shelf, struct bucket *bucket, uint64_t asked)
{
    uint64_t used = counter_get(&shelf->used_bytes) + asked;
    struct bucket_counters *counters = bucket->counters;
    counter_set(&shelf->used_bytes, used);
    uint64_t live = counter_get(&counters->reserved_bytes) - counter_get(&counters->free_bytes);
    if (__builtin_expect(used > shelf->noted_up_to || live > shelf_bucket_of(bucket)->noted_up_to,
                         0))
        shelf_note_used(shelf, bucket);
}

static inline uint64_t shelf_asked(const struct stream_block *block)
{
    return atomic_load_explicit(&block->asked, memory_order_relaxed);
}

static inline void shelf_count_not_live(struct shelf *shelf, const struct stream_block *block)
{
    lock_must_be_held(&shelf->stream->lock);
    counter_subtract(&shelf->used_bytes, shelf_asked(block));
}

/* After a block was counted as not live, and as free or as out. */
static inline bool shelf_has_fallen(const struct shelf *shelf)
{
    return counter_get(&shelf->used_bytes) < shelf->counted_bytes;
}

static inline void shelf_follow_fall(struct shelf *shelf)
{
    if (__builtin_expect(shelf_has_fallen(shelf), 0))
        shelf_note_used(shelf, NULL);
}

static inline void shelf_count_clean(struct stream *stream, struct bucket *bucket, uint64_t bytes)
{
    counter_add(&bucket->counters->clean_bytes, bytes);
    counter_add(&stream->clean_bytes, bytes);
}

static inline void shelf_add_free(struct stream *stream, struct bucket *bucket, uint64_t bytes)
{
    bucket->free_blocks++;
    counter_add(&bucket->counters->free_bytes, bytes);
    counter_add(&stream->free_bytes, bytes);
}

/* What may be free before a free has to look further: the device's cap, and what no event covers.
 */
static inline void shelf_set_unchecked(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    uint64_t covered =
        counter_get(&stream->clean_bytes) + stream->covered_bytes + stream->may_be_uncovered;
    stream->unchecked_bytes = (int64_t)smaller_of(covered, stream->unchecked_cap);
}

/* No event can be recorded behind a free: not each free tries again. */
static inline void shelf_put_off_check(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    stream->unchecked_bytes =
        (int64_t)(counter_get(&stream->free_bytes) + stream->may_be_uncovered);
}

/* A pending block comes, or goes. */
static inline bool shelf_is_covered(const struct stream *stream, const struct block *block)
{
    return counter_get(&block->epoch) <= stream->covered;
}

static inline void shelf_count_if_covered(struct stream *stream, const struct stream_block *block)
{
    if (shelf_is_covered(stream, &block->block))
        stream->covered_bytes += block->block.bytes;
}

/* Where blocks are cut, a free one that is whole is in a tree, too. */
void shelf_list_if_whole(struct stream_block *block);
void shelf_unlist_if_whole(struct stream_block *block);

/* A clean block out of its list. */
static inline void shelf_take_from_clean(struct stream *stream, struct bucket *bucket,
                                         struct stream_block *block)
{
    lock_must_be_held(&stream->lock);
    if (__builtin_expect(block_is_part(&block->block), 0)) {
        block_list_remove(&stream->clean_parts, &block->block, LINK_HEAP);
        counter_subtract(&stream->away, 1);
    } else {
        block_list_remove(&bucket->clean, &block->block, LINK_BUCKET);
    }
}

static inline void shelf_take(struct stream *stream, struct bucket *bucket,
                              struct stream_block *block)
{
    lock_must_be_held(&stream->lock);
    uint64_t bytes = block->block.bytes;
    if (__builtin_expect(shelf_splits(stream), 0))
        shelf_unlist_if_whole(block);
    if (block_state(&block->block) == BLOCK_CLEAN) {
        shelf_take_from_clean(stream, bucket, block);
        counter_subtract(&bucket->counters->clean_bytes, bytes);
        counter_subtract(&stream->clean_bytes, bytes);
        stream->unchecked_bytes -= (int64_t)bytes;
    } else {
        if (shelf_is_covered(stream, &block->block)) {
            stream->covered_bytes -= bytes;
            stream->unchecked_bytes -= (int64_t)bytes;
        }
        block_list_remove(&bucket->pending, &block->block, LINK_BUCKET);
        block_list_remove(&stream->pending, &block->block, LINK_HEAP);
    }
    bucket->free_blocks--;
    counter_subtract(&bucket->counters->free_bytes, bytes);
    counter_subtract(&stream->free_bytes, bytes);
}

/* The same for what shelf_find_own has found, where blocks are not cut. */
static inline void shelf_take_own(struct stream *stream, struct bucket *bucket,
                                  struct stream_block *block)
{
    lock_must_be_held(&stream->lock);
    if (__builtin_expect(&block->block != bucket->pending.last, 0)) {
        shelf_take(stream, bucket, block);
        return;
    }
    uint64_t bytes = block->block.bytes;
    if (shelf_is_covered(stream, &block->block)) {
        stream->covered_bytes -= bytes;
        stream->unchecked_bytes -= (int64_t)bytes;
    }
    block_list_remove_last(&bucket->pending, &block->block, LINK_BUCKET);
    block_list_remove(&stream->pending, &block->block, LINK_HEAP);
    bucket->free_blocks--;
    counter_subtract(&bucket->counters->free_bytes, bytes);
    counter_subtract(&stream->free_bytes, bytes);
}

/* By ascending stamp: nearly always the last. */
static inline void shelf_insert_pending(struct block_list *list, struct block *block,
                                        uint64_t stamp, enum block_link link)
{
    struct block *before = list->last;
    if (__builtin_expect(!before || counter_get(&before->epoch) <= stamp, 1)) {
        block_list_append(list, block, link);
        return;
    }
    while (before && counter_get(&before->epoch) > stamp)
        before = before->links[link].previous;
    if (!before) {
        block_list_prepend(list, block, link);
    } else {
        block->links[link].previous = before;
        block->links[link].next = before->links[link].next;
        before->links[link].next->links[link].previous = block;
        before->links[link].next = block;
    }
}

/* What is pending up to this stamp can be asked about from now on. */
void shelf_cover(struct stream *stream, uint64_t stamp);

/* A pending block turns out to be over. */
void shelf_make_clean(struct stream *stream, struct stream_block *block);

/* A free block leaves its shelf, in whose name it stays; and comes back, with the stamp that it
 * had. Where blocks are cut the pool may be NULL. */
void shelf_detach(struct stream *stream, struct stream_block *block);
void shelf_attach(const struct pool *pool, struct shelf *shelf, struct stream_block *block);

/* Before a block comes to lie in the bucket: looks for one are led to the stream; and where a look
 * has left the bucket empty, or found it so: no more are. */
void shelf_list_bucket(const struct pool *pool, const struct stream *stream, struct bucket *bucket);
void shelf_unlist_if_empty(const struct stream *stream, struct bucket *bucket);

/* The block, which is on no shelf and counted in this one, is the program's from now on. Its
 * address. */
static inline CUdeviceptr shelf_hand_out(struct shelf *shelf, struct bucket *bucket,
                                         struct stream_block *block, size_t bytes)
{
    struct stream *stream = shelf->stream;
    lock_must_be_held(&stream->lock);
    CUdeviceptr address = block_address(&block->block);
    block_set(&block->block, address, BLOCK_LIVE);
    atomic_store_explicit(&block->asked, bytes, memory_order_relaxed);
    shelf_count_live(shelf, bucket, bytes);
    atomic_store_explicit(&block->generation, ++stream->handed_out, memory_order_relaxed);
    atomic_store_explicit(&block->held_at, address, memory_order_release);
    return address;
}

/* The hit itself is counted last: see stats.h. */
static inline CUdeviceptr shelf_hand_out_hit(struct shelf *shelf, struct bucket *bucket,
                                             struct stream_block *block, size_t bytes, enum hit hit)
{
    struct bucket_counters *counters = bucket->counters;
    counter_add(&counters->requested_bytes, bytes);
    CUdeviceptr address = shelf_hand_out(shelf, bucket, block, bytes);
    counter_add(&counters->hits[hit], 1);
    return address;
}

/* ---- a block of the stream's own ---- */

/* Its memory is the likeliest to be in the GPU's cache. */
static inline struct block *shelf_newest(const struct bucket *bucket)
{
    return bucket->pending.last ? bucket->pending.last : bucket->clean.last;
}

/* Whether the stream's own order is not enough. Relaxed: see where it is set. */
static inline bool shelf_launches_early(const struct stream *stream)
{
    return atomic_load_explicit(&stream->early_launches, memory_order_relaxed);
}

static inline bool shelf_is_marked(const struct stream *stream, const struct block *block)
{
    return counter_get(&block->epoch) <= stream->marked || !stream->ordered_by_others;
}

/* Where others order the stream: the newest one with an operation behind its free, as nearly every
 * one has; or the oldest, where some are from before others did. */
static inline struct block *shelf_find_marked(const struct stream *stream,
                                              const struct bucket *bucket)
{
    const struct block_list *pending = &bucket->pending;
    if (!shelf_launches_early(stream) && pending->last && shelf_is_marked(stream, pending->last))
        return pending->last;
    if (!shelf_launches_early(stream) && pending->first && shelf_is_marked(stream, pending->first))
        return pending->first;
    return bucket->clean.last;
}

/* What may be handed out in the stream's order, or NULL. */
static inline struct block *shelf_find_own(const struct stream *stream, const struct bucket *bucket)
{
    lock_must_be_held(&stream->lock);
    return __builtin_expect(stream->own_order, 1) ? shelf_newest(bucket)
                                                  : shelf_find_marked(stream, bucket);
}

/* ---- freeing ---- */

__attribute__((always_inline)) static inline bool shelf_is_usable(const struct context *context)
{
    /* Relaxed: see where they are set. What is seen late of the end, its beginner waits for. */
    return !atomic_load_explicit(&context->unusable, memory_order_relaxed) &&
           !atomic_load_explicit(&context->dying, memory_order_relaxed);
}

/* Lock held. Whether the block may stay, as far as the stream alone can tell. */
__attribute__((always_inline)) static inline bool shelf_may_keep(const struct stream *stream,
                                                                 const struct stream_block *block)
{
    lock_must_be_held(&stream->lock);
    return block->context == stream->context && block->context_generation == stream->generation &&
           block->block.bucket->bytes != 0 &&
           !atomic_load_explicit(&block->shared, memory_order_relaxed) &&
           !atomic_load_explicit(&block->mempool->closed, memory_order_relaxed) &&
           shelf_is_usable(stream->context);
}

/* The same of a part, which has no other place to go: no caps count, nor whether its pool ends. */
static inline bool shelf_may_keep_part(const struct stream *stream, const struct stream_block *part)
{
    lock_must_be_held(&stream->lock);
    return part->context == stream->context && part->context_generation == stream->generation &&
           shelf_is_usable(stream->context);
}

static inline bool shelf_is_full(const struct pool *pool, const struct bucket *bucket)
{
    return bucket->free_blocks >= pool->settings.stream_ordered.caps.blocks_per_bucket;
}

/* The same, and looks for a block are led there. */
static inline bool shelf_has_room(struct bucket *bucket)
{
    return bucket->free_blocks < shelf_bucket_of(bucket)->room;
}

static inline bool shelf_is_within_cap(const struct stream *stream,
                                       const struct stream_block *block)
{
    return counter_get(&stream->free_bytes) + block->block.bytes <= stream->unchecked_cap;
}

/* The same, and what no event covers is little enough. */
static inline bool shelf_needs_no_check(const struct stream *stream,
                                        const struct stream_block *block)
{
    return (int64_t)(counter_get(&stream->free_bytes) + block->block.bytes) <=
           stream->unchecked_bytes;
}

/* Whether another stream has lately looked for an event in vain. */
static inline bool shelf_events_are_wanted(const struct stream *stream)
{
    return atomic_load_explicit(&stream->events_wanted, memory_order_relaxed) != 0;
}

/* Lock held. */
static inline uint64_t shelf_next_stamp(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    uint64_t stamp = atomic_load_explicit(&stream->stamp, memory_order_relaxed) + 1;
    atomic_store_explicit(&stream->stamp, stamp, memory_order_relaxed);
    return stamp;
}

/* Lock held. Whether a block that is found at that address, and in that shelf of the stream, may be
 * freed there with nothing else to be seen to. */
static inline bool shelf_may_free_at_once(const struct shelf *shelf,
                                          const struct stream_block *block, CUdeviceptr address)
{
    const struct stream *stream = shelf->stream;
    lock_must_be_held(&stream->lock);
    return shelf_of(block) == shelf && stream_block_is_held(block, address) &&
           !shelf_events_are_wanted(stream) &&
           !atomic_load_explicit(&block->uses, memory_order_relaxed) &&
           shelf_may_keep(stream, block) && shelf_needs_no_check(stream, block) &&
           shelf_has_room(block->block.bucket);
}

/* Lock held, and the block counted in this stream's shelf. */
static inline void shelf_make_pending(struct stream *stream, struct bucket *bucket,
                                      struct stream_block *block, uint64_t stamp)
{
    lock_must_be_held(&stream->lock);
    block_set_state(&block->block, BLOCK_PENDING);
    counter_set(&block->block.epoch, stamp);
    block->block.freed_at = stream->now;
    shelf_insert_pending(&bucket->pending, &block->block, stamp, LINK_BUCKET);
    shelf_insert_pending(&stream->pending, &block->block, stamp, LINK_HEAP);
    if (__builtin_expect(shelf_splits(stream), 0))
        shelf_list_if_whole(block);
    shelf_add_free(stream, bucket, block->block.bytes);
    counter_add(&bucket->counters->frees, 1);
}

/* Lock held. The same with the next stamp, which is the last one of all. */
static inline void shelf_make_pending_next(struct stream *stream, struct bucket *bucket,
                                           struct stream_block *block, CUdeviceptr address)
{
    lock_must_be_held(&stream->lock);
    struct bucket_counters *counters = bucket->counters;
    block_set(&block->block, address, BLOCK_PENDING);
    counter_set(&block->block.epoch, shelf_next_stamp(stream));
    block->block.freed_at = stream->now;
    block_list_append(&bucket->pending, &block->block, LINK_BUCKET);
    block_list_append(&stream->pending, &block->block, LINK_HEAP);
    shelf_add_free(stream, bucket, block->block.bytes);
    counter_add(&counters->frees, 1);
}

/* Lock held. */
static inline bool shelf_look_is_due(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    if (__builtin_expect(stream->frees_until_look-- != 0, 1))
        return false;
    stream->frees_until_look = FREES_PER_LOOK;
    return true;
}

#endif
