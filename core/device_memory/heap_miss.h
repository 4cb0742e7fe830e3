/*
 * Misses: the pool asks the driver for a block that it does not have. This is rung 5 of the ladder
 * (ladder.h).
 *
 * A miss first makes room for its block inside the reserve's ratio (release.h). It then takes the
 * steps of core/reclaim/miss.h, and records the block that the driver returned.
 */
#ifndef CUDAPOOL_CORE_HEAP_MISS_H
#define CUDAPOOL_CORE_HEAP_MISS_H

#include <stddef.h>

#include "core/reclaim/miss.h"
#include "heap.h"

/* Gets a new block of the bucket. With the policy split, the block is cut out of a larger one that
 * the driver returned. The context is current. Heap lock held; the function releases it. */
CUresult heap_miss(struct pool *pool, struct context *context, struct bucket *bucket,
                   CUdeviceptr *address, size_t requested);

/* Gets a new block of the bucket that is a driver allocation of its own, whatever the policy. The
 * context is current. Heap lock held; the function releases it. */
CUresult heap_miss_alone(struct pool *pool, struct context *context, struct bucket *bucket,
                         CUdeviceptr *address, size_t requested);

/* Gets an uncached block straight from the driver, in the caller's capture mode. The pool keeps a
 * record of it. If the driver has no memory and the policy is split, the block is cut out of clean
 * memory. No lock held. */
CUresult heap_allocate_unkept(struct pool *pool, struct context *context, CUdeviceptr *address,
                              size_t bytes);

/* Records, as an uncached block, the memory of a miss that called another driver function. bytes:
 * the size of that memory. The miss had reserved miss->bytes, and this function corrects the
 * reservation. */
void heap_adopt(struct miss *miss, size_t bytes);

#endif
