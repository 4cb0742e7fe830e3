/*
 * Room for managed memory (cuMemAllocManaged).
 *
 * The driver gives managed memory out without asking whether the device has room: its pages come to
 * the device when a kernel touches them, as many as fit, and the others make the kernel wait for
 * the host. So a program never runs out of it and never says so, it only becomes slow. What the
 * pool keeps must not be what takes that room. Two rules, and a third for what comes later:
 * - before such an allocation, clean blocks go back as far as the device has less free than it asks
 *   for, as the driver tells it;
 * - and as far as what the pool holds and the process's managed memory together are more than the
 *   device has;
 * - managed_in_the_way tells the pool's housekeeping of the latter while the memory lives, since it
 *   may be touched at any time. A small part may always stay.
 * Nothing is waited for: without the pool the allocation would not have waited either.
 *
 * No lock. Any thread calls these, with none of the pool's locks held.
 */
#ifndef CUDAPOOL_CORE_MANAGED_H
#define CUDAPOOL_CORE_MANAGED_H

#include <stdbool.h>
#include <stdint.h>

#include "core/contexts/context.h"
#include "core/driver/cuda_abi.h"

struct pool;

/* Before cuMemAllocManaged in the current context, which never says that there is no room, and
 * after it has succeeded. */
void managed_coming(struct pool *pool, size_t bytes);
void managed_came(struct pool *pool, size_t bytes);

/* Around the driver's free of what is not the pool's. */
struct managed_memory {
    struct device *device; /* NULL: the address is not managed memory that was counted */
    uint64_t bytes;
};
struct managed_memory managed_find(struct pool *pool, CUdeviceptr address);
void managed_freed(const struct managed_memory *memory);

static inline uint64_t managed_bytes(const struct device *device)
{
    return atomic_load_explicit(&device->managed_bytes, memory_order_relaxed);
}

/* Bytes by which what the pool has taken from the driver and the process's managed memory are more
 * than the device has. */
uint64_t managed_excess(const struct device *device);

/* Whether there are any. Every slow free asks; most processes have no managed memory. */
static inline bool managed_is_crowded(const struct device *device)
{
    return managed_bytes(device) != 0 && managed_excess(device) != 0;
}

/* How many of the kept bytes should go for that. */
uint64_t managed_in_the_way(const struct device *device, uint64_t kept);

#endif
