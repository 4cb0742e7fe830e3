#include "mempool_unserved.h"

#include <stdlib.h>

#include "core/base/clock.h"
#include "core/base/machine.h"
#include "core/base/numbers.h"
#include "core/contexts/context.h"
#include "core/contexts/device.h"
#include "core/contexts/pool_state.h"
#include "core/housekeeper/housekeeper.h"
#include "mempool_list.h"
#include "streams.h"

/* ---- whose memory it is, and how much of it may be kept ---- */

static bool is_on_machine(const CUmemLocation *location)
{
    return location->type != CU_MEM_LOCATION_TYPE_DEVICE;
}

/* The process's machine, read once; NULL where memory is short. */
static const struct machine *machine_of(struct streams *streams)
{
    /* Acquire: pairs with the release below; what was read is there. */
    struct machine *known = atomic_load_explicit(&streams->machine, memory_order_acquire);
    struct machine *read = known ? NULL : malloc(sizeof *read);
    if (!read)
        return known;
    machine_read(read, "");
    if (atomic_compare_exchange_strong_explicit(&streams->machine, &known, read,
                                                memory_order_release, memory_order_acquire))
        return read;
    free(read);
    return known;
}

static uint64_t threshold_on_machine(struct pool *pool)
{
    const struct settings *settings = &pool->settings;
    const struct machine *machine = machine_of(streams_of(pool));
    if (!settings->host.enabled || !machine)
        return 0;
    uint64_t cap = byte_size_resolve(&settings->host.caps.cached, machine->memory_bytes);
    return smaller_of(cap, byte_size_resolve(&settings->stream_ordered.unserved_release_threshold,
                                             machine->memory_bytes));
}

static uint64_t threshold_on_device(struct pool *pool, CUdevice ordinal)
{
    const struct device *device = context_device(pool, ordinal);
    return device ? byte_size_resolve(&pool->settings.stream_ordered.unserved_release_threshold,
                                      device->total_bytes)
                  : 0;
}

void mempool_met(struct pool *pool, CUmemoryPool handle, const CUmemLocation *location,
                 CUmemAllocationType type)
{
    if (pool->settings.stream_ordered.unserved_release_threshold.unlimited)
        return;
    bool is_managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
    if ((!is_managed && !is_on_machine(location)) || mempool_find_known(pool, handle))
        return;
    uint64_t threshold = is_on_machine(location) ? threshold_on_machine(pool)
                                                 : threshold_on_device(pool, location->id);
    if (threshold)
        mempool_know_unserved(pool, handle, is_managed, threshold);
}

/* ---- use ---- */

void mempool_unserved_used(struct pool *pool)
{
    if (!atomic_load_explicit(&streams_of(pool)->has_unserved, memory_order_relaxed))
        return;
    if (atomic_load_explicit(&pool->drivers_pools, memory_order_relaxed) != DRIVERS_POOLS_TOUCHED)
        atomic_store(&pool->drivers_pools, DRIVERS_POOLS_TOUCHED);
    housekeeper_look(pool, 0);
}

/* ---- giving back ---- */

/* Sequentially consistent, both sides: either the caller sees that the pool is closed, or who
 * destroys it sees the caller. */
static bool begin_call(struct mempool *mempool)
{
    atomic_fetch_add(&mempool->callers, 1);
    bool may = !atomic_load(&mempool->closed);
    if (!may)
        atomic_fetch_sub(&mempool->callers, 1);
    return may;
}

void mempool_await_callers(struct mempool *mempool)
{
    uint64_t started = monotonic_now();
    while (atomic_load(&mempool->callers))
        patient_nap(started);
}

/* Whether the pool's memory is kept because of us, and would help. */
static bool is_to_be_trimmed(struct streams *streams, const struct mempool *mempool,
                             bool of_machine)
{
    lock_take(&streams->mempool_lock, LOCK_MEMPOOLS);
    bool is = !mempool->device && mempool->threshold_is_ours && mempool_is_open(mempool) &&
              (of_machine || mempool->is_managed);
    lock_give(&streams->mempool_lock);
    return is;
}

/* Of pools that are known now, and were used since they were last trimmed for being idle. */
static bool trim_all(struct pool *pool, bool of_machine)
{
    struct streams *streams = streams_of(pool);
    bool any = false;
    for (struct mempool *m = mempool_first(streams); m; m = m->next) {
        if (!is_to_be_trimmed(streams, m, of_machine) || !begin_call(m))
            continue;
        struct relaxed_mode mode = mempool_call_begin(pool);
        any |= pool->driver->cuMemPoolTrimTo(mempool_handle(m), 0) == CUDA_SUCCESS;
        mempool_call_end(pool, mode);
        atomic_fetch_sub(&m->callers, 1);
    }
    return any;
}

bool mempool_trim_unserved(struct pool *pool, bool of_machine)
{
    return streams_of(pool) && pool->driver->cuMemPoolTrimTo && drivers_pools_keep(pool) &&
           trim_all(pool, of_machine);
}

static bool machine_is_short(struct pool *pool)
{
    const struct machine *machine = machine_of(streams_of(pool));
    return machine && machine_memory_missing(machine, 0) != 0;
}

/* The next use changes the state first, and so is not taken for none. */
static void release_if_idle(struct pool *pool, uint64_t now)
{
    uint64_t span = pool->settings.stream_ordered.release_after_idle_ns;
    uint32_t watched = DRIVERS_POOLS_WATCHED;
    if (span && now - streams_of(pool)->unserved_used_at >= span &&
        atomic_compare_exchange_strong(&pool->drivers_pools, &watched, DRIVERS_POOLS_NONE))
        trim_all(pool, true);
}

uint64_t mempool_look_after_unserved(struct pool *pool, uint64_t now)
{
    uint32_t touched = DRIVERS_POOLS_TOUCHED;
    if (!streams_of(pool) || !pool->driver->cuMemPoolTrimTo || !drivers_pools_keep(pool))
        return UINT64_MAX;
    if (atomic_compare_exchange_strong(&pool->drivers_pools, &touched, DRIVERS_POOLS_WATCHED))
        streams_of(pool)->unserved_used_at = now;
    else
        release_if_idle(pool, now);
    if (machine_is_short(pool))
        mempool_trim_unserved(pool, true);
    return UINT64_MAX;
}
