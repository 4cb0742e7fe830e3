/*
 * Segments: blocks of the driver's that are cut into parts, and merged again.
 *
 * A whole block of the driver's that is clean may be cut. It is then a segment:
 *
 *   | head | part | spare | part | part | spare |
 *
 * All of it is of one sort, small or large (enum block_part), by the first block that it was cut
 * for. Each of these has a record, in the table like every other, and is linked to its neighbours.
 * A part is a block like any other: live, pending, in a cache. What is between parts is spare, and
 * two spare ones are never neighbours. Parts that are clean become spare and merge with spare
 * neighbours; where nothing but spare memory is left, the segment is a whole block again.
 *
 *   bytes of a segment = sum of the bytes of all its records
 *   a record's below and above are its neighbours by address; the head has none below
 *
 * The head is what no part may begin with: a library that goes past the pool could free a block
 * that begins where the driver's does, and with it all others that are cut out of the same one.
 *
 * What may be cut, whole or spare, is in one of two trees by size and address, small and large
 * apart, and the smallest that is large enough is taken, of those the one with the lowest address
 * (best fit). The trees are treaps (Seidel and Aragon, 1996): a heap by a number that is made of
 * the record's address, and so, in the mean, balanced. A spare part is in its tree through its heap
 * link, a whole block, which has no neighbours, through the links to these: so it may be in a list
 * of its kind's as well.
 *
 * A spare part bears the newest stamp of what was merged into it, and so do the whole block, and
 * what is cut out of it.
 *
 * Which memory that is, whose records these are and which lock guards them is the business of the
 * kind (struct segments_kind). It counts the figures, and calls the driver.
 */
#ifndef CUDAPOOL_CORE_SEGMENTS_H
#define CUDAPOOL_CORE_SEGMENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/blocks/block.h"

/* Sizes of parts, and of what is made to be cut, are multiples of these. */
#define SEGMENT_GRANULE UINT64_C(512)
#define SEGMENT_PAGE    (UINT64_C(2) << 20)
#define SEGMENT_HEAD    SEGMENT_GRANULE

struct segments;

/* What a kind of memory does for its segments. The lock is held. */
struct segments_kind {
    enum lock_rank lock; /* that guards them */
    /* A record for more memory of the same block of the driver's as this one's; NULL where memory
     * is short. And one that stands for none any more. */
    struct block *(*take_record)(struct segments *segments, const struct block *like);
    void (*put_record)(struct segments *segments, struct block *record);
    /* Whether what is in a tree may be cut now; NULL: always. */
    bool (*may_be_cut)(const struct segments *segments, const struct block *block);
};

struct segments {
    const struct segments_kind *kind;
    struct block_table *table;
    uint64_t small, large;       /* bytes that the driver is asked for to be cut */
    struct block *may_be_cut[2]; /* the trees: of small ones, and of large ones */
    uint64_t spare[2];           /* bytes of the spare parts in them */
};

/* Bytes to ask the driver for where a part of so many is wanted: of a small one's segment, if two
 * such parts fit there; or else of a large one's, likewise; or else whole pages, which the one
 * block takes alone. */
uint64_t segment_bytes_for(const struct segments *segments, uint64_t bytes);

/* For the one block alone, as the driver itself would take it: whole pages, or its share of one. */
uint64_t segment_bytes_of_one(uint64_t bytes);

/* Whether that is a small or a large one, out of which others get parts as well. */
bool segment_is_for_several(const struct segments *segments, uint64_t bytes);

/* What is spare in segments of which a part of so many bytes would be cut. */
uint64_t segments_spare_bytes(const struct segments *segments, uint64_t bytes);

/* A whole clean block may be cut from now on; and may not any more. */
void segments_list(struct segments *segments, struct block *block);
void segments_unlist(struct segments *segments, struct block *block);

/* The best fit for so many bytes, a multiple of SEGMENT_GRANULE: a spare part, or a whole block of
 * more bytes, or of just as many; NULL: there is none. anywhere: where there is none of its own,
 * for a small one also a large spare part, and the other way; no whole block, which can go back. */
struct block *segments_find(const struct segments *segments, uint64_t bytes, bool anywhere);

/* Cuts a part of so many bytes out of what segments_find has found, a whole block of more bytes
 * having been taken off every list. The part is spare still, but in no tree. NULL where memory is
 * short: then all is as before. */
struct block *segments_cut(struct segments *segments, struct block *from, uint64_t bytes);

/* A part that is in no list becomes spare and merges with its neighbours. The whole block, in no
 * list, where nothing else is left of the segment; or else NULL. */
struct block *segments_merge(struct segments *segments, struct block *part);

#endif
