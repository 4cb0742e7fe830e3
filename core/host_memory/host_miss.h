/*
 * New blocks of pinned memory, from the driver. No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_HOST_MISS_H
#define CUDAPOOL_CORE_HOST_MISS_H

#include "host_allocate.h"

/* The driver's own call, of exactly what the program asks for; nothing is recorded. Where there is
 * no memory, what is cached goes back, and it is made again. */
CUresult host_ask_driver(struct pool *pool, const struct host_request *request);

/* A block of that key; 0: one that goes to the driver when it is freed. Its context is current. */
CUresult host_miss(struct pool *pool, struct host_heap *heap, uint64_t key,
                   const struct host_request *request);

#endif
