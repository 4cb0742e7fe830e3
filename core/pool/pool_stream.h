/*
 * Frees of stream-ordered memory, for callers that do not know which kind of memory an address
 * belongs to. No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_POOL_STREAM_H
#define CUDAPOOL_CORE_POOL_STREAM_H

#include <stdbool.h>

#include "core/contexts/capture.h"
#include "core/stream_memory/streams.h"
#include "pool.h"

/* False: there is no stream-ordered block at the address. */
bool pool_stream_free(struct pool *pool, CUdeviceptr address, CUresult *result);
bool pool_stream_free_async(struct pool *pool, free_async *driver, CUdeviceptr address,
                            CUstream stream, CUresult *result);

/* Whether the pool answers the program's stream-ordered calls now. It does not where it is switched
 * off. Nor does it while captures are under way, when only the driver knows which calls they
 * forbid. */
static inline bool pool_streams_are_served(const struct pool *pool)
{
    return streams_of(pool) && !program_captures(&pool->captures);
}

#endif
