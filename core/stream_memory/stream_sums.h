/*
 * Sums over streams. They are snapshots: other threads allocate and free meanwhile. No lock is held
 * by the callers.
 */
#ifndef CUDAPOOL_CORE_STREAM_SUMS_H
#define CUDAPOOL_CORE_STREAM_SUMS_H

#include <stdint.h>

#include "streams.h"

/* Bytes of stream-ordered blocks, of one device or (NULL) all. */
struct stream_bytes {
    uint64_t live, cached, pending;
    uint64_t requested; /* of the live ones, as asked for */
    uint64_t spare;     /* of segments, in no block */
};
struct stream_bytes stream_sum(struct pool *pool, const struct device *device);

#endif
