/*
 * Pinned host memory as a kind of memory: the functions of struct kind (kind.h), by which contexts,
 * fences and reclaim reach it.
 */
#include "host_memory.h"

#include <stdlib.h>

#include "core/contexts/kind.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"
#include "core/reclaim/progress.h"
#include "host_heap.h"
#include "host_release.h"

/* Without cuCtxRecordEvent nobody can ask whether a context has any work. Free blocks could then be
 * released only inside frees. So an allocation could fail although free blocks exist. */
static bool can_serve(const struct driver *driver)
{
    return driver->cuMemHostAlloc && driver->cuMemFreeHost && driver->cuCtxRecordEvent;
}

static bool starts(struct pool *pool)
{
    const struct host_settings *settings = &pool->settings.host;
    if (!settings->enabled || !can_serve(pool->driver))
        return true;
    struct host_memory *memory = calloc(1, sizeof *memory);
    if (!memory || !block_table_init(&memory->blocks)) {
        free(memory);
        return false;
    }
    host_know_machine(settings, memory);
    pool->of_kind[KIND_HOST] = memory;
    return true;
}

static void forget(struct pool *pool)
{
    if (host_memory_of(pool))
        machine_close(&host_memory_of(pool)->machine);
}

static bool made_device(struct pool *pool, struct device *device)
{
    struct host_device *made = device->of_kind[KIND_HOST];
    made->counters = figures_kind(&pool->figures, KIND_HOST, device->ordinal);
    return made->counters;
}

static void context_began(struct context *context)
{
    host_set_closed(host_heap_of(context), HOST_CLOSED_UNUSABLE, false);
}

/* A thread that has no id yet has no shard either. */
static void became_current(struct context *context)
{
    const struct host_heap *heap = host_heap_of(context);
    uint64_t id = thread_state.id;
    thread_state.shard = id ? host_shard_at(heap, id % HOST_SHARDS) : NULL;
}

static void disabled(struct context *context)
{
    host_set_closed(host_heap_of(context), HOST_CLOSED_UNUSABLE, true);
}

static void wait_stalled(struct pool *pool, struct context *context)
{
    (void)pool;
    host_update_waiting(context);
}

static uint64_t newest_pending(const struct context *context)
{
    const struct host_heap *heap = host_heap_of((struct context *)(uintptr_t)context);
    return heap->context ? host_newest_pending(heap) : 0;
}

/* A sum that grows with every hit, every free and every block that is taken away. So it changes
 * even if one thread has freed a block and another has taken it since. */
static uint64_t passes(struct host_shard *shard)
{
    uint64_t sum = 0;
    host_lock(shard);
    for (const struct bucket *b = shard->bins.first; b; b = b->next) {
        const struct bin_counters *counts = ((const struct host_bin *)b)->counts;
        sum +=
            counter_get(&counts->hits) + counter_get(&counts->frees) - counter_get(&counts->moved);
    }
    host_unlock(shard);
    return sum;
}

static uint64_t changes(struct pool *pool, struct device *device)
{
    uint64_t sum = 0;
    for (struct context *c = context_next(pool, NULL, device); c;
         c = context_next(pool, c, device)) {
        struct host_heap *heap = host_heap_of(c);
        sum += counter_get(&heap->reserved_bytes);
        for (struct host_shard *shard = host_shards(heap); shard; shard = shard->next)
            sum += passes(shard);
    }
    return sum;
}

const struct kind host_memory = {
    .name = "host",
    .number = KIND_HOST,
    .is_the_machines = true,
    .device_bytes = sizeof(struct host_device),
    .context_bytes = sizeof(struct host_heap),
    .starts = starts,
    .forget = forget,
    .made_device = made_device,
    .made_context = host_heap_init,
    .context_began = context_began,
    .became_current = became_current,
    .disabled = disabled,
    .ending = host_heap_set_ending,
    .ended = host_heap_reset,
    .newest_pending = newest_pending,
    .host_work_changed = host_update_waiting,
    .wait_stalled = wait_stalled,
    .is_unfenced = host_release_pending,
    .freed_outside = host_heap_freed_outside,
    .forget_address = host_heap_forget_address,
    .release = host_give_back,
    .wait_for_the_rest = host_wait_for_the_rest,
    .changes = changes,
    .release_idle = host_release_idle,
    .leave_to_machine = host_leave_to_machine,
    .watch = host_watch,
    .add_kept = host_add_kept,
};
