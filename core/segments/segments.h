/*
 * Segments: blocks of the driver's that are cut into parts, and merged again.
 *
 * A whole block of the driver's may be cut if it is clean: no GPU work can still be using it. When
 * it is cut, it becomes a segment:
 *
 *   | head | part | spare | part | part | spare |
 *
 * A segment is of one sort, small or large (enum block_part). The first part that is cut from it
 * decides the sort. Each piece has a record in the block table and is linked to its
 * neighbours. A part is a block like any other: live, pending, or cached. Memory between parts is
 * spare, and two spare pieces are never neighbours. A part that is clean becomes spare and merges
 * with spare neighbours. When only spare memory is left, the segment becomes a whole block again.
 *
 *   bytes of a segment = sum of the bytes of all its records
 *   record->below, record->above = its neighbours by address; the head has no record below it
 *
 * The head occupies the start of the driver's block, so that no part begins there. Otherwise a
 * library that bypasses the pool could free a part at that address, and with it the whole block.
 *
 * Every whole block or spare piece that may be cut is in one of two trees, for small and for large
 * parts. Trees are ordered by size, then by address. An allocation takes the smallest piece that is
 * large enough, and of several the one with the lowest address (best fit). The trees are treaps
 * (Seidel and Aragon, 1996). A treap is also a heap by a priority, here a hash of the record's
 * address. So it is balanced on average. LINK_HEAP links a spare piece into its tree. A whole block
 * has no neighbours, so below and above link it into its tree. So its list links stay free for a
 * list of its kind of memory.
 *
 * A stamp is the epoch of a free. A spare piece has the newest stamp of everything that was merged
 * into it. The whole block inherits that stamp. What is cut from the block or piece inherits it,
 * too.
 *
 * Each kind of memory decides which memory becomes a segment, who owns the records and which lock
 * guards them (struct segments_kind). The kind also counts the figures and calls the driver.
 */
#ifndef CUDAPOOL_CORE_SEGMENTS_H
#define CUDAPOOL_CORE_SEGMENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/blocks/block.h"

/* The size of a part is a multiple of SEGMENT_GRANULE. The size of a block that is made to be cut
 * is a multiple of SEGMENT_PAGE. SEGMENT_HEAD is the size of a head. */
#define SEGMENT_GRANULE UINT64_C(512)
#define SEGMENT_PAGE    (UINT64_C(2) << 20)
#define SEGMENT_HEAD    SEGMENT_GRANULE

struct segments;

/* What a kind of memory does for its segments. The lock is held during each call. */
struct segments_kind {
    enum lock_rank lock; /* the lock that guards the segments */
    /* take_record returns a record for another piece of the driver's block to which like belongs.
     * It returns NULL where memory is short. put_record takes back a record that stands for no
     * memory any more. */
    struct block *(*take_record)(struct segments *segments, const struct block *like);
    void (*put_record)(struct segments *segments, struct block *record);
    /* Whether a block in a tree may be cut now; NULL: always. */
    bool (*may_be_cut)(const struct segments *segments, const struct block *block);
};

struct segments {
    const struct segments_kind *kind;
    struct block_table *table;
    uint64_t small, large;       /* bytes of a driver's block for a segment of small, or of large
                                    parts */
    struct block *may_be_cut[2]; /* the trees: of small parts, and of large parts */
    uint64_t spare[2];           /* bytes of the spare pieces in each tree */
};

/* Returns the bytes to ask the driver for when a part of this many bytes is wanted. They are the
 * first of these that applies:
 * - a small segment, if two such parts fit into one
 * - a large segment, if two such parts fit into one
 * - segment_bytes_of_one(bytes), for a block that is not cut */
uint64_t segment_bytes_for(const struct segments *segments, uint64_t bytes);

/* Returns the bytes that the driver uses for a block that is not cut. From SEGMENT_PAGE on these
 * are whole pages. A smaller block takes only its own bytes, because it shares a page. */
uint64_t segment_bytes_of_one(uint64_t bytes);

/* Whether a part of this many bytes comes from a segment, which several parts share, and not from a
 * block of its own. */
bool segment_is_for_several(const struct segments *segments, uint64_t bytes);

/* Spare bytes in segments of the sort from which a part of this many bytes would be cut. */
uint64_t segments_spare_bytes(const struct segments *segments, uint64_t bytes);

/* segments_list adds a whole clean block to its tree, so that it may be cut. segments_unlist
 * removes the block from its tree. */
void segments_list(struct segments *segments, struct block *block);
void segments_unlist(struct segments *segments, struct block *block);

/* Returns the best fit for this many bytes, a multiple of SEGMENT_GRANULE; NULL: there is none. The
 * best fit is a spare piece or a whole block of at least so many bytes. It is in the tree of the
 * sort to which a part of this size belongs. anywhere: if that tree has none, a spare piece of the
 * other tree counts, too. A whole block of the other tree does not, because it can be released. */
struct block *segments_find(const struct segments *segments, uint64_t bytes, bool anywhere);

/* Cuts a part of this many bytes out of a block that segments_find has returned. A whole block
 * must have more bytes than that, and the caller has removed it from its tree and every list. The
 * returned part is still spare, but in no tree. Returns NULL where memory is short; nothing has
 * changed then. */
struct block *segments_cut(struct segments *segments, struct block *from, uint64_t bytes);

/* Makes the part, which is in no list, spare and merges it with its spare neighbours. If only spare
 * memory is left of the segment, returns the whole block, which is in no list; otherwise NULL. */
struct block *segments_merge(struct segments *segments, struct block *part);

#endif
