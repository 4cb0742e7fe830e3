/*
 * What pool.c asks of stream-ordered memory: the same calls for addresses that may be either
 * kind's. No lock held.
 */
#ifndef CUDAPOOL_CORE_STREAM_POOL_H
#define CUDAPOOL_CORE_STREAM_POOL_H

#include <stdbool.h>

#include "core/pool/pool.h"

/* For a new pool: stream-ordered memory as the settings and the driver allow it. False where memory
 * is short. */
bool stream_pool_start(struct pool *pool);

/* False: the address is not that of a stream-ordered block. */
bool stream_pool_free(struct pool *pool, CUdeviceptr address, CUresult *result);
bool stream_pool_free_async(struct pool *pool, free_async *driver, CUdeviceptr address,
                            CUstream stream, CUresult *result);

/* False: the pointer is not inside a stream-ordered block. */
bool stream_pool_ask_pointer(struct pool *pool, CUdeviceptr pointer, struct pointer_answer *answer);
bool stream_pool_share(struct pool *pool, CUdeviceptr base);

#endif
