/*
 * Misses: memory from the driver, and what is done where it has none; and blocks of other streams
 * that have been found for a request. No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_STREAM_MISS_H
#define CUDAPOOL_CORE_STREAM_MISS_H

#include <stddef.h>

#include "core/driver/cuda_abi.h"
#include "stream_search.h"
#include "stream_shelf.h"

/* Steps 5 to 7 of stream_heap.h. */
CUresult stream_miss(struct pool *pool, struct shelf *shelf, struct bucket *bucket,
                     CUdeviceptr *address, size_t requested, struct search *search);

/* A block that was found elsewhere is this shelf's from now on, and the program's: it, or what is
 * cut out of it. The address. */
CUdeviceptr stream_adopt(const struct search *search, struct shelf *shelf, struct bucket *bucket,
                         struct stream_block *block, size_t bytes, enum hit hit);

#endif
