/*
 * New blocks of pinned memory, made by the driver. Callers hold no lock.
 */
#ifndef CUDAPOOL_CORE_HOST_MISS_H
#define CUDAPOOL_CORE_HOST_MISS_H

#include "host_allocate.h"

/* Makes the driver's own call for exactly what the program asks for. The pool records nothing.
 * Where the driver is out of memory, cached memory is released and the call is made again. */
CUresult host_ask_driver(struct pool *pool, const struct host_request *request);

/* Makes a block of this key for the request. key 0: a block that the driver frees when the program
 * does. Its context is current. */
CUresult host_miss(struct pool *pool, struct host_heap *heap, uint64_t key,
                   const struct host_request *request);

#endif
