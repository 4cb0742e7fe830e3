/*
 * Forgets blocks that the pool has lost without releasing them to the driver. A block is lost when
 * its context ends, when someone frees it without the pool, or when the driver gives its address to
 * another allocation.
 *
 * These functions make no driver call. Callers do not hold the heap's lock; the functions take it.
 */
#ifndef CUDAPOOL_CORE_LOST_H
#define CUDAPOOL_CORE_LOST_H

#include <stdbool.h>

#include "heap.h"

/* Called before (ending) and after (not ending) a driver call that may end the context. In between,
 * the driver answers every allocation, since the heap's blocks may no longer exist. */
void heap_set_ending(struct heap *heap, bool ending);

/* Forgets all blocks, since their memory ended with the context. The counters of buckets stay, and
 * each lost block is counted as an eviction. */
void heap_reset(struct pool *pool, struct context *context);

/* Someone is about to free this address without the pool: forgets a live block there. Returns false
 * where nobody may free the address. Either the block is free already, or it is a part of a
 * segment, which the driver cannot free. Returns true for an address that the pool does not
 * know. */
bool heap_freed_outside(struct pool *pool, CUdeviceptr address);

/* Forgets the block that the pool has recorded at this address, unless it is a part of a segment.
 * The driver has just given the address out, so someone freed the block without the pool. */
void heap_forget_address(struct pool *pool, CUdeviceptr address);

#endif
