#include "managed.h"

#include "core/base/numbers.h"
#include "core/contexts/capture.h"
#include "core/contexts/context.h"
#include "core/contexts/device.h"
#include "core/contexts/pool_state.h"
#include "core/driver/calls.h"
#include "kept.h"

/* The pool queries the device's free memory once per this many bytes of managed allocations. A
 * query takes half as long as a small allocation, and a hundredth of the time to touch this many
 * bytes. */
#define LOOK_BYTES (UINT64_C(16) << 20)

/* While managed memory exists, 1 / STAYING_SHARE of the device's memory may stay cached, whatever
 * the excess is. If the growth budget is more, that many bytes may stay cached instead. */
#define STAYING_SHARE 32u

/* Returns the sum, or UINT64_MAX if it overflows: a program may ask for any size. */
static uint64_t sum_of(uint64_t one, uint64_t other)
{
    uint64_t sum;
    return __builtin_add_overflow(one, other, &sum) ? UINT64_MAX : sum;
}

static uint64_t excess_with(const struct device *device, uint64_t coming)
{
    uint64_t managed = sum_of(managed_bytes(device), coming);
    uint64_t held = sum_of(managed, device_resident(device));
    if (managed == 0 || held <= device->total_bytes)
        return 0;
    return held - device->total_bytes;
}

uint64_t managed_excess(const struct device *device)
{
    return excess_with(device, 0);
}

/* Managed memory alone may exceed the device's memory. The excess then remains, whatever is
 * released. So a release begins once kept > stays, and leaves at least stays / 2. A program that
 * goes on allocating and freeing therefore has many hits before the next release. */
uint64_t managed_in_the_way(const struct device *device, uint64_t kept)
{
    uint64_t share = device->total_bytes / STAYING_SHARE;
    uint64_t stays = larger_of(share, device->growth_budget);
    uint64_t excess = managed_excess(device);
    if (excess == 0 || kept <= stays)
        return 0;
    return excess < kept - stays / 2 ? excess : kept - stays / 2;
}

/* Returns the device's cached and pending bytes of all kinds, plus the free bytes that the driver's
 * memory pools hold. All pending bytes count, also those whose GPU work has completed by now. */
static uint64_t all_kept_bytes(struct pool *pool, struct device *device)
{
    struct kept_bytes kept = kept_bytes(pool, device);
    return kept.cached + kept.pending + bytes_the_driver_keeps(pool, device);
}

/* Returns how many bytes must be released to the driver before an allocation of managed memory.
 * due: the bytes that must be free (bytes_to_look_for). coming: the bytes of this allocation. */
static uint64_t missing_bytes(struct pool *pool, const struct device *device, uint64_t due,
                              uint64_t coming)
{
    size_t left, total;
    enter_driver();
    CUresult result = pool->driver->cuMemGetInfo_v2(&left, &total);
    leave_driver();
    uint64_t missing = result == CUDA_SUCCESS && left < due ? due - left : 0;
    uint64_t excess = excess_with(device, coming);
    return larger_of(missing, excess);
}

/* Returns how many bytes of the device must be free now; 0: no query is due yet. Atomic accesses in
 * this file are relaxed: these sums order nothing. A thread that adds bytes between another
 * thread's addition and its reset below also reaches LOOK_BYTES, and queries too. Bytes added after
 * the last reset count toward a later query. */
static uint64_t bytes_to_look_for(struct device *device, uint64_t coming)
{
    if (coming >= LOOK_BYTES)
        return coming;
    uint64_t due =
        coming + atomic_fetch_add_explicit(&device->managed_due, coming, memory_order_relaxed);
    if (due < LOOK_BYTES)
        return 0;
    atomic_store_explicit(&device->managed_due, 0, memory_order_relaxed);
    return due;
}

void managed_about_to_allocate(struct pool *pool, size_t bytes)
{
    no_lock_may_be_held();
    bool green;
    struct context *context = context_current(pool, &green);
    if (!context || program_captures(&pool->captures))
        return;
    struct device *device = context->device;
    uint64_t due = bytes_to_look_for(device, bytes);
    uint64_t missing =
        due && all_kept_bytes(pool, device) ? missing_bytes(pool, device, due, bytes) : 0;
    if (missing)
        kinds_make_room(pool, device, missing);
}

void managed_allocated(struct pool *pool, size_t bytes)
{
    no_lock_may_be_held();
    bool green;
    struct context *context = context_current(pool, &green);
    if (context)
        atomic_fetch_add_explicit(&context->device->managed_bytes, bytes, memory_order_relaxed);
}

void managed_make_way(struct pool *pool, struct device *device)
{
    if (!managed_is_crowded(device) || program_captures(&pool->captures))
        return;
    uint64_t bytes = managed_in_the_way(device, all_kept_bytes(pool, device));
    if (bytes)
        kinds_make_room(pool, device, bytes);
}

static void count_back(struct device *device, uint64_t bytes)
{
    uint64_t counted = managed_bytes(device);
    while (!atomic_compare_exchange_weak_explicit(&device->managed_bytes, &counted,
                                                  rest_of(counted, bytes), memory_order_relaxed,
                                                  memory_order_relaxed))
        continue;
}

#define ANY_DEVICE (-1)

static struct device *device_with_managed(struct pool *pool, int ordinal)
{
    struct device *device = registry_devices(&pool->registry);
    while (device &&
           (managed_bytes(device) == 0 || (ordinal != ANY_DEVICE && device->ordinal != ordinal)))
        device = device->next;
    return device;
}

struct managed_memory managed_find(struct pool *pool, CUdeviceptr address)
{
    no_lock_may_be_held();
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                        CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    unsigned int managed = 0;
    int ordinal = 0;
    size_t bytes = 0;
    void *values[] = {&managed, &ordinal, &bytes};
    struct managed_memory none = {NULL, 0};
    if (!address || !device_with_managed(pool, ANY_DEVICE) || !pool->driver->cuPointerGetAttributes)
        return none;
    enter_driver();
    CUresult result = pool->driver->cuPointerGetAttributes(3, attributes, values, address);
    leave_driver();
    if (result != CUDA_SUCCESS || !managed)
        return none;
    return (struct managed_memory){device_with_managed(pool, ordinal), bytes};
}

void managed_freed(const struct managed_memory *memory)
{
    if (memory->device)
        count_back(memory->device, memory->bytes);
}
