/*
 * Sums over all streams, and their peaks. A sum may be inexact, since other threads allocate and
 * free while it is computed. The callers hold no lock.
 */
#ifndef CUDAPOOL_CORE_STREAM_SUMS_H
#define CUDAPOOL_CORE_STREAM_SUMS_H

#include <stdint.h>

#include "streams.h"

/* Bytes of stream-ordered blocks. live: held by the program. cached: free and unused. pending:
 * free, but perhaps still used by the GPU. Of segments, which the driver cannot free: spare, in no
 * block; waiting, in parts that were freed and may still be used. */
struct stream_bytes {
    uint64_t live, cached, pending, spare, waiting;
    uint64_t requested; /* bytes that the program asked for in its live blocks */
};

/* Returns the sum over one device; NULL: over all devices. */
struct stream_bytes stream_sum(struct pool *pool, const struct device *device);

/* ---- peaks: since the program last reset them (cudapool_reset_peaks) ---- */

struct kept_peaks;

/* Adds the most that the program held of stream-ordered memory, and the most that the pool had
 * taken from the driver. What the program held is exact where one stream of a memory pool is in
 * use. With more streams it is too low by at most SHELF_STEP for each stream. */
void stream_peaks_add(struct pool *pool, struct device *device, struct kept_peaks *sum);

/* Resets both peaks to the present. Each shelf has one peak, which serves the attributes of memory
 * pools as well, so its value is noted for these first. */
void stream_peaks_start_again(struct pool *pool, struct device *device);

#endif
