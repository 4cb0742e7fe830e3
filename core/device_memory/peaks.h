/*
 * The most that the program held of device memory, and the pool of the driver's, since the program
 * began these peaks anew (cudapool_reset_peaks). They are noted with the others of the heap
 * (heap_note_requested), and followed by nobody: the bound on the reserve and the report have peaks
 * of their own, which last. No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_PEAKS_H
#define CUDAPOOL_CORE_PEAKS_H

struct device;
struct kept_peaks;
struct pool;

/* Of all contexts of the device, each by itself. */
void heap_peaks_add(struct pool *pool, struct device *device, struct kept_peaks *sum);
void heap_peaks_start_again(struct pool *pool, struct device *device);

#endif
