/*
 * The questions about pinned host memory that pool_pointers.c asks when it looks for a pointer in
 * all kinds of memory. The functions that the hooks call are in pool.h.
 */
#ifndef CUDAPOOL_CORE_POOL_HOST_H
#define CUDAPOOL_CORE_POOL_HOST_H

#include "pool.h"

/* False where the pointer lies in no pinned block. */
bool pool_ask_host_pointer(struct pool *pool, CUdeviceptr pointer, struct pointer_answer *answer);

/* The number of the current life of the live block at this address; 0: there is no such block. */
uint64_t pool_name_host(struct pool *pool, CUdeviceptr base);

/* Marks the live block at this address as shared, so that the driver frees it. False: there is no
 * such block. */
bool pool_share_host(struct pool *pool, CUdeviceptr base);

#endif
