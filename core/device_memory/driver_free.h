/*
 * Frees that the driver answers: frees of single live blocks, and frees of all pending blocks in a
 * context where no fence can be recorded.
 *
 * A block's record leaves the table before the driver is called: the driver may give the address to
 * another thread as soon as the call returns. The caller holds no lock.
 */
#ifndef CUDAPOOL_CORE_DRIVER_FREE_H
#define CUDAPOOL_CORE_DRIVER_FREE_H

#include <stdbool.h>

#include "heap.h"

/* Calls the driver function by which the program frees this address. */
typedef CUresult heap_release(struct pool *pool, CUdeviceptr address, void *argument);

/* Lets the driver free a live block by `release`, the call that the program made. A part, which the
 * driver does not know, becomes pending instead, and nothing waits. */
CUresult heap_free_by_driver(struct pool *pool, struct block *block, CUdeviceptr address,
                             heap_release *release, void *argument);

/* Frees everything pending in the context by the driver's cuMemFree, which waits for the context's
 * work. Used where no fence can be recorded, for good or while captures are under way. Does nothing
 * while a capture forbids the driver's free. Parts stay pending until the context ends. */
void heap_free_pending(struct pool *pool, struct context *context);

/* Does the work of heap_free_pending outside of the program's free, where the driver's free must
 * not wait for ever. Does nothing if some of the context's work is known to end only by the host.
 * No such work is submitted meanwhile. */
void heap_free_pending_of_no_host(struct pool *pool, struct context *context);

/* ---- blocks that were freed past the pool ----
 *
 * Forgets blocks that the pool has lost without releasing them to the driver. A block is lost when
 * its context ends, when someone frees it without the pool, or when the driver gives its address to
 * another allocation.
 *
 * These functions make no driver call. Callers do not hold the heap's lock; the functions take it.
 */

/* Called before (ending) and after (not ending) a driver call that may end the context. In between,
 * the driver answers every allocation, since the heap's blocks may no longer exist. */
void heap_set_ending(struct context *context, bool ending);

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
