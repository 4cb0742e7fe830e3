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

/* The bytes that the process may take of the device, or its group; UINT64_MAX: no limit. */
static inline uint64_t device_limit(const struct device *device, enum board_limit limit)
{
    return atomic_load_explicit(&device->limits[limit], memory_order_relaxed);
}

/* Takes over limits that a tool has changed. Called before a request is compared with the limits.
 * No lock is held from LOCK_REGISTRY on. */
void device_change_limits(struct pool *pool, struct device *device);
static inline void device_follow_limits(struct pool *pool, struct device *device)
{
    const struct board_start *start = (const void *)device->board;
    /* Acquire: pairs with the increment in board_limit.c, so that what was set is found. */
    if (start && start->limit_changes &&
        atomic_load_explicit(start->limit_changes, memory_order_acquire) !=
            atomic_load_explicit(&device->limit_changes, memory_order_relaxed))
        device_change_limits(pool, device);
}

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
    return !device->board || board_group_take(device->board, device->board_place, bytes,
                                              device_limit(device, BOARD_LIMIT_OF_GROUP));
}

static inline void device_group_give(struct device *device, uint64_t bytes)
{
    if (device->board)
        board_group_give(device->board, device->board_place, bytes);
}

/* Bytes that the group may still take; UINT64_MAX: no limit. A process that is not on the board
 * keeps to the group's limit by itself, see device_limit. */
static inline uint64_t device_group_left(const struct device *device)
{
    uint64_t limit = device_limit(device, BOARD_LIMIT_OF_GROUP);
    if (!device->board || limit == UINT64_MAX)
        return UINT64_MAX;
    uint64_t held = board_group_held(device->board, device->board_place);
    return rest_of(limit, held);
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

/* Bytes of the device that count against limits: all blocks of the pool (live, cached, pending and
 * on the way), and unpooled memory where that is counted (core/unpooled). Bytes are reserved once,
 * before the driver is asked for them; those of graphs when it has given them. They are unreserved
 * when the driver has them again, or did not give them. Nobody else writes the number but
 * reserve_take, which reserves inside the limits. Relaxed: it is compared with limits, and no other
 * data is read because of it. */
static inline uint64_t device_reserved(const struct device *device)
{
    return atomic_load_explicit(&device->reserved_bytes, memory_order_relaxed);
}

/* The part of device_reserved that the driver has reserved for graphs. */
static inline uint64_t device_graph_bytes(const struct device *device)
{
    return atomic_load_explicit(&device->unpooled_bytes[UNPOOLED_GRAPHS], memory_order_relaxed);
}

/* The part of device_reserved that is unpooled memory. */
static inline uint64_t device_unpooled(const struct device *device)
{
    uint64_t bytes = 0;
    for (enum unpooled_kind kind = 0; kind < UNPOOLED_KINDS; kind++)
        bytes += atomic_load_explicit(&device->unpooled_bytes[kind], memory_order_relaxed);
    return bytes;
}

/* The rest of it: the pool's own blocks. */
static inline uint64_t device_pooled(const struct device *device)
{
    return rest_of(device_reserved(device), device_unpooled(device));
}

/* The part of device_reserved that is on the device. Managed memory is left out, since its pages
 * may be on the host. */
static inline uint64_t device_resident(const struct device *device)
{
    return rest_of(
        device_reserved(device),
        atomic_load_explicit(&device->unpooled_bytes[UNPOOLED_MANAGED], memory_order_relaxed));
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

/* Whether the process or its group has a limit. */
static inline bool device_is_limited(const struct device *device)
{
    return device_limit(device, BOARD_LIMIT_OF_PROCESS) != UINT64_MAX;
}

/* Whether so many bytes more are inside the limits of the process and of its group. */
static inline bool device_limits_allow(const struct device *device, uint64_t bytes)
{
    return bytes <=
               rest_of(device_limit(device, BOARD_LIMIT_OF_PROCESS), device_reserved(device)) &&
           bytes <= device_group_left(device);
}

/* Sets is_short, and fence_bytes with it: 0 while memory is short. */
void device_set_short(struct device *device, bool is_short);
static inline bool device_is_short(const struct device *device)
{
    return atomic_load_explicit(&device->is_short, memory_order_relaxed);
}

#endif
