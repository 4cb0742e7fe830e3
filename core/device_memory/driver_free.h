/*
 * Frees that the driver answers: of single live blocks, and of all that is pending in a context
 * that no fence can be had for.
 *
 * The record is out of the way before the driver is called, since the address may be another's as
 * soon as it returns. Called without a lock.
 */
#ifndef CUDAPOOL_CORE_DRIVER_FREE_H
#define CUDAPOOL_CORE_DRIVER_FREE_H

#include "heap.h"

/* The driver's call that the program made to free this address. */
typedef CUresult heap_release(struct pool *pool, CUdeviceptr address, void *argument);

/* Lets the driver free a live block: the plain call. A part, of which the driver knows nothing,
 * becomes pending instead, and waits for nothing. */
CUresult heap_free_by_driver(struct pool *pool, struct block *block, CUdeviceptr address,
                             heap_release *release, void *argument);

/* In a context that no fence can be had for, any more or while captures go on: what is pending goes
 * as it would have gone without the pool. The driver waits for the context's work. Nothing where a
 * capture would mind. Parts stay until the context ends. */
void heap_free_pending(struct pool *pool, struct context *context);

/* The same outside of a free, which the driver's free is not to hold up for ever: nothing where
 * some of the context's work is known to end only by the host; none such is submitted meanwhile. */
void heap_free_pending_of_no_host(struct pool *pool, struct context *context);

#endif
