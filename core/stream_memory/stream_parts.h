/*
 * Parts: stream-ordered blocks that are cut out of segments (core/segments), with the policy split.
 *
 * A segment belongs to one shelf, its home: to one stream and one memory pool. Parts are cut for
 * requests on that stream alone, so what is spare needs no more than a stamp of the stream's: the
 * newest of all frees there. It may be cut where a block with that stamp could be handed out in the
 * stream's order, or what is stamped so is over. So a part that is freed on its own stream is spare
 * at once, and merges with its neighbours for no call of the driver's.
 *
 * A part that is freed on another stream is a guest there: pending in that one's order, in which it
 * may be handed out again, until it is over. Then it goes home, as stream_aside.h tells: two
 * streams' locks are never held together. So does what was freed where its own stream's order is
 * not enough.
 *
 * Where nothing else is left of a segment it is a whole block again, with the newest stamp, pending
 * or clean on its home shelf. It is handed out, cut, taken by other streams and given back like
 * every block of the driver's own. In whichever list it is, it is in a tree of the shelf as well.
 *
 * What is spare counts as reserved, free and clean in the row of what has no bucket, and in no
 * stream's free bytes: caps have nothing to do with it, since it cannot go back.
 *
 *   stream->spare_bytes = bytes of all BLOCK_SPARE records of its shelves' segments
 *                         + bytes of the parts that wait (stream_aside.h)
 *
 * Parts outlive their stream and their context, as all of this memory does. What is spare of a
 * context that has ended is never cut; once it is whole, the driver frees it. Where the driver has
 * given the address of a segment to somebody else, it was freed behind our back: it is lost, and
 * its live parts with it, which have no home from then on.
 *
 * The lock of the home's stream is held.
 */
#ifndef CUDAPOOL_CORE_STREAM_PARTS_H
#define CUDAPOOL_CORE_STREAM_PARTS_H

#include <stdbool.h>
#include <stdint.h>

#include "stream_block.h"
#include "stream_shelf.h"

static inline struct shelf *stream_part_home(const struct stream_block *part)
{
    return atomic_load_explicit(&part->home, memory_order_relaxed);
}

/* A block of the bucket out of what may be cut, or a whole one that is just as large: counted, and
 * on no list. NULL where nothing is large enough, or memory is short. anywhere: see segments_find.
 */
struct stream_block *stream_parts_cut(struct shelf *shelf, struct bucket *bucket, bool anywhere);

/* The same out of a whole block that is in the shelf's name, counted nowhere and in no list. */
struct stream_block *stream_parts_cut_new(struct shelf *shelf, struct stream_block *whole,
                                          struct bucket *bucket);

/* A part that is counted nowhere and in no list is spare from now on, with this stamp of its own
 * stream's, 0: it is over. */
enum merged {
    MERGED_PART,   /* something else is left of the segment */
    MERGED_WHOLE,  /* it is a block of its shelf again */
    MERGED_LEAVES, /* it must not stay: it is in nobody's hands but the caller's, counted nowhere
                      and out of the table, and goes to the driver */
};

/* in_order: the caller can have it freed in the order of the segment's stream. */
enum merged stream_parts_merge(struct shelf *home, struct stream_block *part, uint64_t stamp,
                               bool in_order, struct stream_block **whole);

/* Where everything in the segment of this part is spare, or counted nowhere and in no list and
 * marked (BLOCK_LEAVING, refused): others on their way home are another thread's. And then: the
 * whole block, as MERGED_LEAVES. */
bool stream_parts_may_merge_all(struct stream_block *part);
struct stream_block *stream_parts_merge_all(struct shelf *home, struct stream_block *part);

/* The first record of the part's segment. */
struct block *stream_parts_head(struct stream_block *part);

/* A part that is counted nowhere and in no list counts as spare from now on, but is in no tree and
 * merges with nothing; and no longer. */
void stream_parts_begin_to_wait(struct shelf *home, struct stream_block *part);
void stream_parts_end_to_wait(struct shelf *home, struct stream_block *part);

/* The segment was freed behind our back. Spare records are chained through links[LINK_HEAP].next,
 * counted nowhere and out of the table; what is not spare has no home any more. */
struct block *stream_parts_lose(struct shelf *home, struct stream_block *any);

#endif
