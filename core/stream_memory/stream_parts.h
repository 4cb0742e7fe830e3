/*
 * Parts: stream-ordered blocks that are cut out of segments (core/segments), with the policy split.
 *
 * A segment belongs to one shelf, its home, and so to one stream and one memory pool. Parts are cut
 * only for requests on that stream. Spare memory therefore needs only a stamp of that stream, the
 * newest of all frees in it. It may be cut if a block with that stamp could be handed out in the
 * stream's order, or if everything up to that stamp has completed. So a part that is freed on its
 * own stream is spare at once, and merges with its neighbours without a driver call.
 *
 * A part that is freed on another stream, or where its own stream's order is not enough, waits for
 * the earlier work of its context (stream_merge.h). Nobody gets it before that.
 *
 * When only spare memory is left of a segment, it becomes a whole block again. It has the newest
 * stamp, and is pending or clean on its home shelf. It can be handed out, cut, taken by other
 * streams and released like any block of the driver's. A free whole block is in a tree of the shelf
 * as well as in its list.
 *
 * Spare bytes count as reserved, free and clean in the figures of sizes that are not cached. They
 * do not count in a stream's free bytes: caps do not apply, because spare memory can't be released.
 *
 *   stream->parts.spare_bytes = bytes of all BLOCK_SPARE records of its shelves' segments
 *                               + bytes of the parts that wait (stream_merge.h)
 *
 * Parts outlive their stream and their context, as all stream-ordered memory does. Spare memory of
 * a context that has ended is never cut. Once the segment is whole, the driver frees it. If the
 * driver gives the address of a segment out again, somebody freed the segment past the pool. Then
 * the segment is lost, and its live parts belong to no shelf's segment any more.
 *
 * The functions below are called with the lock of the home shelf's stream held.
 */
#ifndef CUDAPOOL_CORE_STREAM_PARTS_H
#define CUDAPOOL_CORE_STREAM_PARTS_H

#include <stdbool.h>
#include <stdint.h>

#include "stream_block.h"
#include "stream_shelf.h"

/* The shelf that owns the part's segment. NULL: the segment is lost. Without the lock, the segment
 * may be lost at any moment. */
static inline struct shelf *stream_part_shelf(const struct stream_block *part)
{
    return atomic_load_explicit(&part->lost, memory_order_relaxed) ? NULL : shelf_of(part);
}

/* Cuts a block of the bucket's size out of spare memory or of a whole block, or takes a whole block
 * of that size. The block is counted, and in no list. NULL where nothing is large enough, or memory
 * is short. anywhere: see segments_find. */
struct stream_block *stream_parts_cut(struct shelf *shelf, struct bucket *bucket, bool anywhere);

/* Cuts a block of the bucket's size out of this whole block, whose shelf field names the shelf. The
 * whole block is counted nowhere and in no list. NULL: memory is short, and nothing has changed. */
struct stream_block *stream_parts_cut_new(struct shelf *shelf, struct stream_block *whole,
                                          struct bucket *bucket);

/* stream_parts_merge makes a part spare that is counted nowhere and in no list. stamp is one of the
 * home stream's; 0: the part's work has completed. */
enum merged {
    MERGED_PART,   /* other parts of the segment are not spare */
    MERGED_WHOLE,  /* the segment is a whole block of its shelf again */
    MERGED_LEAVES, /* the whole block must not be cached: it is counted nowhere and out of the
                      table, and the caller, its only owner, lets the driver free it */
};

/* in_order: the caller can let the driver free the whole block in the order of the segment's
 * stream. */
enum merged stream_parts_merge(struct shelf *home, struct stream_block *part, uint64_t stamp,
                               bool in_order, struct stream_block **whole);

/* stream_parts_may_merge_all: whether every record of this part's segment is spare, or is marked
 * (BLOCK_LEAVING and refused), counted nowhere and in no list. A part that another thread is
 * returning is not marked, and prevents the merge. stream_parts_merge_all then merges all of them
 * and returns the whole block, as for MERGED_LEAVES. */
bool stream_parts_may_merge_all(struct stream_block *part);
struct stream_block *stream_parts_merge_all(struct shelf *home, struct stream_block *part);

/* The first record of the part's segment. */
struct block *stream_parts_head(struct stream_block *part);

/* stream_parts_begin_to_wait puts a part that is counted nowhere into its stream's list `waiting`.
 * The part counts as spare there, but is in no tree and merges with nothing.
 * stream_parts_end_to_wait takes it out of the list and of the counts. */
void stream_parts_begin_to_wait(struct shelf *home, struct stream_block *part);
void stream_parts_end_to_wait(struct stream *stream, struct stream_block *part);

/* The segment was freed past the pool. Returns its spare records, chained through
 * links[LINK_HEAP].next, counted nowhere and out of the table. Its other records lose their
 * segment. */
struct block *stream_parts_lose(struct shelf *home, struct stream_block *any);

#endif
