/*
 * Parts: the heap's blocks that are cut out of segments (core/segments), with the policy split.
 *
 * A part that is live, pending or in a thread's cache is a block of its bucket like any other. A
 * part that is clean and in no cache returns to its segment at once. That costs no driver call, and
 * sizes that never recur leave nothing cached. A clean whole block is in its bucket's list, to be
 * handed out, cut, or released like every block of the driver's own. So only whole blocks are
 * released to the driver. Only cutting (here), merging (heap_add_clean), misses and frees know of
 * segments.
 *
 * Spare memory counts as reserved, free and clean, in the counters of the bucket unkept.
 *
 *   counters->segments.spare_bytes = bytes of all BLOCK_SPARE records, heads of segments included
 *
 * The driver does not know parts: it must never be asked to free one. Callers hold the heap lock.
 */
#ifndef CUDAPOOL_CORE_PARTS_H
#define CUDAPOOL_CORE_PARTS_H

#include "heap.h"

/* Cuts a block of the bucket out of clean memory, and returns it as if it was just taken out of a
 * thread's cache. A clean whole block of just this size is returned uncut, still in its list. NULL
 * where nothing is large enough, or memory for records is short. anywhere: the driver has no
 * memory, so small parts may lie among large ones. */
struct block *heap_cut(struct heap *heap, struct bucket *bucket, bool anywhere);

/* Cuts a block of the bucket out of whole, a block of the driver's that is in no list, and reserved
 * and nothing else. Returns it as heap_cut does. */
struct block *heap_cut_new(struct heap *heap, struct block *whole, struct bucket *bucket);

/* Free bytes in segments of which something is in use. They can't be released to the driver before
 * that is freed. The longest piece does not count, since it may serve a request. */
uint64_t heap_stuck_bytes(struct heap *heap);

#endif
