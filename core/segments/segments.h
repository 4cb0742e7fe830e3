/*
 * Segments: blocks of the driver's that are cut into parts, and merged again.
 *
 * A whole clean block of the driver's may be cut. It then is a segment:
 *
 *   | head | part | spare | part | part | spare |
 *
 * A segment holds parts of one sort only, small or large (enum block_part), the sort of the first
 * part that was cut from it. Each piece has a record in the block table and is linked to its
 * neighbours. A part is a block like any other: live, pending, or cached. Memory between parts is
 * spare, and two spare pieces are never neighbours. A part that is clean becomes spare and merges
 * with spare neighbours. When only spare memory is left, the segment becomes a whole block again.
 *
 *   bytes of a segment = sum of the bytes of all its records
 *   record->below, record->above = its neighbours by address; the head has no record below it
 *
 * No part may begin where the driver's block begins, so that place is the head's. Otherwise a
 * library that bypasses the pool could free a part at that address, and with it the whole block.
 *
 * Every whole block or spare piece that may be cut is in one of two trees, for small and for large
 * parts. Trees are ordered by size, then by address. An allocation takes the smallest piece that is
 * large enough, and of several the one with the lowest address (best fit). The trees are treaps
 * (Seidel and Aragon, 1996). A treap is a heap by a priority, here a hash of the record's address,
 * and so balanced on average. A spare piece is linked into its tree through LINK_HEAP. A whole
 * block has no neighbours and is linked through below and above. So it can be in a list of its kind
 * as well.
 *
 * A spare piece has the newest stamp of everything that was merged into it. The whole block
 * inherits that stamp, and so does what is cut from it.
 *
 * Each kind of memory decides which memory its segments are, who owns the records and which lock
 * guards them (struct segments_kind). The kind also counts the figures and calls the driver.
 */
#ifndef CUDAPOOL_CORE_SEGMENTS_H
#define CUDAPOOL_CORE_SEGMENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/blocks/block.h"

/* Sizes of parts, and of blocks that are made to be cut, are multiples of these. */
#define SEGMENT_GRANULE UINT64_C(512)
#define SEGMENT_PAGE    (UINT64_C(2) << 20)
#define SEGMENT_HEAD    SEGMENT_GRANULE

struct segments;

/* What a kind of memory does for its segments. The lock is held during each call. */
struct segments_kind {
    enum lock_rank lock; /* the lock that guards the segments */
    /* take_record returns a record for more memory of the same driver block as this one's, or NULL
     * where memory is short. put_record takes back a record that stands for no memory any more. */
    struct block *(*take_record)(struct segments *segments, const struct block *like);
    void (*put_record)(struct segments *segments, struct block *record);
    /* Whether a block in a tree may be cut now; NULL: always. */
    bool (*may_be_cut)(const struct segments *segments, const struct block *block);
};

struct segments {
    const struct segments_kind *kind;
    struct block_table *table;
    uint64_t small, large;       /* bytes to ask the driver for, for a segment of small or large
                                    parts */
    struct block *may_be_cut[2]; /* the trees: of small parts, and of large parts */
    uint64_t spare[2];           /* bytes of the spare pieces in each tree */
};

/* Bytes to ask the driver for when a part of this many bytes is wanted. The first of these that
 * applies:
 * - a small segment, if two such parts fit into one
 * - a large segment, if two such parts fit into one
 * - whole pages, which one block takes alone */
uint64_t segment_bytes_for(const struct segments *segments, uint64_t bytes);

/* Bytes of a block that is not cut, as the driver itself would take it: whole pages, or the block's
 * share of one page. */
uint64_t segment_bytes_of_one(uint64_t bytes);

/* Whether a part of this many bytes comes from a small or a large segment, which several parts
 * share. */
bool segment_is_for_several(const struct segments *segments, uint64_t bytes);

/* Spare bytes in segments of the sort from which a part of this many bytes would be cut. */
uint64_t segments_spare_bytes(const struct segments *segments, uint64_t bytes);

/* segments_list: a whole clean block may be cut from now on. segments_unlist: it may not be cut any
 * more. */
void segments_list(struct segments *segments, struct block *block);
void segments_unlist(struct segments *segments, struct block *block);

/* The best fit for this many bytes, a multiple of SEGMENT_GRANULE: a spare piece, or a whole block
 * of as many bytes or more. NULL: there is none. anywhere: if the tree of its own sort has none, a
 * spare piece of the other tree is taken. A whole block of the other tree is not, because it can be
 * released. */
struct block *segments_find(const struct segments *segments, uint64_t bytes, bool anywhere);

/* Cuts a part of this many bytes out of a block that segments_find has returned. The caller has
 * taken a whole block, which must have more bytes, off every list. The part is still spare, but in
 * no tree. NULL where memory is short; nothing has changed then. */
struct block *segments_cut(struct segments *segments, struct block *from, uint64_t bytes);

/* A part that is in no list becomes spare and merges with its neighbours. Returns the whole block,
 * which is in no list, if nothing else is left of the segment; otherwise NULL. */
struct block *segments_merge(struct segments *segments, struct block *part);

#endif
