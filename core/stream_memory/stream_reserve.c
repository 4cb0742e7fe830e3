#include "stream_reserve.h"

#include "core/base/clock.h"
#include "core/contexts/device.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/contexts/return_stream.h"
#include "core/housekeeper/housekeeper.h"
#include "core/reclaim/kept.h"
#include "core/reclaim/managed.h"
#include "mempool_calls.h"
#include "stream_merge.h"
#include "stream_pending.h"
#include "stream_release.h"
#include "stream_shelf.h"
#include "stream_sums.h"

/* A stream may have 1/CAP_SHARE of the device's cap free without a look at the other streams,
 * divided by the number of streams. It may do so only while less than half of the cap is used, so
 * all streams together stay within the cap. */
#define CAP_SHARE   8u
#define FEW_STREAMS 16u

/* ---- caps and idle blocks ---- */

/* Returns what all streams keep of the device, and these bytes, once clean blocks beyond the cap
 * have gone back. */
static uint64_t kept_inside_cap(struct pool *pool, struct device *device, uint64_t bytes)
{
    uint64_t cap = stream_device(device)->cached_cap;
    struct stream_bytes sum = stream_sum(pool, device);
    uint64_t kept = sum.cached + sum.pending + bytes;
    if (kept <= cap)
        return kept;
    stream_pending_fence_device(pool, device);
    stream_pending_query(pool, device);
    return kept -
           stream_release_clean(pool, device, kept - cap, EVICTION_CAP, RELEASE_IN_ALLOCATION);
}

bool stream_reserve_keeps(struct pool *pool, struct stream *stream,
                          const struct stream_block *block)
{
    struct device *device = stream->device;
    uint64_t cap = stream_device(device)->cached_cap, bytes = block->block.bytes;
    uint64_t cap_blocks = pool->settings.stream_ordered.caps.blocks_per_bucket;
    if (bytes > cap)
        return false;
    uint64_t kept = kept_inside_cap(pool, device, bytes);
    unsigned count = stream_count(streams_of(pool));
    uint64_t share = cap / CAP_SHARE / (count > FEW_STREAMS ? count : FEW_STREAMS);
    bool fits = kept <= cap;
    lock_take(&stream->lock, LOCK_STREAM);
    stream->unchecked.cap =
        counter_get(&stream->free_bytes) + (fits ? bytes : 0) + (kept <= cap / 2 ? share : 0);
    shelf_set_unchecked(stream);
    bool full = atomic_load_explicit(&block->shelf, memory_order_relaxed)->stream == stream &&
                block->block.bucket->free_blocks >= cap_blocks;
    lock_give(&stream->lock);
    return fits && !full;
}

/* Whether the bucket of the newest pending block has more blocks than the cap. */
static bool newest_fills_its_bucket(const struct pool *pool, const struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    const struct block *last = stream->pending.last;
    return last && last->bucket->free_blocks > pool->settings.stream_ordered.caps.blocks_per_bucket;
}

void stream_reserve_keep_inside_caps(struct pool *pool, struct stream_ref ref, CUstream handle)
{
    struct stream *stream = ref.stream;
    uint64_t cap = stream_device(stream->device)->cached_cap;
    uint64_t kept = kept_inside_cap(pool, stream->device, 0);
    lock_take(&stream->lock, LOCK_STREAM);
    bool full = newest_fills_its_bucket(pool, stream);
    lock_give(&stream->lock);
    if (kept > cap || full)
        stream_release_in_order(pool, ref, handle, kept > cap ? kept - cap : 1, EVICTION_CAP);
}

static void release_idle(struct pool *pool, const struct device *device, uint64_t now)
{
    uint64_t idle = pool->settings.stream_ordered.release_after_idle_ns;
    struct choice choice = {.oldest_first = true, .older_than = now - idle};
    stream_pending_query(pool, device);
    stream_release_chosen(pool, device, choice, UINT64_MAX, EVICTION_IDLE, RELEASE_IN_ALLOCATION);
}

/* Whether it is time to look for idle blocks. True for one thread each time. */
static bool idle_look_is_due(const struct pool *pool, struct device *device, uint64_t now)
{
    uint64_t idle = pool->settings.stream_ordered.release_after_idle_ns;
    uint64_t last =
        atomic_load_explicit(&stream_device(device)->idle_checked_at, memory_order_relaxed);
    /* Blocks carry the time of their stream's last look. A block freed before the first look has
     * none. */
    return idle && now > idle && now >= last + idle / 4 &&
           atomic_compare_exchange_strong_explicit(&stream_device(device)->idle_checked_at, &last,
                                                   now, memory_order_relaxed, memory_order_relaxed);
}

void stream_reserve_look(struct pool *pool, struct stream *stream, uint64_t bytes)
{
    uint64_t now = monotonic_now();
    lock_take(&stream->lock, LOCK_STREAM);
    shelf_note_time(stream, now);
    struct shelf *shelf = atomic_load_explicit(&stream->shelves, memory_order_relaxed);
    for (; shelf; shelf = shelf->next)
        shelf_follow_fall(shelf);
    lock_give(&stream->lock);
    if (idle_look_is_due(pool, stream->device, now))
        release_idle(pool, stream->device, now);
    managed_make_way(pool, stream->device);
    housekeeper_look(pool, bytes);
}

/* ---- idle blocks, by the clock ----
 *
 * A free does not read the clock. A freed block carries the time of its stream's last look, or of
 * the housekeeper's. The time since then is at most one interval more than the block has been free.
 * Times from before the housekeeper ran say nothing. */

static void note_time_everywhere(struct pool *pool, const struct device *device, uint64_t now)
{
    struct streams *streams = streams_of(pool);
    for (unsigned i = 0; i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        if (stream->device != device || counter_get(&stream->reserved_bytes) == 0)
            continue;
        lock_take(&stream->lock, LOCK_STREAM);
        if (stream->now < now)
            shelf_note_time(stream, now);
        lock_give(&stream->lock);
    }
}

/* Returns the time before which a block must have been freed to be due for release; 0: none is
 * due. */
static uint64_t due_before(const struct pool *pool, uint64_t now)
{
    uint64_t since = pool->settings.stream_ordered.release_after_idle_ns + HOUSEKEEPING_INTERVAL;
    uint64_t began = atomic_load_explicit(&pool->housekeeping.began_at, memory_order_relaxed);
    return now - began >= since ? now - since : 0;
}

static uint64_t release_due(struct pool *pool, const struct device *device, uint64_t before)
{
    struct choice choice = {.oldest_first = true, .older_than = before};
    return stream_release_chosen(pool, device, choice, HOUSEKEEPING_PORTION, EVICTION_IDLE,
                                 RELEASE_FOR_OTHERS);
}

/* Returns when the next block is due. */
static uint64_t next_due(struct pool *pool, const struct device *device)
{
    uint64_t since = pool->settings.stream_ordered.release_after_idle_ns + HOUSEKEEPING_INTERVAL;
    uint64_t first = UINT64_MAX - since;
    struct choice choice = {.pool = pool, .oldest_first = true, .older_than = UINT64_MAX};
    for (struct context *c = context_next(pool, NULL, changeable(device)); c;
         c = context_next(pool, c, changeable(device))) {
        choice.context = c;
        choice.generation = context_generation(c);
        uint64_t freed_at = choice_freed_at(&choice);
        first = freed_at < first ? freed_at : first;
    }
    uint64_t began = atomic_load_explicit(&pool->housekeeping.began_at, memory_order_relaxed);
    return (first > began ? first : began) + since;
}

uint64_t stream_reserve_release_idle(struct pool *pool, struct device *device, uint64_t now)
{
    if (!streams_of(pool) || !pool->settings.stream_ordered.release_after_idle_ns)
        return UINT64_MAX;
    struct stream_bytes sum = stream_sum(pool, device);
    note_time_everywhere(pool, device, now);
    if (sum.cached + sum.pending == 0 && !stream_merge_has_waiting(streams_of(pool), device))
        return UINT64_MAX;
    stream_pending_fence_device(pool, device);
    stream_pending_query(pool, device);
    uint64_t before = due_before(pool, now);
    uint64_t released = before ? release_due(pool, device, before) : 0;
    if (released)
        mempool_trim_ours(pool);
    return released < HOUSEKEEPING_PORTION ? next_due(pool, device) : RELEASE_MORE_AT_ONCE;
}

/* Trims the driver's own pools: what they hold because of a release threshold that the pool has set
 * is idle as well. False: some of it is pending there, and stays when its work has completed. */
static bool empty_drivers_pools(struct pool *pool)
{
    uint64_t left = 0;
    mempool_trim_ours(pool);
    struct device *device = registry_devices(&pool->registry);
    for (; device; device = device->next)
        left += mempool_unused(pool, device);
    return left == 0;
}

bool stream_reserve_watch(struct pool *pool)
{
    struct streams *streams = streams_of(pool);
    bool any = false;
    for (unsigned i = 0; streams && i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        lock_take(&stream->lock, LOCK_STREAM);
        stream->frees_until_look = 0;
        any |= counter_get(&stream->free_bytes) != 0 || stream_has_waiting(stream);
        lock_give(&stream->lock);
    }
    return any || (streams && !empty_drivers_pools(pool));
}

/* ---- before a miss ---- */

/* If the memory pool has a release threshold, the driver would keep what was needed once, and give
 * it out again in any size. So the pool may reserve this many times the peak, plus this many growth
 * budgets. */
#define THRESHOLD_PEAKS   2u
#define THRESHOLD_BUDGETS 4u

/* Bytes that may be reserved in all, if the program is to hold so many more. What the driver's
 * memory pool would keep anyway costs nobody anything here, except where memory is short. */
static uint64_t bound_on_reserve(const struct pool *pool, const struct device *device,
                                 const struct mempool *mempool, uint64_t bytes)
{
    const struct stream_device *of_device = stream_device(device);
    uint64_t live = atomic_load_explicit(&of_device->live_bytes, memory_order_relaxed);
    uint64_t peak = larger_of(counter_get(&of_device->counters->peak_requested), live + bytes);
    uint64_t threshold = atomic_load_explicit(&mempool->release_threshold, memory_order_relaxed);
    uint64_t needed = THRESHOLD_PEAKS * peak + THRESHOLD_BUDGETS * device->growth_budget;
    uint64_t floor = larger_of(smaller_of(threshold, needed), of_device->reserve_floor);
    return bound_on_taken(pool->settings.stream_ordered.caps.reserve_ratio, peak,
                          device->growth_budget, device_is_short(device) ? 0 : floor);
}

bool stream_reserve_has_room(const struct pool *pool, const struct context *context,
                             const struct mempool *mempool, uint64_t bytes)
{
    const struct device *device = context->device;
    uint64_t reserved =
        atomic_load_explicit(&stream_device(device)->reserved_bytes, memory_order_relaxed);
    return reserved + bytes <= bound_on_reserve(pool, device, mempool, bytes);
}

/* Each time the memory that is left of the device has halved, pending blocks without a fence get
 * one. Once no memory is left, the program may have submitted more work, and a new fence would
 * stand for that too. */
static void look_at_what_is_left(struct pool *pool, struct device *device, uint64_t bytes)
{
    uint64_t taken = device_resident(device) + bytes;
    uint64_t left = taken < device->total_bytes ? device->total_bytes - taken : 1;
    uint64_t noted = atomic_load_explicit(&stream_device(device)->left_bytes, memory_order_relaxed);
    if (noted == 0)
        noted = device->total_bytes;
    if (left >= noted / 2 && left / 2 <= noted)
        return;
    atomic_store_explicit(&stream_device(device)->left_bytes, left, memory_order_relaxed);
    if (left > noted)
        return;
    struct context *c = context_next(pool, NULL, device);
    for (; c; c = context_next(pool, c, device))
        stream_pending_fence(pool, c);
}

static void query_now_and_then(struct pool *pool, const struct device *device)
{
    struct streams *streams = streams_of(pool);
    uint64_t started;
    if (streams_are_paused(streams, &streams->queries, &started))
        return;
    stream_pending_query_once(pool, device);
    streams_pause_after(streams, &streams->queries, started);
}

/* A release here costs a driver call for each block, inside an allocation that does not need the
 * memory. It also costs a miss for whoever would have reused the block. So small blocks are
 * released only where a few large ones are not enough. */
#define FEW_BLOCKS 8u

static uint64_t worth_a_call(uint64_t bytes, bool small)
{
    return small ? 1 : bytes / FEW_BLOCKS + 1;
}

static uint64_t release_hastily(struct pool *pool, const struct device *device, uint64_t bytes,
                                bool small)
{
    struct streams *streams = streams_of(pool);
    struct choice choice = choice_any(pool);
    uint64_t started;
    choice.hastily = true;
    choice.at_least = worth_a_call(bytes, small);
    if (streams_are_paused(streams, &streams->releases[small], &started))
        return 0;
    uint64_t released =
        stream_release_chosen(pool, device, choice, bytes, EVICTION_CAP, RELEASE_IN_ALLOCATION);
    if (released == 0)
        streams_pause_after(streams, &streams->releases[small], started);
    return released;
}

static uint64_t release_behind_events_now_and_then(struct pool *pool, struct context *context,
                                                   uint64_t bytes, bool small)
{
    struct streams *streams = streams_of(pool);
    uint64_t started;
    if (streams_are_paused(streams, &streams->releases_behind[small], &started) ||
        !context_pin(context, context_generation(context)))
        return 0;
    uint64_t released =
        stream_release_behind_events(pool, context, bytes, worth_a_call(bytes, small), NULL);
    if (released == 0)
        streams_pause_after(streams, &streams->releases_behind[small], started);
    context_unpin(context);
    return released;
}

static uint64_t release_for_growth(struct pool *pool, struct context *context,
                                   struct stream_ref ref, CUstream handle, uint64_t bytes,
                                   bool small)
{
    uint64_t released = release_hastily(pool, context->device, bytes, small);
    if (released < bytes)
        released += stream_release_in_order(pool, ref, handle, bytes - released, EVICTION_CAP);
    if (released < bytes)
        released += release_behind_events_now_and_then(pool, context, bytes - released, small);
    return released;
}

bool stream_reserve_before_growth(struct pool *pool, struct context *context,
                                  const struct mempool *mempool, uint64_t bytes,
                                  struct stream_ref ref, CUstream handle)
{
    struct device *device = context->device;
    uint64_t after =
        atomic_load_explicit(&stream_device(device)->reserved_bytes, memory_order_relaxed) + bytes;
    look_at_what_is_left(pool, device, bytes);
    uint64_t bound = bound_on_reserve(pool, device, mempool, bytes);
    if (after <= bound)
        return false;
    query_now_and_then(pool, device);
    uint64_t excess = after - bound;
    uint64_t released = release_for_growth(pool, context, ref, handle, excess, false);
    if (released < excess)
        released += release_for_growth(pool, context, ref, handle, excess - released, true);
    return released != 0;
}
