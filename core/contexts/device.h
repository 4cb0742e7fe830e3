/*
 * The devices that the pool knows. A device is made known when it is first used, and stays known.
 */
#ifndef CUDAPOOL_CORE_DEVICE_H
#define CUDAPOOL_CORE_DEVICE_H

#include "core/base/numbers.h"
#include "core/board/board.h"
#include "pool_state.h"

/* Finds the device with this ordinal, or makes it known. NULL where that is not possible. */
struct device *context_device(struct pool *pool, CUdevice ordinal);

/* Bytes that may be freed before a fence is due. */
static inline uint64_t device_fence_bytes(const struct device *device)
{
    return atomic_load_explicit(&device->fence_bytes, memory_order_relaxed);
}

/* Add bytes to what the board says this process holds, and subtract them. The board's number
 * follows reserved_bytes. device_group_take returns false, and adds nothing, past the group's
 * limit. */
static inline bool device_group_take(struct device *device, uint64_t bytes)
{
    return !device->board ||
           board_group_take(device->board, device->board_place, bytes, device->group_limit);
}

static inline void device_group_give(struct device *device, uint64_t bytes)
{
    if (device->board)
        board_group_give(device->board, device->board_place, bytes);
}

/* Bytes that the group may still take; UINT64_MAX: no limit. A process that is not on the board
 * keeps to the group's limit by itself, see device->limit. */
static inline uint64_t device_group_left(const struct device *device)
{
    if (!device->board || device->group_limit == UINT64_MAX)
        return UINT64_MAX;
    uint64_t held = board_group_held(device->board, device->board_place);
    return rest_of(device->group_limit, held);
}

/* Count the bytes that threads are returning to the driver (struct device). A thread calls
 * returning_begin before its blocks leave the sums of what is free. It calls returning_end once the
 * driver has the blocks, or they are in those sums again. */
static inline void returning_begin(struct device *device, uint64_t bytes)
{
    atomic_fetch_add_explicit(&device->returning, bytes, memory_order_relaxed);
    counter_fence(memory_order_release);
}

static inline void returning_end(struct device *device, uint64_t bytes)
{
    atomic_fetch_sub_explicit(&device->returning, bytes, memory_order_relaxed);
}

/* Bytes of the device that the pool has taken from the driver, or is about to take: live, cached,
 * pending and on the way. A block is reserved once, before it is recorded. It is unreserved when
 * the driver has it again, or did not give it. Nobody else writes the number but reserve_take,
 * which reserves inside the limits. Relaxed: it is compared with limits, and no other data is read
 * because of it. */
static inline uint64_t device_reserved(const struct device *device)
{
    return atomic_load_explicit(&device->reserved_bytes, memory_order_relaxed);
}

/* Reserves whatever the limits are, since the driver has given the memory already. */
static inline void device_reserve(struct device *device, uint64_t bytes)
{
    atomic_fetch_add_explicit(&device->reserved_bytes, bytes, memory_order_relaxed);
    if (device->board)
        board_group_take(device->board, device->board_place, bytes, UINT64_MAX);
}

static inline void device_unreserve(struct device *device, uint64_t bytes)
{
    atomic_fetch_sub_explicit(&device->reserved_bytes, bytes, memory_order_relaxed);
    device_group_give(device, bytes);
}

/* Add the bytes that the driver has given of the device for any kind, and subtract those that it
 * has again. device_reserved also counts bytes that are only asked for. */
static inline void device_count_given(struct device *device, uint64_t bytes)
{
    uint64_t given =
        atomic_fetch_add_explicit(&device->given_bytes, bytes, memory_order_relaxed) + bytes;
    counter_raise_shared(&device->memory->recent_peak, given);
    counter_raise_shared(&device->given_peak, given);
}

static inline void device_count_returned(struct device *device, uint64_t bytes)
{
    atomic_fetch_sub_explicit(&device->given_bytes, bytes, memory_order_relaxed);
}

/* Whether so many bytes more are inside the limits of the process and of its group. */
static inline bool device_limits_allow(const struct device *device, uint64_t bytes)
{
    return bytes <= rest_of(device->limit, device_reserved(device)) &&
           bytes <= device_group_left(device);
}

/* Sets is_short, and fence_bytes with it: 0 while memory is short. */
void device_set_short(struct device *device, bool is_short);
static inline bool device_is_short(const struct device *device)
{
    return atomic_load_explicit(&device->is_short, memory_order_relaxed);
}

#endif
