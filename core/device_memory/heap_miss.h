/*
 * Misses: what the pool has no block for, the driver is asked for. Rung 5 of the ladder (ladder.h).
 *
 * A miss makes room for its block in the reserve's ratio (release.h), takes the steps of
 * core/reclaim/miss.h, and records what came. Called without the heap's lock.
 */
#ifndef CUDAPOOL_CORE_HEAP_MISS_H
#define CUDAPOOL_CORE_HEAP_MISS_H

#include <stddef.h>

#include "core/reclaim/miss.h"
#include "heap.h"

/* A new block of the bucket; with the policy split, one that is cut out of what the driver gives.
 * The context is current. */
CUresult heap_miss(struct pool *pool, struct context *context, struct bucket *bucket,
                   CUdeviceptr *address, size_t requested);

/* The same, and a block of the driver's own whatever the policy. */
CUresult heap_miss_alone(struct pool *pool, struct context *context, struct bucket *bucket,
                         CUdeviceptr *address, size_t requested);

/* A block that is not kept: straight from the driver, in the caller's capture mode, but known to
 * the pool; where the driver has nothing, one that is cut out of what is clean. */
CUresult heap_allocate_unkept(struct pool *pool, struct context *context, CUdeviceptr *address,
                              size_t bytes);

/* Takes note of the memory that a miss has brought which asked the driver in another way, as memory
 * that is not kept. bytes: of it, where miss->bytes were reserved. */
void heap_adopt(struct miss *miss, size_t bytes);

#endif
