/*
 * The most that the program held of stream-ordered memory, and the pool of the driver's, since the
 * program began these peaks anew (cudapool_reset_peaks).
 *
 * What it held is exact where one stream of a memory pool is in use, and else no more than
 * SHELF_STEP of each stream too little. The shelves have one peak each, which serves the attributes
 * of memory pools as well: whoever begins it anew first notes it for the other. No lock is held by
 * the callers.
 */
#ifndef CUDAPOOL_CORE_STREAM_PEAKS_H
#define CUDAPOOL_CORE_STREAM_PEAKS_H

struct device;
struct kept_peaks;
struct pool;

void stream_peaks_add(struct pool *pool, struct device *device, struct kept_peaks *sum);
void stream_peaks_start_again(struct pool *pool, struct device *device);

#endif
