/*
 * Stream-ordered memory (cuMemAllocAsync) as a kind of memory: the functions of struct kind, which
 * contexts, the reclaim of memory and the housekeeper call.
 */
#include "stream_memory.h"
#include "stream_owner.h"
#include <stdlib.h>

#include "core/base/clock.h"
#include "core/base/machine.h"
#include "core/base/numbers.h"
#include "core/contexts/epoch.h"
#include "core/contexts/kind.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/return_stream.h"
#include "core/reclaim/progress.h"
#include "core/reclaim/waiting.h"
#include "mempool_calls.h"
#include "stream_ends.h"
#include "stream_merge.h"
#include "stream_pending.h"
#include "stream_release.h"
#include "stream_reserve.h"
#include "stream_sums.h"
#include "stream_table.h"
#include "streams.h"

static bool can_be_served(const struct driver *driver)
{
    return driver->cuMemAllocFromPoolAsync && driver->cuMemFreeAsync && driver->cuEventRecord &&
           driver->cuStreamWaitEvent && driver->cuDeviceGetMemPool &&
           driver->cuDeviceGetDefaultMemPool && driver->cuStreamGetId;
}

static bool starts(struct pool *pool)
{
    if (!pool->settings.stream_ordered.enabled || !can_be_served(pool->driver))
        return true;
    struct streams *streams = streams_make();
    if (!streams)
        return false;
    pool->of_kind[KIND_STREAM_ORDERED] = streams;
    return true;
}

static bool made_device(struct pool *pool, struct device *device)
{
    const struct stream_ordered_settings *settings = &pool->settings.stream_ordered;
    struct stream_device *made = stream_device(device);
    bucket_settings_resolve(&settings->buckets, device->total_bytes, &made->classes);
    made->cached_cap = byte_size_resolve(&settings->caps.cached, device->total_bytes);
    /* Spare memory in segments serves all sizes, so no floor is needed. */
    if (settings->buckets.policy != BUCKETS_SPLIT)
        made->reserve_floor = byte_size_resolve(&settings->reserve_floor, device->total_bytes);
    made->counters = figures_kind(&pool->figures, KIND_STREAM_ORDERED, device->ordinal);
    return made->counters;
}

static void before_end(struct pool *pool, struct context *context)
{
    if (streams_of(pool))
        stream_ends_before(pool, context);
}

static void give_back_at_end(struct pool *pool, struct context *context)
{
    if (streams_of(pool))
        stream_ends_context(pool, context);
}

static void ended(struct pool *pool, struct context *context)
{
    if (!streams_of(pool))
        return;
    stream_ends_forget(pool, context);
    streams_context_died(pool, context);
}

static bool pends_in_order(struct pool *pool)
{
    return streams_are_in_use(pool);
}

static void synchronised(struct pool *pool, struct context *context)
{
    if (streams_are_in_use(pool))
        stream_pending_apply(pool, context);
}

static void capture_is_coming(struct pool *pool, CUstream stream)
{
    (void)stream;
    if (streams_of(pool))
        stream_pending_capture_comes(pool);
}

static void capture_has_come(struct pool *pool)
{
    if (streams_of(pool))
        stream_pending_capture_has_come(pool);
}

static bool freed_outside(struct pool *pool, CUdeviceptr address)
{
    return !streams_of(pool) || stream_block_freed_outside(pool, address);
}

static void ask(struct pool *pool, struct device *device)
{
    stream_pending_query(pool, device);
}

/* Whether the pause after the last look is over, or bytes are pending that the last look did not
 * wait for. */
static bool look_is_due(struct stream_device *of_device, uint64_t pending)
{
    return fresh_bytes(&of_device->looked_at, pending) ||
           monotonic_now() >= atomic_load_explicit(&of_device->look_again_at, memory_order_relaxed);
}

static void note_look(struct stream_device *of_device, uint64_t pending)
{
    note_waited_bytes(&of_device->looked_at, pending);
    atomic_store_explicit(&of_device->look_again_at, monotonic_now() + TELL_AGAIN_NANOSECONDS,
                          memory_order_relaxed);
}

/* Does not wait for all that streams have freed. It only gives the device time to tell of work that
 * has completed. */
static bool wait_for_the_rest(struct pool *pool, struct device *device,
                              const struct reclaim *progress)
{
    uint64_t until = monotonic_now() + TELL_NANOSECONDS;
    struct stream_bytes sum = stream_sum(pool, device);
    uint64_t pending = sum.pending + sum.waiting;
    if (!may_look_at_streams(pool, device, progress) ||
        (device && !look_is_due(stream_device(device), pending)))
        return false;
    stream_pending_wait_until(pool, device, smaller_of(until, progress->give_up_at));
    if (device && until <= progress->give_up_at)
        note_look(stream_device(device), pending);
    return false;
}

static uint64_t release(struct pool *pool, struct device *device, uint64_t bytes,
                        enum release_place place)
{
    const struct streams *streams = streams_of(pool);
    if (!streams || place == RELEASE_OUT_OF_MEMORY)
        return stream_release_clean(pool, device, bytes, EVICTION_MEMORY, place);
    if (place == RELEASE_IN_TRIM)
        stream_merge_await_others(streams);
    stream_pending_fence_device(pool, device);
    stream_pending_query(pool, device);
    uint64_t released = stream_release_clean(pool, device, bytes, EVICTION_MEMORY, place);
    /* Blocks that streams release go to the driver's own memory pools first. */
    mempool_trim_ours(pool);
    return released;
}

static void fence_the_rest(struct pool *pool, struct device *device)
{
    if (streams_of(pool))
        stream_pending_fence_device(pool, device);
}

/* Does not count spare memory in segments, since it is no block of the driver's. */
static uint64_t returnable(struct pool *pool, struct device *device)
{
    return stream_sum(pool, device).cached;
}

static uint64_t driver_keeps(struct pool *pool, struct device *device)
{
    return streams_of(pool) ? mempool_unused(pool, device) : 0;
}

static uint64_t driver_has_taken(struct pool *pool, struct device *device)
{
    return streams_of(pool) ? mempool_beside_blocks(pool, device) : 0;
}

static void add_kept(struct pool *pool, struct device *device, struct kept_bytes *sum)
{
    struct stream_bytes streams = stream_sum(pool, device);
    sum->live += streams.live;
    sum->cached += streams.cached + streams.spare;
    sum->pending += streams.pending + streams.waiting;
    sum->in_order += streams.pending + streams.waiting;
}

const struct kind stream_memory = {
    .name = "stream_ordered",
    .number = KIND_STREAM_ORDERED,
    .device_bytes = sizeof(struct stream_device),
    .starts = starts,
    .made_device = made_device,
    .before_end = before_end,
    .give_back_at_end = give_back_at_end,
    .ended = ended,
    .pends_in_order = pends_in_order,
    .synchronised = synchronised,
    .capture_is_coming = capture_is_coming,
    .capture_has_come = capture_has_come,
    .freed_outside = freed_outside,
    .forget_address = stream_block_forget_address,
    .ask = ask,
    .release = release,
    .wait_for_the_rest = wait_for_the_rest,
    .returnable = returnable,
    .fence_the_rest = fence_the_rest,
    .release_idle = stream_reserve_release_idle,
    .watch = stream_reserve_watch,
    .driver_keeps = driver_keeps,
    .driver_has_taken = driver_has_taken,
    .add_kept = add_kept,
    .add_peaks = stream_peaks_add,
    .start_peaks_again = stream_peaks_start_again,
};
