/*
 * Shelves: the free blocks of one stream and one memory pool, in buckets, and the counts of all
 * blocks of the two. This file has the steps of every allocation and free, inline.
 * core/pool/pool_stream.c does nothing else where the stream's own order is enough. Other files do
 * the rest, and use these steps too.
 *
 * Locking: all functions are called with the stream's lock held, except shelf_of and shelf_asked.
 */
#ifndef CUDAPOOL_CORE_STREAM_SHELF_H
#define CUDAPOOL_CORE_STREAM_SHELF_H

#include "core/base/numbers.h"
#include "core/base/size_class.h"
#include "core/blocks/bucket.h"
#include "core/contexts/fence.h"
#include "core/contexts/pool_state.h"
#include "core/segments/segments.h"
#include "mempool.h"
#include "stream.h"
#include "stream_block.h"
#include "streams.h"

/* A look for idle blocks reads the clock, so there is one only after this many frees. */
#define FREES_PER_LOOK 32u

struct shelf_bucket {
    _Alignas(STREAM_APART) struct bucket bucket;
    struct size_span requests;        /* the request sizes that it serves */
    struct stream_holders *holders;   /* of its memory pool and size */
    struct stream_holders *of_device; /* of its device and size */
    /* As in struct shelf, for the blocks of this bucket. */
    uint64_t peak_live_bytes, counted_bytes, noted_up_to;
    /* Up to this many blocks may be free before a free has to check more. 0 while the stream's bit
     * in holders is not set, and where blocks are cut. */
    uint64_t room;
    /* Failed looks of other streams at pending blocks of this bucket, since a stream last took one.
     */
    unsigned failed_looks;
    /* Frees of other streams' blocks while failed_looks was high: the driver got all but a few. */
    unsigned not_kept;
    uint64_t hits; /* the bucket's hits when has_hit_since last looked */
    /* Blocks that other streams have taken and no new block has replaced. */
    uint64_t taken_by_others;
};

/* In the bucket of sizes that are not cached, requests and holders are not set. */
static inline struct shelf_bucket *shelf_bucket_of(struct bucket *bucket)
{
    return (struct shelf_bucket *)((char *)bucket - offsetof(struct shelf_bucket, bucket));
}

#define SHELF_PLACES 64u

struct shelf {
    _Alignas(STREAM_APART) struct stream *stream;
    struct mempool *mempool;
    struct bucket_set buckets;
    struct shelf_bucket unkept; /* live blocks of sizes that are not cached */
    counter used_bytes;         /* that the program holds, as it asked for them */
    counter plainly_freed;      /* total freed by the program's cuMemFree, as it asked for them */
    counter peak_used_bytes;
    uint64_t counted_bytes; /* the part of used_bytes in the device's sum: see shelf_note_used */
    /* No call of shelf_note_used is due while used_bytes is no more than this. */
    uint64_t noted_up_to;
    struct shelf *next;        /* of the same stream; written before this shelf is listed */
    struct shelf *next_recent; /* of the same stream, ordered by last use */
    /* The bucket that last served a request of such a size, or NULL; see size_class_place. All NULL
     * where blocks are cut. */
    struct shelf_bucket *by_request[SHELF_PLACES];
    /* With the policy split; its trees have the free whole blocks, too. */
    struct segments segments;
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

/* Make a shelf of the stream, or a bucket of the shelf. NULL where it can't be made. */
struct shelf *shelf_add(struct pool *pool, struct stream *stream, struct mempool *mempool);
struct bucket *shelf_add_bucket(struct pool *pool, struct shelf *shelf, uint64_t bytes);

/* shelf_begin: the stream's record has just been made. shelf_has_new_owner: the record now belongs
 * to another stream, from which nobody has taken a block yet. */
void shelf_begin(struct stream *stream);
void shelf_has_new_owner(struct stream *stream, uint64_t now);

/* Notes the current time, for the frees that follow. */
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

/* Finds the shelf of this memory pool and moves it to the front, so that the next search for it is
 * short. */
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

/* Finds the bucket that serves requests of this size, and notes it in by_request for the next one.
 * NULL: there is none, or blocks are cut. */
struct bucket *shelf_look_up_bucket(struct shelf *shelf, uint64_t bytes);

static inline struct bucket *shelf_bucket_for(struct shelf *shelf, uint64_t bytes)
{
    struct shelf_bucket *found = shelf->by_request[size_class_place(bytes, SHELF_PLACES)];
    return __builtin_expect(found && size_span_has(&found->requests, bytes), 1)
               ? &found->bucket
               : shelf_look_up_bucket(shelf, bytes);
}

/* ---- counting, listing and handing out blocks ---- */

/* The bytes that the program holds on a device are summed up without a walk over the streams. Each
 * shelf adds its part in steps, and never more than it has:
 *
 *   used_bytes - SHELF_STEP <= counted_bytes <= used_bytes
 *
 * Each bucket does the same for its size. A fall of a bucket's bytes is counted only together with
 * a fall of the shelf's. */
#define SHELF_STEP (UINT64_C(32) << 20)

/* Sets counted_bytes to used_bytes. If used_bytes has fallen below counted_bytes, it counts half a
 * step less, so that not each free has to count anew. Raises the peaks of the shelf and of the
 * device. bucket: counted in the same way; NULL: all buckets of the shelf are. */
void shelf_note_used(struct shelf *shelf, struct bucket *bucket);

/* Adds bytes that are about to be reserved in the bucket to the device's sum for the size, and
 * raises its peak. A block that one stream takes from another counts once in this peak. */
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
    /* The peak is raised first: see stats.h. */
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

/* To be called after a block was counted as not live, and as free or as out. */
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

/* Sets how many bytes may be free before a free has to check more. Two things limit them: the
 * device's cap, and the pending bytes that no event stands for. */
static inline void shelf_set_unchecked(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    uint64_t covered = counter_get(&stream->clean_bytes) + stream->covered_bytes +
                       stream->unchecked.may_be_uncovered;
    stream->unchecked.bytes = (int64_t)smaller_of(covered, stream->unchecked.cap);
}

/* No event could be recorded in a free. Raises the limit, so that not each free tries again. */
static inline void shelf_put_off_check(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    stream->unchecked.bytes =
        (int64_t)(counter_get(&stream->free_bytes) + stream->unchecked.may_be_uncovered);
}

/* Whether an event stands for the free of this pending block. */
static inline bool shelf_is_covered(const struct stream *stream, const struct block *block)
{
    return counter_get(&block->epoch) <= stream->covered;
}

static inline void shelf_count_if_covered(struct stream *stream, const struct stream_block *block)
{
    if (shelf_is_covered(stream, &block->block))
        stream->covered_bytes += block->block.bytes;
}

/* Where blocks are cut, a free block is in a tree as well as in its list. */
static inline void shelf_take(struct stream *stream, struct bucket *bucket,
                              struct stream_block *block)
{
    lock_must_be_held(&stream->lock);
    uint64_t bytes = block->block.bytes;
    if (__builtin_expect(shelf_splits(stream), 0))
        segments_unlist(&shelf_of(block)->segments, &block->block);
    if (block_state(&block->block) == BLOCK_CLEAN) {
        block_list_remove(&bucket->clean, &block->block, LINK_BUCKET);
        counter_subtract(&bucket->counters->clean_bytes, bytes);
        counter_subtract(&stream->clean_bytes, bytes);
        stream->unchecked.bytes -= (int64_t)bytes;
    } else {
        if (shelf_is_covered(stream, &block->block)) {
            stream->covered_bytes -= bytes;
            stream->unchecked.bytes -= (int64_t)bytes;
        }
        block_list_remove(&bucket->pending, &block->block, LINK_BUCKET);
        block_list_remove(&stream->pending, &block->block, LINK_HEAP);
    }
    bucket->free_blocks--;
    counter_subtract(&bucket->counters->free_bytes, bytes);
    counter_subtract(&stream->free_bytes, bytes);
}

/* Like shelf_take, for a block that shelf_find_own has found. Only where blocks are not cut. */
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
        stream->unchecked.bytes -= (int64_t)bytes;
    }
    block_list_remove_last(&bucket->pending, &block->block, LINK_BUCKET);
    block_list_remove(&stream->pending, &block->block, LINK_HEAP);
    bucket->free_blocks--;
    counter_subtract(&bucket->counters->free_bytes, bytes);
    counter_subtract(&stream->free_bytes, bytes);
}

/* Keeps the list in ascending order of stamps. The block's place is nearly always the last. */
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

/* From now on an event stands for what is pending up to this stamp. */
void shelf_cover(struct stream *stream, uint64_t stamp);

/* The work of a pending block has completed: makes it clean. */
void shelf_make_clean(struct stream *stream, struct stream_block *block);

/* shelf_detach takes a free block off its shelf and out of the shelf's counts. The block's shelf
 * field stays. shelf_attach puts it back, with the stamp that it had. pool may be NULL where blocks
 * are cut. */
void shelf_detach(struct stream *stream, struct stream_block *block);
void shelf_attach(const struct pool *pool, struct shelf *shelf, struct stream_block *block);

/* shelf_list_bucket: called before a block is put into the bucket. From then on searches visit the
 * stream. shelf_unlist_if_empty: called when a search has emptied the bucket or found it empty.
 * From then on searches do not visit the stream. */
void shelf_list_bucket(const struct pool *pool, const struct stream *stream, struct bucket *bucket);
void shelf_unlist_if_empty(const struct stream *stream, struct bucket *bucket);

/* Hands a block to the program that is in no list and counted in this shelf. Returns its
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
    atomic_store_explicit(&block->generation, ++stream->given.handed_out, memory_order_relaxed);
    atomic_store_explicit(&block->held_at, address, memory_order_release);
    return address;
}

/* Hands out a block as a hit. The hit itself is counted last: see stats.h. */
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

/* The newest free block: its memory is the likeliest to be in the GPU's cache. */
static inline struct block *shelf_newest(const struct bucket *bucket)
{
    return bucket->pending.last ? bucket->pending.last : bucket->clean.last;
}

/* Whether early launches make the stream's own order too weak for reuse. Relaxed: see where the
 * flag is set. */
static inline bool shelf_launches_early(const struct stream *stream)
{
    return atomic_load_explicit(&stream->early_launches, memory_order_relaxed);
}

static inline bool shelf_is_marked(const struct stream *stream, const struct block *block)
{
    return counter_get(&block->epoch) <= stream->marked || !stream->ordered_by_others;
}

/* For a stream whose own order alone is not enough. Returns the newest pending block if an
 * operation follows its free, which is nearly always so. Otherwise returns the oldest pending block
 * if an operation follows its free. This happens where some blocks were freed before others ordered
 * the stream. Otherwise returns a clean block, or NULL. */
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

/* Returns a block that may be handed out in the stream's order, or NULL. */
static inline struct block *shelf_find_own(const struct stream *stream, const struct bucket *bucket)
{
    lock_must_be_held(&stream->lock);
    return __builtin_expect(stream->own_order, 1) ? shelf_newest(bucket)
                                                  : shelf_find_marked(stream, bucket);
}

/* ---- freeing ---- */

__attribute__((always_inline)) static inline bool shelf_is_usable(const struct context *context)
{
    /* Relaxed: see where the flags are set. The thread that begins the context's end waits for
     * threads that see the flags late. */
    return !atomic_load_explicit(&context->unusable, memory_order_relaxed) &&
           !atomic_load_explicit(&context->dying, memory_order_relaxed);
}

/* Lock held. Whether the block may be cached, as far as the stream alone can tell. */
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

static inline bool shelf_is_full(const struct pool *pool, const struct bucket *bucket)
{
    return bucket->free_blocks >= pool->settings.stream_ordered.caps.blocks_per_bucket;
}

/* Whether the bucket has room for another block, and searches visit the stream already. */
static inline bool shelf_has_room(struct bucket *bucket)
{
    return bucket->free_blocks < shelf_bucket_of(bucket)->room;
}

static inline bool shelf_is_within_cap(const struct stream *stream,
                                       const struct stream_block *block)
{
    return counter_get(&stream->free_bytes) + block->block.bytes <= stream->unchecked.cap;
}

/* Whether the block is within the cap, and few enough pending bytes have no event. */
static inline bool shelf_needs_no_check(const struct stream *stream,
                                        const struct stream_block *block)
{
    return (int64_t)(counter_get(&stream->free_bytes) + block->block.bytes) <=
           stream->unchecked.bytes;
}

/* Whether another stream has lately looked for a block with a fence and found none. */
static inline bool shelf_fences_are_requested(const struct stream *stream)
{
    return atomic_load_explicit(&stream->fences_requested, memory_order_relaxed) != 0;
}

/* Lock held. Each free up to this stamp has an operation ordered after it in the stream. */
static inline void shelf_raise_marked(struct stream *stream, uint64_t stamp)
{
    lock_must_be_held(&stream->lock);
    if (stream->marked < stamp)
        stream->marked = stamp;
}

/* Lock held. The stamp of a free that happens now. */
static inline uint64_t shelf_stamp(const struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    return epoch_current(&stream->context->epochs);
}

/* Lock held. Whether the block that was found at this address may be freed on this shelf without
 * further checks. */
static inline bool shelf_may_free_at_once(const struct shelf *shelf,
                                          const struct stream_block *block, CUdeviceptr address)
{
    const struct stream *stream = shelf->stream;
    lock_must_be_held(&stream->lock);
    return shelf_of(block) == shelf && stream_block_is_held(block, address) &&
           !shelf_fences_are_requested(stream) &&
           !atomic_load_explicit(&block->uses, memory_order_relaxed) &&
           shelf_may_keep(stream, block) && shelf_needs_no_check(stream, block) &&
           shelf_has_room(block->block.bucket);
}

/* Lock held. The block is counted in this stream's shelf. */
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
        segments_list(&shelf_of(block)->segments, &block->block);
    shelf_add_free(stream, bucket, block->block.bytes);
    counter_add(&bucket->counters->frees, 1);
}

/* Lock held. Like shelf_make_pending, with the stamp of now, which is the newest of all. Only where
 * blocks are not cut. */
static inline void shelf_make_pending_next(struct stream *stream, struct bucket *bucket,
                                           struct stream_block *block, CUdeviceptr address)
{
    lock_must_be_held(&stream->lock);
    struct bucket_counters *counters = bucket->counters;
    block_set(&block->block, address, BLOCK_PENDING);
    counter_set(&block->block.epoch, shelf_stamp(stream));
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
