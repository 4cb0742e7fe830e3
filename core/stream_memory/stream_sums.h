/*
 * Sums over all streams. A sum may be inexact, since other threads allocate and free while it is
 * computed. The callers hold no lock.
 */
#ifndef CUDAPOOL_CORE_STREAM_SUMS_H
#define CUDAPOOL_CORE_STREAM_SUMS_H

#include <stdint.h>

#include "streams.h"

/* Bytes of stream-ordered blocks. live: held by the program. cached: free and unused. pending:
 * free, but perhaps still used by the GPU. */
struct stream_bytes {
    uint64_t live, cached, pending;
    uint64_t requested; /* bytes that the program asked for in its live blocks */
    uint64_t spare;     /* bytes of segments that lie in no block */
};

/* Returns the sum over one device; NULL: over all devices. */
struct stream_bytes stream_sum(struct pool *pool, const struct device *device);

#endif
