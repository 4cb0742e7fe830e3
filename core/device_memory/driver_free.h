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

/* Lets the driver free a live block: the plain call. */
CUresult heap_free_by_driver(struct pool *pool, struct block *block, CUdeviceptr address,
                             heap_release *release, void *argument);

/* In a context that no fence can be had for any more: what is pending goes as it would have gone
 * without the pool, inside the program's own free. */
void heap_free_pending(struct pool *pool, struct context *context);

#endif
