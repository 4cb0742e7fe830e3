#include "room.h"

#include "core/base/numbers.h"
#include "core/contexts/device.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"

/* While memory is short, one of this many frees looks at what is left. One look costs as much as 40
 * records of an event. */
#define COSTLY_FREES_PER_LOOK 256u

/* The shortest time between two questions to the driver about what is left of a device:
 * nanoseconds. */
#define ROOM_INTERVAL (UINT64_C(500) * 1000 * 1000)

/* Memory is short when less than 1/SHORT_SHARE of the device is left, until more than 2/SHORT_SHARE
 * is left. */
#define SHORT_SHARE 8u

void room_is_short(struct context *context)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    if (device_is_short(context->device))
        return;
    device_set_short(context->device, true);
    TELL_KINDS(context, memory_is_short, context);
}

/* What this process holds may answer without a driver call. Only the driver knows of other
 * processes. */
static bool is_nearly_full(struct pool *pool, struct context *context, bool was_short, bool ask)
{
    const struct device *device = context->device;
    uint64_t resident = device_resident(device);
    if (resident > device->total_bytes - device->total_bytes / SHORT_SHARE)
        return true;
    if (!ask)
        return was_short;
    size_t left, total;
    enter_driver();
    CUresult result = pool->driver->cuMemGetInfo_v2(&left, &total);
    leave_driver();
    if (result != CUDA_SUCCESS)
        return was_short;
    /* Between the two thresholds the last answer stays. */
    return was_short ? left <= 2 * (total / SHORT_SHARE) : left < total / SHORT_SHARE;
}

static void look_at_room(struct pool *pool, struct context *context, uint64_t now)
{
    struct device *device = context->device;
    uint64_t resident = device_resident(device);
    size_t left, total;
    bool pushed;
    if (!context_push(pool, context, &pushed))
        return;
    enter_driver();
    CUresult result = pool->driver->cuMemGetInfo_v2(&left, &total);
    leave_driver();
    context_pop(pool, pushed);
    if (result != CUDA_SUCCESS)
        return;
    atomic_store_explicit(&device->could_hold, left + resident, memory_order_relaxed);
    atomic_store_explicit(&device->could_hold_at, now, memory_order_relaxed);
}

uint64_t room_left(struct pool *pool, struct context *context, uint64_t now)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct device *device = context->device;
    uint64_t looked_at = atomic_load_explicit(&device->could_hold_at, memory_order_relaxed);
    if (!looked_at || now - looked_at >= ROOM_INTERVAL)
        look_at_room(pool, context, now);
    uint64_t most = atomic_load_explicit(&device->could_hold, memory_order_relaxed);
    return smaller_of(
        rest_of(most, device_resident(device)),
        rest_of(device_limit(device, BOARD_LIMIT_OF_PROCESS), device_reserved(device)));
}

void room_look(struct pool *pool, struct context *context, bool ask)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    bool was_short = device_is_short(context->device);
    if (is_nearly_full(pool, context, was_short, ask))
        room_is_short(context);
    else if (was_short)
        device_set_short(context->device, false);
}

void room_look_again(struct pool *pool, struct context *context)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct device *device = context->device;
    bool pushed;
    if (!device_is_short(device) ||
        /* Relaxed: it only chooses which thread looks. */
        atomic_fetch_add_explicit(&device->frees_while_short, 1, memory_order_relaxed) %
                COSTLY_FREES_PER_LOOK !=
            COSTLY_FREES_PER_LOOK - 1 ||
        !context_push(pool, context, &pushed))
        return;
    if (!is_nearly_full(pool, context, true, true))
        device_set_short(device, false);
    context_pop(pool, pushed);
}
