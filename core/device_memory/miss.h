/*
 * Misses: what the pool has no block for, the driver is asked for. Rung 5 of the ladder (ladder.h).
 *
 * A miss makes room (the reserve's ratio, the hard limit), asks the driver without a lock, has
 * memory given back and asks again while the driver is out of it (release.h), falls back to the
 * exact size where only that fits, and records what came. Called without the heap's lock.
 */
#ifndef CUDAPOOL_CORE_MISS_H
#define CUDAPOOL_CORE_MISS_H

#include <stddef.h>
#include <stdint.h>

#include "heap.h"

/* A new block of the bucket. bytes: the bucket's, or as requested for the bucket of blocks that
 * are not kept. The context is current. */
CUresult heap_miss(struct pool *pool, struct context *context, struct bucket *bucket,
                   CUdeviceptr *address, uint64_t bytes, size_t requested);

/* The same without the pool's help: straight from the driver, in the caller's capture mode, but
 * known to the pool. */
CUresult heap_allocate_unkept(struct pool *pool, struct context *context, CUdeviceptr *address,
                              size_t bytes);

/* Takes note of memory that the driver just gave for the program, as memory that is not kept.
 * generation: the context's before the driver was asked. reserved: as many bytes have been taken
 * into the device's reserved bytes already. */
void heap_adopt(struct pool *pool, struct context *context, uint64_t generation,
                CUdeviceptr address, size_t bytes, size_t reserved);

#endif
