/*
 * Sums over the heaps of all contexts of a device, or of all devices where device is NULL.
 *
 * The last three are functions of struct kind (kind.h). Callers hold no lock.
 */
#ifndef CUDAPOOL_CORE_RELEASE_SUMS_H
#define CUDAPOOL_CORE_RELEASE_SUMS_H

#include <stdint.h>

#include "sums.h"

struct device;
struct kept_bytes;
struct pool;

struct heap_bytes release_sum(struct pool *pool, struct device *device);
uint64_t release_changes(struct pool *pool, struct device *device);
uint64_t release_returnable(struct pool *pool, struct device *device);
void release_add_kept(struct pool *pool, struct device *device, struct kept_bytes *sum);

/* ---- peaks ----
 *
 * The most device memory that the program held, and the most that the pool had reserved, since the
 * program last reset these peaks (cudapool_reset_peaks).
 *
 * heap_note_requested raises them together with the heap's other peaks. No decision follows them:
 * the bound on the reserve and the report use lasting peaks of their own. Callers hold no lock.
 */

struct device;
struct kept_peaks;
struct pool;

/* Add and reset the peaks of all contexts of the device. Each context's peak may be of another
 * moment. */
void heap_peaks_add(struct pool *pool, struct device *device, struct kept_peaks *sum);
void heap_peaks_start_again(struct pool *pool, struct device *device);

#endif
