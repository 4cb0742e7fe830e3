/*
 * Releases cached memory to make room for managed memory (cuMemAllocManaged).
 *
 * The driver grants managed memory without testing whether the device has room. Its pages move to
 * the device when a kernel touches them, as many as fit. Accesses to the other pages make the
 * kernel wait for the host. So a program never gets an out-of-memory error from managed memory, but
 * becomes slow. Memory that the pool caches must not be the cause. There are three rules:
 * - Before such an allocation, clean blocks are released as far as the device has less free than
 *   the allocation asks for, as the driver says.
 * - They are also released as far as device_resident + managed_bytes > total_bytes of the device.
 * - While managed memory exists, managed_in_the_way tells housekeeping of this excess, since the
 *   program may touch the memory at any time. A small part may always stay cached.
 *
 * Nothing waits here: without the pool the allocation would not have waited either.
 *
 * No lock. Any thread may call these functions, with none of the pool's locks held.
 */
#ifndef CUDAPOOL_CORE_MANAGED_H
#define CUDAPOOL_CORE_MANAGED_H

#include <stdbool.h>
#include <stdint.h>

#include "core/contexts/context.h"
#include "core/driver/cuda_abi.h"

struct pool;

/* managed_about_to_allocate is called before cuMemAllocManaged in the current context, and releases
 * what it needs. managed_allocated is called after cuMemAllocManaged has succeeded, and counts the
 * bytes. */
void managed_about_to_allocate(struct pool *pool, size_t bytes);
void managed_allocated(struct pool *pool, size_t bytes);

/* managed_find is called before the driver frees memory that is not the pool's, and managed_freed
 * after it. */
struct managed_memory {
    struct device *device; /* NULL: the address is not counted managed memory */
    uint64_t bytes;
};
struct managed_memory managed_find(struct pool *pool, CUdeviceptr address);
void managed_freed(const struct managed_memory *memory);

static inline uint64_t managed_bytes(const struct device *device)
{
    return atomic_load_explicit(&device->managed_bytes, memory_order_relaxed);
}

/* Returns how far device_resident + managed_bytes exceeds the device's memory. */
uint64_t managed_excess(const struct device *device);

/* Whether managed_excess is not 0. Every slow free calls this, and most processes have no managed
 * memory. */
static inline bool managed_is_crowded(const struct device *device)
{
    return managed_bytes(device) != 0 && managed_excess(device) != 0;
}

/* Returns how many of the kept bytes should be released because of managed_excess. */
uint64_t managed_in_the_way(const struct device *device, uint64_t kept);

/* Releases these bytes of all kinds of memory, for kinds that do so in no other way. */
void managed_make_way(struct pool *pool, struct device *device);

#endif
