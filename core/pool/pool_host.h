/*
 * What the front asks of pinned host memory where it asks all kinds about a pointer.
 */
#ifndef CUDAPOOL_CORE_POOL_HOST_H
#define CUDAPOOL_CORE_POOL_HOST_H

#include "pool.h"

/* False where the pointer is in no block of the kind's. */
bool pool_ask_host_pointer(struct pool *pool, CUdeviceptr pointer, struct pointer_answer *answer);

/* The number of the present life of the live block at this address; 0: there is none. */
uint64_t pool_name_host(struct pool *pool, CUdeviceptr base);

/* The driver is to free the live block at this address one day. False: there is none. */
bool pool_share_host(struct pool *pool, CUdeviceptr base);

#endif
