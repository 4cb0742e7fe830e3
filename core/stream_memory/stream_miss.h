/*
 * Misses of stream-ordered memory: asks the driver for memory, and does what helps where the driver
 * has none. Also hands out blocks of other streams that a search has found. No lock is held by the
 * callers.
 */
#ifndef CUDAPOOL_CORE_STREAM_MISS_H
#define CUDAPOOL_CORE_STREAM_MISS_H

#include <stddef.h>

#include "core/driver/cuda_abi.h"
#include "stream_search.h"
#include "stream_shelf.h"

/* Steps 4 to 6 of stream_heap.h. */
CUresult stream_miss(struct pool *pool, struct shelf *shelf, struct bucket *bucket,
                     CUdeviceptr *address, size_t requested, struct search *search);

/* Moves a block that a search has found to this shelf. Hands it, or a part that is cut out of it,
 * to the program. Returns the address. */
CUdeviceptr stream_adopt(const struct search *search, struct shelf *shelf, struct bucket *bucket,
                         struct stream_block *block, size_t bytes, enum hit hit);

#endif
