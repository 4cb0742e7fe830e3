/*
 * Devices that the pool knows. They are made known when they are first used, and stay.
 */
#ifndef CUDAPOOL_CORE_DEVICE_H
#define CUDAPOOL_CORE_DEVICE_H

#include "pool_state.h"

/* The device with this ordinal, made known if it was not; NULL where that is not possible. */
struct device *context_device(struct pool *pool, CUdevice ordinal);

/* What may be freed without a fence of its own. */
static inline uint64_t device_fence_bytes(const struct device *device)
{
    return atomic_load_explicit(&device->fence_bytes, memory_order_relaxed);
}

/* Whether memory is short on the device. */
void device_set_short(struct device *device, bool is_short);
static inline bool device_is_short(const struct device *device)
{
    return atomic_load_explicit(&device->is_short, memory_order_relaxed);
}

#endif
