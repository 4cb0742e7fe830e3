#include "reserve.h"

#include "core/contexts/device.h"
#include "core/contexts/pool_state.h"
#include "reclaim.h"

/* Takes bytes of both limits. Tests the process's own limit before it takes the group's bytes.
 * Bytes that are taken and returned at once may make another process of the group fail at that
 * moment. */
static bool take(struct device *device, uint64_t bytes, enum reclaim_bound *bound)
{
    uint64_t reserved = device_reserved(device);
    *bound = RECLAIM_LIMIT;
    if (bytes > rest_of(device_limit(device, BOARD_LIMIT_OF_PROCESS), reserved))
        return false;
    if (!device_group_take(device, bytes)) {
        *bound = RECLAIM_GROUP;
        return false;
    }
    while (bytes <= rest_of(device_limit(device, BOARD_LIMIT_OF_PROCESS), reserved))
        if (atomic_compare_exchange_weak_explicit(&device->reserved_bytes, &reserved,
                                                  reserved + bytes, memory_order_relaxed,
                                                  memory_order_relaxed))
            return true;
    device_group_give(device, bytes);
    return false;
}

/* The process's limit <= the group's. Where both are equal, the group's limit is what refuses the
 * request. */
static enum failure refused_by(const struct device *device, enum reclaim_bound bound)
{
    bool by_group = bound == RECLAIM_GROUP || device_limit(device, BOARD_LIMIT_OF_PROCESS) ==
                                                  device_limit(device, BOARD_LIMIT_OF_GROUP);
    return by_group ? FAILURE_GROUP : FAILURE_LIMIT;
}

static bool take_after_reclaim(struct pool *pool, struct device *device, uint64_t bytes,
                               struct reclaim progress, uint64_t *since, enum failure *failure)
{
    bool taken = false;
    while (!taken && bytes <= device_limit(device, BOARD_LIMIT_OF_PROCESS) &&
           reclaim_for_retry(pool, device, &progress))
        taken = take(device, bytes, &progress.bound);
    *since = progress.started;
    if (!taken)
        *failure = refused_by(device, progress.bound);
    return taken;
}

bool reserve_take(struct pool *pool, struct device *device, uint64_t bytes, bool in_stream_order,
                  uint64_t *since, enum failure *failure)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    enum reclaim_bound bound;
    device_follow_limits(pool, device);
    if (take(device, bytes, &bound))
        return true;
    struct reclaim progress = {.bytes = bytes,
                               .wanted = bytes,
                               .in_stream_order = in_stream_order,
                               .started = *since,
                               .bound = bound};
    return take_after_reclaim(pool, device, bytes, progress, since, failure);
}
