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

void mempool_unserved_start(struct pool *pool)
{
    const struct byte_size *threshold = &pool->settings.stream_ordered.unserved_release_threshold;
    struct machine *machine = threshold->unlimited ? NULL : malloc(sizeof *machine);
    if (!machine)
        return;
    machine_read(machine, "");
    machine_keep_open(machine);
    streams_of(pool)->machine = machine;
}

static uint64_t threshold_on_machine(struct pool *pool)
{
    const struct settings *settings = &pool->settings;
    const struct machine *machine = streams_of(pool)->machine;
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

/* ---- releasing ---- */

/* Sequentially consistent, like the store to closed in mempool_destroying. Either the caller sees
 * that the pool is closed, or the destroying thread sees the caller. */
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

/* Whether the pool keeps memory because of our threshold, and releasing it would help. */
static bool is_to_be_trimmed(struct streams *streams, const struct mempool *mempool,
                             bool of_machine)
{
    lock_take(&streams->mempool_lock, LOCK_MEMPOOLS);
    bool is = !mempool->device && mempool->threshold_is_ours && mempool_is_open(mempool) &&
              (of_machine || mempool->is_managed);
    lock_give(&streams->mempool_lock);
    return is;
}

static uint64_t taken_by(struct pool *pool, const struct mempool *mempool)
{
    cuuint64_t bytes = 0;
    mempool_ask(pool, mempool_handle(mempool), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
    return bytes;
}

/* Returns the bytes released. The program can't destroy the pool meanwhile. */
static uint64_t trim_one(struct pool *pool, const struct mempool *mempool, bool *any)
{
    uint64_t before = taken_by(pool, mempool);
    struct relaxed_mode mode = mempool_call_begin(pool);
    bool trimmed = pool->driver->cuMemPoolTrimTo(mempool_handle(mempool), 0) == CUDA_SUCCESS;
    mempool_call_end(pool, mode);
    *any |= trimmed;
    return trimmed ? rest_of(before, taken_by(pool, mempool)) : 0;
}

/* Trims all pools that are known now and that were used since they were last trimmed for being
 * idle. Sets *any if there is one. Returns the bytes released. */
static uint64_t trim_all(struct pool *pool, bool of_machine, bool *any)
{
    struct streams *streams = streams_of(pool);
    uint64_t bytes = 0;
    for (struct mempool *m = mempool_first(streams); m; m = m->next) {
        if (!is_to_be_trimmed(streams, m, of_machine) || !begin_call(m))
            continue;
        bytes += trim_one(pool, m, any);
        atomic_fetch_sub(&m->callers, 1);
    }
    return bytes;
}

uint64_t mempool_empty_unserved(struct pool *pool, bool of_machine, bool *any)
{
    *any = false;
    return streams_of(pool) && pool->driver->cuMemPoolTrimTo && drivers_pools_keep(pool)
               ? trim_all(pool, of_machine, any)
               : 0;
}

bool mempool_trim_unserved(struct pool *pool, bool of_machine)
{
    bool any;
    mempool_empty_unserved(pool, of_machine, &any);
    return any;
}

static bool machine_is_short(struct pool *pool)
{
    const struct machine *machine = streams_of(pool)->machine;
    return machine && machine_memory_missing(machine, 0) != 0;
}

/* A new use changes drivers_pools first, so the exchange fails and the pools are not taken for
 * idle. */
static void release_if_idle(struct pool *pool, uint64_t now)
{
    uint64_t span = pool->settings.stream_ordered.release_after_idle_ns;
    uint32_t watched = DRIVERS_POOLS_WATCHED;
    bool any = false;
    if (span && now - streams_of(pool)->unserved_used_at >= span &&
        atomic_compare_exchange_strong(&pool->drivers_pools, &watched, DRIVERS_POOLS_NONE))
        trim_all(pool, true, &any);
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
