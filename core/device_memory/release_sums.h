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

#endif
