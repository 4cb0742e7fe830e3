/*
 * Frees that the driver answers: frees of single live blocks, and frees of all pending blocks in a
 * context where no fence can be recorded.
 *
 * A block's record leaves the table before the driver is called: the driver may give the address to
 * another thread as soon as the call returns. The caller holds no lock.
 */
#ifndef CUDAPOOL_CORE_DRIVER_FREE_H
#define CUDAPOOL_CORE_DRIVER_FREE_H

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

#endif
