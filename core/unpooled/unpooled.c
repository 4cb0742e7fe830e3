#include "unpooled.h"

#include "core/contexts/device.h"
#include "core/driver/calls.h"
#include "core/reclaim/reserve.h"

/* Sums of as many requests as there may be at a time stay below 2^64. */
#define MOST_BYTES (UINT64_C(1) << 48)

static bool is_reserved(enum unpooled_kind kind)
{
    return kind != UNPOOLED_OPENED;
}

bool unpooled_is_counted(struct pool *pool, struct device *device)
{
    if (device)
        device_follow_limits(pool, device);
    return device && (pool->settings.report.at_exit != REPORT_NONE || device_is_limited(device));
}

/* All accesses to counters here are relaxed: they order nothing. */
bool unpooled_take(struct pool *pool, struct device *device, enum unpooled_kind kind,
                   uint64_t bytes, struct unpooled *taken)
{
    uint64_t since = 0;
    enum failure failure;
    *taken = (struct unpooled){.kind = kind};
    /* The driver refuses such calls in a host function, and more than any machine has. */
    if (!bytes || !unpooled_is_counted(pool, device) || is_in_host_function(pool) ||
        (bytes > MOST_BYTES && !device_is_limited(device)))
        return true;
    if (is_reserved(kind) && !reserve_take(pool, device, bytes, false, &since, &failure)) {
        atomic_fetch_add_explicit(&device->unpooled[kind].refused, 1, memory_order_relaxed);
        return false;
    }
    if (is_reserved(kind))
        atomic_fetch_add_explicit(&device->unpooled_bytes[kind], bytes, memory_order_relaxed);
    *taken = (struct unpooled){device, kind, false, bytes};
    return true;
}

void unpooled_given(struct unpooled *taken)
{
    if (!taken->device)
        return;
    struct unpooled_counters *counters = &taken->device->unpooled[taken->kind];
    uint64_t bytes = taken->bytes + atomic_fetch_add_explicit(&counters->bytes, taken->bytes,
                                                              memory_order_relaxed);
    counter_raise_shared(&counters->peak_bytes, bytes);
    taken->given = true;
}

void unpooled_return(struct unpooled *taken)
{
    struct device *device = taken->device;
    if (device && taken->given)
        atomic_fetch_sub_explicit(&device->unpooled[taken->kind].bytes, taken->bytes,
                                  memory_order_relaxed);
    if (device && is_reserved(taken->kind)) {
        atomic_fetch_sub_explicit(&device->unpooled_bytes[taken->kind], taken->bytes,
                                  memory_order_relaxed);
        device_unreserve(device, taken->bytes);
    }
    *taken = (struct unpooled){.kind = taken->kind};
}

/* Reserves what has come before it stores the number, and unreserves what has gone after that, so
 * that no sum falls below 0. */
static void set_graphs(struct device *device, uint64_t bytes)
{
    struct unpooled_counters *counters = &device->unpooled[UNPOOLED_GRAPHS];
    uint64_t before = device_graph_bytes(device);
    if (bytes > before)
        device_reserve(device, bytes - before);
    atomic_store_explicit(&device->unpooled_bytes[UNPOOLED_GRAPHS], bytes, memory_order_relaxed);
    device_unreserve(device, rest_of(before, bytes));
    counter_set(&counters->bytes, bytes);
    counter_raise_shared(&counters->peak_bytes, bytes);
}

static void ask_about_graphs(struct pool *pool, struct device *device)
{
    uint64_t bytes;
    if (atomic_fetch_add(&device->graph_calls, 1))
        return;
    unsigned calls = 1;
    do {
        CUresult result = pool->driver->cuDeviceGetGraphMemAttribute(
            device->ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes);
        if (result == CUDA_SUCCESS && bytes != device_graph_bytes(device))
            set_graphs(device, bytes);
    } while (!atomic_compare_exchange_strong(&device->graph_calls, &calls, 0));
}

void unpooled_follow_graphs(struct pool *pool)
{
    if (is_inside_driver() || !atomic_load_explicit(&pool->graphs_allocate, memory_order_relaxed) ||
        !pool->driver->cuDeviceGetGraphMemAttribute)
        return;
    no_lock_may_be_held();
    enter_driver();
    for (struct device *d = registry_devices(&pool->registry); d; d = d->next)
        if (unpooled_is_counted(pool, d) || device_graph_bytes(d))
            ask_about_graphs(pool, d);
    leave_driver();
}
