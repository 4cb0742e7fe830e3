/*
 * Stream-ordered memory where an address may be either kind's. No lock held.
 */
#ifndef CUDAPOOL_CORE_POOL_STREAM_H
#define CUDAPOOL_CORE_POOL_STREAM_H

#include <stdbool.h>

#include "pool.h"

/* False: the address is not that of a stream-ordered block. */
bool pool_stream_free(struct pool *pool, CUdeviceptr address, CUresult *result);
bool pool_stream_free_async(struct pool *pool, free_async *driver, CUdeviceptr address,
                            CUstream stream, CUresult *result);

/* False: the pointer is not inside a stream-ordered block. */
bool pool_stream_ask_pointer(struct pool *pool, CUdeviceptr pointer, struct pointer_answer *answer);
bool pool_stream_share(struct pool *pool, CUdeviceptr base);

#endif
