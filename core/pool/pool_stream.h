/*
 * Stream-ordered memory where an address may be either kind's. No lock held.
 */
#ifndef CUDAPOOL_CORE_POOL_STREAM_H
#define CUDAPOOL_CORE_POOL_STREAM_H

#include <stdbool.h>

#include "core/contexts/capture.h"
#include "core/stream_memory/streams.h"
#include "pool.h"

/* False: the address is not that of a stream-ordered block. */
bool pool_stream_free(struct pool *pool, CUdeviceptr address, CUresult *result);
bool pool_stream_free_async(struct pool *pool, free_async *driver, CUdeviceptr address,
                            CUstream stream, CUresult *result);

/* Whether the program's calls are answered by the pool now: not where it is switched off, and not
 * while captures go on, when only the driver knows which calls they forbid. */
static inline bool pool_streams_are_served(const struct pool *pool)
{
    return streams_of(pool) && !program_captures(&pool->captures);
}

#endif
