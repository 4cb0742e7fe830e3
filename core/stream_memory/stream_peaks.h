/*
 * Peaks of stream-ordered memory: the most that the program held, and the most that the pool had
 * taken from the driver, since the program last reset the peaks (cudapool_reset_peaks).
 *
 * The peak of what the program held is exact where one stream of a memory pool is in use. With more
 * streams it is too low by at most SHELF_STEP for each stream. Each shelf has one peak, which
 * serves the attributes of memory pools as well. Whoever resets it first notes its value for the
 * other use. No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_STREAM_PEAKS_H
#define CUDAPOOL_CORE_STREAM_PEAKS_H

struct device;
struct kept_peaks;
struct pool;

void stream_peaks_add(struct pool *pool, struct device *device, struct kept_peaks *sum);
void stream_peaks_start_again(struct pool *pool, struct device *device);

#endif
