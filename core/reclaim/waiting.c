#include "waiting.h"

#include "core/base/numbers.h"
#include "core/contexts/device.h"
#include "core/contexts/epoch.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"
#include "kept.h"
#include "managed.h"
#include "progress.h"

bool bytes_left(struct pool *pool, const struct device *device, const struct reclaim *progress,
                uint64_t *left)
{
    size_t free, total;
    CUresult result;
    switch (progress->bound) {
    case RECLAIM_LIMIT:
        *left = rest_of(device_limit(device, BOARD_LIMIT_OF_PROCESS), device_reserved(device));
        return true;
    case RECLAIM_GROUP:
        *left = device_group_left(device);
        return true;
    case RECLAIM_MACHINE:
        return false; /* the driver does not say how much host memory may be pinned */
    default:
        result = driver_memory_info(pool->driver, &free, &total);
        *left = free;
        return result == CUDA_SUCCESS;
    }
}

uint64_t reserved_before(const struct device *device, const struct reclaim *progress)
{
    return rest_of(device_resident(device), progress->unreserved ? 0 : progress->rounded);
}

uint64_t returnable_bytes(struct pool *pool, struct device *device)
{
    uint64_t sum = 0;
    for (const struct kind *const *kind = pool->kinds; *kind; kind++)
        sum += (*kind)->returnable ? (*kind)->returnable(pool, device) : 0;
    return sum;
}

/* Returns the managed memory on the device, which the driver evicts to make room for other memory.
 * This is at most the device's memory that is neither free nor known to be the pool's. */
static uint64_t managed_on_device(const struct device *device, const struct reclaim *progress,
                                  uint64_t left)
{
    uint64_t others = rest_of(device->total_bytes, left + reserved_before(device, progress));
    return progress->bound == RECLAIM_DEVICE ? smaller_of(managed_bytes(device), others) : 0;
}

/* Whether returnable bytes and these bytes beside them are enough for the request. Of the
 * returnable bytes, the larger of two readings counts. Memory that was released to the driver
 * between them may be missing in what the driver said. *known: whether it is known what is left. */
static bool could_fit(struct pool *pool, struct device *device, const struct reclaim *progress,
                      uint64_t beside, bool *known)
{
    uint64_t left = 0, before = returnable_bytes(pool, device);
    *known = bytes_left(pool, device, progress, &left);
    uint64_t kept = larger_of(returnable_bytes(pool, device), before) + beside;
    kept += kept ? bytes_around_blocks(pool, device) : 0;
    left += *known ? managed_on_device(device, progress, left) : 0;
    return *known && (left >= progress->wanted || progress->wanted - left <= kept);
}

bool request_may_fit(struct pool *pool, struct device *device, const struct reclaim *progress)
{
    bool known;
    return progress->bound == RECLAIM_MACHINE || could_fit(pool, device, progress, 0, &known);
}

struct board_bytes ask_board(const struct device *device, const struct reclaim *progress)
{
    return board_others(device->board, device->board_place, device->total_bytes,
                        progress->bound == RECLAIM_GROUP);
}

uint64_t bytes_of_others(struct device *device, const struct reclaim *progress)
{
    if (!device->board || progress->bound == RECLAIM_LIMIT)
        return 0;
    struct board_bytes others = ask_board(device, progress);
    return others.cached +
           fresh_bytes(waited_for_others(device, progress), others.pending - others.in_order);
}

/* Also true where it is not known which device the call concerns, or what the device has. */
static bool may_be_enough(struct pool *pool, struct device *device, const struct reclaim *progress,
                          uint64_t beside)
{
    bool known;
    return !device || progress->wanted == 0 ||
           could_fit(pool, device, progress, beside + bytes_of_others(device, progress), &known) ||
           !known;
}

static uint64_t unused_in(struct pool *pool, CUmemoryPool memory_pool)
{
    cuuint64_t reserved = 0, used = 0;
    CUresult result = pool->driver->cuMemPoolGetAttribute(
        memory_pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
    if (result == CUDA_SUCCESS)
        result = pool->driver->cuMemPoolGetAttribute(memory_pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
                                                     &used);
    return result == CUDA_SUCCESS ? rest_of(reserved, used) : 0;
}

/* Returns the free bytes in the driver's own pools of the device, whether or not their stream's
 * work has completed. This includes pools that no kind serves. */
static uint64_t bytes_in_drivers_pools(struct pool *pool, struct device *device)
{
    const struct driver *driver = pool->driver;
    CUmemoryPool first = NULL, current = NULL;
    uint64_t bytes = 0;
    struct relaxed_mode mode = enter_driver_relaxed(driver);
    if (driver->cuDeviceGetDefaultMemPool &&
        driver->cuDeviceGetDefaultMemPool(&first, device->ordinal) == CUDA_SUCCESS)
        bytes += unused_in(pool, first);
    if (driver->cuDeviceGetMemPool &&
        driver->cuDeviceGetMemPool(&current, device->ordinal) == CUDA_SUCCESS && current != first)
        bytes += unused_in(pool, current);
    leave_driver_relaxed(driver, mode);
    return larger_of(bytes, bytes_the_driver_keeps(pool, device));
}

/* As may_be_enough, and also counts what the driver's own pools have free. */
static bool may_be_enough_with_drivers(struct pool *pool, struct device *device,
                                       const struct reclaim *progress, uint64_t beside)
{
    return !device || progress->wanted == 0 || !pool->driver->cuMemPoolGetAttribute ||
           may_be_enough(pool, device, progress, beside + bytes_in_drivers_pools(pool, device));
}

bool may_wait_for_the_driver(struct pool *pool, struct device *device,
                             const struct reclaim *progress)
{
    return may_be_enough_with_drivers(pool, device, progress, 0);
}

/* Returns the bytes that were freed in stream order in the device's contexts. The wait of a plain
 * free includes the work of all these streams, so the memory is clean after it. */
static uint64_t freed_in_order(struct pool *pool, struct device *device)
{
    uint64_t sum = device ? kept_bytes(pool, device).in_order : 0;
    for (struct context *c = context_next(pool, NULL, device); c; c = context_next(pool, c, device))
        sum += epoch_bytes_freed_in_order(c);
    return sum;
}

bool may_wait_for_frees(struct pool *pool, struct device *device, struct context *context,
                        const struct reclaim *progress)
{
    return epoch_frees_to_wait_for(context) &&
           may_be_enough_with_drivers(pool, device, progress, freed_in_order(pool, device));
}

bool may_look_at_streams(struct pool *pool, struct device *device, const struct reclaim *progress)
{
    uint64_t in_order = kept_bytes(pool, device).in_order;
    return in_order && may_be_enough(pool, device, progress, in_order);
}

_Atomic uint64_t *waited_for_others(struct device *device, const struct reclaim *progress)
{
    return &device->waited_for_others[progress->bound == RECLAIM_GROUP];
}

/* If fewer bytes are pending than were waited for, some of these have become clean, and the count
 * begins anew. */
uint64_t fresh_bytes(_Atomic uint64_t *waited, uint64_t pending)
{
    uint64_t before = atomic_load_explicit(waited, memory_order_relaxed);
    if (pending < before)
        atomic_store_explicit(waited, before = 0, memory_order_relaxed);
    return pending - before;
}

void note_waited_bytes(_Atomic uint64_t *waited, uint64_t pending)
{
    atomic_store_explicit(waited, pending, memory_order_relaxed);
}
