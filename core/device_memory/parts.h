/*
 * Parts: the heap's blocks that are cut out of segments (core/segments), with the policy split.
 *
 * A part is a block of its bucket like any other while it is live, pending or in a thread's cache.
 * Once it is clean and in no cache it goes back to its segment, at once: that costs no call of the
 * driver's, and sizes that never come back leave nothing behind. A whole block that is clean is in
 * its bucket's list, to be handed out, cut, or given back like every block of the driver's own; so
 * what goes back to the driver is whole, and only cutting (here), merging (heap_add_clean), misses
 * and frees know of segments.
 *
 * Spare memory counts as reserved, free and clean in the row of what has no bucket.
 *
 *   counters->segments.spare_bytes = bytes of all BLOCK_SPARE records, heads of segments included
 *
 * The driver knows nothing of a part: it must never be asked to free one. The heap lock is held.
 */
#ifndef CUDAPOOL_CORE_PARTS_H
#define CUDAPOOL_CORE_PARTS_H

#include "heap.h"

/* A block of the bucket out of what is clean, as if it had just been taken out of a thread's cache;
 * NULL where nothing is large enough, or memory is short. anywhere: the driver has no memory, so
 * that small ones may lie among large ones. */
struct block *heap_cut(struct heap *heap, struct bucket *bucket, bool anywhere);

/* The same out of a whole block of the driver's, in no list, that is reserved and nothing else. */
struct block *heap_cut_new(struct heap *heap, struct block *whole, struct bucket *bucket);

/* Bytes that are free in segments of which something is in use: they do not go back to the driver
 * before that is freed. Without the longest piece, which may serve a request. */
uint64_t heap_stuck_bytes(struct heap *heap);

#endif
