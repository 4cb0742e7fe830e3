#include "stream_release.h"

#include <string.h>

#include "core/base/clock.h"
#include "core/base/mutation.h"
#include "core/contexts/pool_state.h"
#include "core/driver/calls.h"
#include "mempool.h"
#include "stream_find.h"
#include "stream_order.h"
#include "stream_shelf.h"
#include "use.h"

/* A stream may keep this share of the device's cap without a look at the others, divided by the
 * number of streams; and only while less than half of the cap is used: so together they stay
 * inside. */
#define CAP_SHARE   8u
#define FEW_STREAMS 16u

/* How long the end of a context, or who is out of memory, waits for what is pending, at most. */
#define PATIENCE_NANOSECONDS (UINT64_C(10) * 1000 * 1000 * 1000)

/* ---- sums ---- */

struct stream_bytes stream_release_sum(struct pool *pool, const struct device *device)
{
    struct streams *streams = streams_of(pool);
    struct stream_bytes sum = {0, 0, 0, 0};
    for (unsigned i = 0; streams && i < stream_count(streams); i++) {
        const struct stream *stream = stream_at(streams, i);
        if (device && stream->device != device)
            continue;
        uint64_t free = counter_get(&stream->free_bytes), clean = counter_get(&stream->clean_bytes);
        uint64_t reserved = counter_get(&stream->reserved_bytes);
        /* Others may be changing them meanwhile. */
        sum.live += reserved > free ? reserved - free : 0;
        sum.cached += clean;
        sum.pending += free > clean ? free - clean : 0;
        const struct shelf *s = atomic_load_explicit(&stream->shelves, memory_order_acquire);
        for (; s; s = s->next)
            sum.requested += counter_get(&s->used_bytes);
    }
    return sum;
}

/* ---- choosing ---- */

struct choice {
    struct pool *pool;
    struct context *context;
    uint64_t generation;
    const struct mempool *mempool; /* NULL: any */
    uint64_t older_than;           /* freed_at; UINT64_MAX: any */
    bool oldest_first, pending_too;
    bool hastily; /* of many streams only some are looked at, and what is not known to be over yet
                     is left out */
};

/* Stream's lock held. */
static bool is_of(const struct choice *choice, const struct stream *stream)
{
    return stream->context == choice->context && stream->generation == choice->generation;
}

static bool is_better(const struct choice *choice, const struct block *a, const struct block *b)
{
    return !b || (choice->oldest_first ? a->freed_at < b->freed_at : a->bytes > b->bytes);
}

/* Stream's lock held. */
static struct block *best_of(const struct choice *choice, const struct stream *stream)
{
    struct block *best = NULL;
    struct shelf *shelf = atomic_load_explicit(&stream->shelves, memory_order_relaxed);
    for (; shelf; shelf = shelf->next) {
        if (choice->mempool && shelf->mempool != choice->mempool)
            continue;
        struct shelf_bucket *b = atomic_load_explicit(&shelf->buckets, memory_order_relaxed);
        for (; b; b = b->next) {
            struct block *oldest = b->bucket.clean.first;
            if (!oldest && choice->pending_too)
                oldest = b->bucket.pending.first;
            if (oldest && oldest->freed_at <= choice->older_than && is_better(choice, oldest, best))
                best = oldest;
        }
    }
    return best;
}

struct best {
    struct stream *stream;
    struct block block; /* a copy */
};

static bool is_worth_a_look(const struct choice *choice, const struct stream *stream)
{
    return counter_get(choice->hastily ? &stream->clean_bytes : &stream->free_bytes) != 0;
}

/* Of many streams a few that have something are enough, others each time. */
static bool find_best(const struct choice *choice, struct best *best)
{
    struct streams *streams = streams_of(choice->pool);
    unsigned count = stream_count(streams);
    bool few = !choice->hastily || !streams_are_many(streams);
    unsigned from = few ? 0
                        : atomic_fetch_add_explicit(&streams->released_from, STREAMS_MANY,
                                                    memory_order_relaxed);
    best->stream = NULL;
    for (unsigned n = 0; n < count && (few || !best->stream || n < STREAMS_MANY); n++) {
        struct stream *stream = stream_at(streams, (from + n) % count);
        if (!is_worth_a_look(choice, stream))
            continue;
        short_lock_take(&stream->lock);
        order_settle(stream);
        struct block *found = is_of(choice, stream) ? best_of(choice, stream) : NULL;
        if (found && is_better(choice, found, best->stream ? &best->block : NULL)) {
            best->stream = stream;
            best->block = *found;
        }
        short_lock_give(&stream->lock);
    }
    return best->stream != NULL;
}

/* Stream's lock held. Takes the block out of everything but its shelf's count of driver calls. It
 * is away until settle has seen to it. */
static void detach(struct pool *pool, struct stream *stream, struct block *found)
{
    struct stream_block *block = stream_block_of(found);
    stream_heap_detach(stream, block);
    stream_block_is_away(stream);
    block_table_remove(&streams_of(pool)->blocks, block_address(found), found);
}

/* Takes blocks of that stream like the best one, chained through their heap links. */
static struct block *take_like(const struct choice *choice, const struct best *best,
                               uint64_t wanted, struct block *chain, uint64_t *taken)
{
    struct stream *stream = best->stream;
    struct block *found;
    short_lock_take(&stream->lock);
    while (*taken < wanted && is_of(choice, stream) && (found = best_of(choice, stream)) != NULL &&
           (choice->oldest_first ? found->freed_at <= best->block.freed_at
                                 : found->bytes >= best->block.bytes)) {
        detach(choice->pool, stream, found);
        found->links[LINK_HEAP].next = chain;
        chain = found;
        *taken += found->bytes;
    }
    short_lock_give(&stream->lock);
    return chain;
}

static struct block *collect(const struct choice *choice, uint64_t wanted)
{
    struct block *chain = NULL;
    struct best best = {NULL, {0}};
    uint64_t taken = 0;
    while (taken < wanted && find_best(choice, &best)) {
        uint64_t before = taken;
        chain = take_like(choice, &best, wanted, chain, &taken);
        if (taken == before)
            break; /* another thread was faster */
    }
    return chain;
}

/* ---- giving back; the context is pinned or ending ---- */

/* Of such memory the driver's plain free does not wait; but it comes before what the stream waits
 * for. */
static bool give_to_driver(const struct driver *driver, CUdeviceptr address, CUstream stream,
                           bool ordered)
{
    return driver->cuMemFreeAsync(address, stream) == CUDA_SUCCESS ||
           (!ordered && driver->cuMemFree_v2(address) == CUDA_SUCCESS);
}

/* The context's, if nothing on it is under way: memory must not wait for other memory's work. Else
 * one for this once. */
static CUstream free_stream(struct pool *pool, struct context *context, bool *once)
{
    const struct driver *driver = pool->driver;
    CUstream stream = driver->cuStreamQuery ? late_return_stream(pool, context) : NULL;
    *once = !stream || driver->cuStreamQuery(stream) != CUDA_SUCCESS;
    if (*once && driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return NULL;
    return stream;
}

/* The stream that blocks go back on. The one that is synchronised now and then must never be behind
 * anything; behind work that is not over there is another one. */
static CUstream stream_behind(struct pool *pool, struct context *context,
                              const struct own_event *after, bool *once)
{
    const struct driver *driver = pool->driver;
    *once = false;
    if (!after)
        return return_stream(pool, context);
    CUstream stream = free_stream(pool, context, once);
    if (!stream || driver->cuStreamWaitEvent(stream, after->event, 0) == CUDA_SUCCESS)
        return stream;
    if (*once)
        driver->cuStreamDestroy_v2(stream);
    *once = false;
    return NULL;
}

static void hand_over(struct pool *pool, struct context *context, struct block *chain,
                      const struct own_event *after, enum release_place place)
{
    const struct driver *driver = pool->driver;
    bool pushed;
    enter_driver();
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    bool current = context_push(pool, context, &pushed);
    bool once = false;
    CUstream stream = current ? stream_behind(pool, context, after, &once) : NULL;
    for (struct block *b = chain; b; b = b->links[LINK_HEAP].next)
        b->refused = !stream || !give_to_driver(driver, block_address(b), stream, after != NULL);
    /* An allocation or a free that goes on without the memory need not wait until it is back. */
    if (stream && !after && place != RELEASE_IN_ALLOCATION)
        return_wait(pool, context, stream, place);
    if (stream && once)
        driver->cuStreamDestroy_v2(stream);
    if (current)
        context_pop(pool, pushed);
    relaxed_mode_end(pool->driver, mode);
    leave_driver();
}

bool stream_release_one_behind(struct pool *pool, const struct own_event *event,
                               CUdeviceptr address)
{
    struct context *context = event->context;
    bool pushed, once = false;
    if (!context_pin(context, event->generation))
        return false;
    bool current = context_push(pool, context, &pushed);
    CUstream stream = current ? stream_behind(pool, context, event, &once) : NULL;
    bool given = stream && pool->driver->cuMemFreeAsync(address, stream) == CUDA_SUCCESS;
    if (stream && once)
        pool->driver->cuStreamDestroy_v2(stream);
    if (current)
        context_pop(pool, pushed);
    context_unpin(context);
    return given;
}

static void put_back(struct pool *pool, struct stream_block *block)
{
    struct shelf *shelf = atomic_load_explicit(&block->shelf, memory_order_relaxed);
    if (!block_table_insert(&streams_of(pool)->blocks, block_address(&block->block), &block->block))
        return;
    short_lock_take(&shelf->stream->lock);
    stream_heap_attach(shelf, block);
    short_lock_give(&shelf->stream->lock);
}

static void count_return(const struct stream_block *block, enum eviction reason,
                         uint64_t nanoseconds)
{
    struct shelf *shelf = atomic_load_explicit(&block->shelf, memory_order_relaxed);
    struct bucket_counters *counters = block->block.bucket->counters;
    short_lock_take(&shelf->stream->lock);
    bucket_count_return(counters, reason, nanoseconds);
    short_lock_give(&shelf->stream->lock);
}

static uint64_t settle(struct pool *pool, struct block *chain, enum eviction reason, uint64_t each)
{
    uint64_t released = 0;
    for (struct block *next, *b = chain; b; b = next) {
        struct stream_block *block = stream_block_of(b);
        struct shelf *shelf = atomic_load_explicit(&block->shelf, memory_order_relaxed);
        next = b->links[LINK_HEAP].next;
        if (b->refused) {
            put_back(pool, block);
        } else {
            released += b->bytes;
            count_return(block, reason, each);
            stream_heap_forget_free(pool, block);
        }
        stream_block_is_settled(shelf->stream);
    }
    return released;
}

static uint64_t count_blocks(const struct block *chain)
{
    uint64_t count = 0;
    for (; chain; chain = chain->links[LINK_HEAP].next)
        count++;
    return count;
}

static uint64_t give_back(const struct choice *choice, uint64_t wanted, enum eviction reason,
                          const struct own_event *after, enum release_place place)
{
    _Atomic uint64_t *returning = &choice->context->device->returning;
    uint64_t released = 0;
    /* As in release.c: whoever is out of memory meanwhile waits for it. */
    atomic_fetch_add_explicit(returning, 1, memory_order_relaxed);
    struct block *chain = collect(choice, wanted);
    if (chain) {
        uint64_t started = monotonic_now();
        hand_over(choice->pool, choice->context, chain, after, place);
        uint64_t each = (monotonic_now() - started) / count_blocks(chain);
        released = settle(choice->pool, chain, reason, each);
    }
    atomic_fetch_sub_explicit(returning, 1, memory_order_relaxed);
    return released;
}

static uint64_t release_in(struct pool *pool, struct context *context, struct choice choice,
                           uint64_t wanted, enum eviction reason, enum release_place place)
{
    choice.pool = pool;
    choice.context = context;
    choice.generation = context_generation(context);
    if (!pool->driver->cuMemFreeAsync || !context_pin(context, choice.generation))
        return 0;
    uint64_t released = give_back(&choice, wanted, reason, NULL, place);
    context_unpin(context);
    return released;
}

static struct choice any_choice(const struct pool *pool)
{
    bool lru = pool->settings.stream_ordered.evict == EVICT_LEAST_RECENTLY_USED;
    return (struct choice){.older_than = UINT64_MAX, .oldest_first = lru};
}

static struct device *changeable(const struct device *device)
{
    return (struct device *)(uintptr_t)device;
}

static uint64_t release_chosen(struct pool *pool, const struct device *device, struct choice choice,
                               uint64_t bytes, enum eviction reason, enum release_place place)
{
    uint64_t released = 0;
    struct context *c = streams_of(pool) ? context_next(pool, NULL, changeable(device)) : NULL;
    for (; c && released < bytes; c = context_next(pool, c, changeable(device)))
        released += release_in(pool, c, choice, bytes - released, reason, place);
    return released;
}

uint64_t stream_release_clean(struct pool *pool, const struct device *device, uint64_t bytes,
                              enum eviction reason, enum release_place place)
{
    return release_chosen(pool, device, any_choice(pool), bytes, reason, place);
}

/* In an allocation that goes on without it. */
static uint64_t release_hastily(struct pool *pool, const struct device *device, uint64_t bytes)
{
    struct streams *streams = streams_of(pool);
    struct choice choice = any_choice(pool);
    uint64_t started;
    choice.hastily = true;
    if (streams_pause(streams, &streams->releases, &started))
        return 0;
    uint64_t released =
        release_chosen(pool, device, choice, bytes, EVICTION_CAP, RELEASE_IN_ALLOCATION);
    if (released == 0)
        streams_rest(streams, &streams->releases, started);
    return released;
}

/* ---- caps and idle blocks ---- */

bool stream_release_room(struct pool *pool, struct stream *stream, const struct stream_block *block)
{
    struct device *device = stream->device;
    uint64_t cap = stream_device(device)->cached_cap, bytes = block->block.bytes;
    uint64_t cap_blocks = pool->settings.stream_ordered.caps.blocks_per_bucket;
    if (bytes > cap)
        return false;
    struct stream_bytes sum = stream_release_sum(pool, device);
    uint64_t kept = sum.cached + sum.pending + bytes;
    if (kept > cap) {
        stream_release_settle(pool, device);
        kept -= stream_release_clean(pool, device, kept - cap, EVICTION_CAP, RELEASE_IN_ALLOCATION);
    }
    unsigned count = stream_count(streams_of(pool));
    uint64_t share = cap / CAP_SHARE / (count > FEW_STREAMS ? count : FEW_STREAMS);
    bool fits = kept <= cap || MUTATED(stream_cap_ignored);
    short_lock_take(&stream->lock);
    stream->may_keep =
        counter_get(&stream->free_bytes) + (fits ? bytes : 0) + (kept <= cap / 2 ? share : 0);
    shelf_set_quiet(stream);
    bool full = atomic_load_explicit(&block->shelf, memory_order_relaxed)->stream == stream &&
                block->block.bucket->free_blocks >= cap_blocks;
    short_lock_give(&stream->lock);
    return fits && !full;
}

static void release_idle(struct pool *pool, const struct device *device, uint64_t now)
{
    uint64_t idle = pool->settings.stream_ordered.release_after_idle_ns;
    struct choice choice = {.oldest_first = true, .older_than = now - idle};
    struct context *c = context_next(pool, NULL, changeable(device));
    stream_release_settle(pool, device);
    for (; c; c = context_next(pool, c, changeable(device)))
        release_in(pool, c, choice, UINT64_MAX, EVICTION_IDLE, RELEASE_IN_ALLOCATION);
}

/* True for one thread each time. */
static bool idle_look_is_due(const struct pool *pool, struct device *device, uint64_t now)
{
    uint64_t idle = pool->settings.stream_ordered.release_after_idle_ns;
    uint64_t last =
        atomic_load_explicit(&stream_device(device)->idle_checked_at, memory_order_relaxed);
    /* The blocks carry times of looks: those of before the first one have none. */
    return idle && now > idle && now >= last + idle / 4 &&
           atomic_compare_exchange_strong_explicit(&stream_device(device)->idle_checked_at, &last,
                                                   now, memory_order_relaxed, memory_order_relaxed);
}

void stream_release_look(struct pool *pool, struct stream *stream)
{
    uint64_t now = monotonic_now();
    short_lock_take(&stream->lock);
    stream->now = now;
    short_lock_give(&stream->lock);
    if (idle_look_is_due(pool, stream->device, now))
        release_idle(pool, stream->device, now);
}

/* ---- in the stream's own order ---- */

/* Stream's lock held. The oldest pending blocks up to that stamp, so many bytes of them. */
static struct block *take_pending(struct pool *pool, struct stream *stream, uint64_t stamp,
                                  uint64_t bytes)
{
    struct block *found, *chain = NULL;
    for (uint64_t taken = 0; taken < bytes; taken += found->bytes) {
        found = stream->pending.first;
        if (!found || counter_get(&found->epoch) > stamp)
            break;
        detach(pool, stream, found);
        found->links[LINK_HEAP].next = chain;
        chain = found;
    }
    return chain;
}

/* Oldest first, as they were freed: the chain has the newest first. */
static struct block *turn_round(struct block *chain)
{
    struct block *turned = NULL;
    for (struct block *next; chain; chain = next) {
        next = chain->links[LINK_HEAP].next;
        chain->links[LINK_HEAP].next = turned;
        turned = chain;
    }
    return turned;
}

static uint64_t hand_over_in_order(struct pool *pool, CUstream handle, struct block *chain,
                                   enum eviction reason)
{
    if (!chain)
        return 0;
    uint64_t started = monotonic_now();
    chain = turn_round(chain);
    enter_driver();
    for (struct block *b = chain; b; b = b->links[LINK_HEAP].next)
        b->refused = pool->driver->cuMemFreeAsync(block_address(b), handle) != CUDA_SUCCESS;
    leave_driver();
    uint64_t each = (monotonic_now() - started) / count_blocks(chain);
    return settle(pool, chain, reason, each);
}

static uint64_t in_order(struct pool *pool, struct stream_ref ref, CUstream handle, uint64_t bytes,
                         enum eviction reason)
{
    struct block *chain = NULL;
    short_lock_take(&ref.stream->lock);
    if (stream_is(ref) && (!ref.stream->ordered_by_others || MUTATED(released_in_others_order)))
        chain = take_pending(pool, ref.stream, UINT64_MAX, bytes);
    short_lock_give(&ref.stream->lock);
    return hand_over_in_order(pool, handle, chain, reason);
}

uint64_t stream_release_in_order(struct pool *pool, struct stream_ref ref, CUstream handle)
{
    return in_order(pool, ref, handle, UINT64_MAX, EVICTION_MEMORY);
}

/* The context is ending, and the stream's work with it. */
static void in_order_at_the_end(struct pool *pool, struct stream_ref ref, CUstream handle)
{
    struct block *chain = NULL;
    short_lock_take(&ref.stream->lock);
    if (stream_is(ref))
        chain = take_pending(pool, ref.stream, UINT64_MAX, UINT64_MAX);
    short_lock_give(&ref.stream->lock);
    hand_over_in_order(pool, handle, chain, EVICTION_MEMORY);
}

/* ---- behind an event of ours ---- */

/* Stream's lock held. The first event that tells of the stream's oldest pending block, and of
 * nothing that came after its free; used by the caller. */
static struct own_event *use_first_event(struct stream *stream)
{
    const struct block *first = stream->pending.first;
    struct own_event *event =
        first ? order_first_in_free(stream, counter_get(&first->epoch)) : NULL;
    if (event)
        event->users++;
    return event;
}

/* False where nothing there can go. */
static bool release_behind_one(struct pool *pool, struct context *context, struct stream *stream,
                               uint64_t bytes, enum eviction reason, uint64_t *released)
{
    struct block *chain = NULL;
    short_lock_take(&stream->lock);
    order_settle(stream);
    struct own_event *event = stream->context == context ? use_first_event(stream) : NULL;
    if (event)
        chain = take_pending(pool, stream, event->stamp, bytes);
    short_lock_give(&stream->lock);
    if (!event)
        return false;
    uint64_t started = monotonic_now(), before = *released;
    hand_over(pool, context, chain, event, RELEASE_IN_ALLOCATION);
    uint64_t each = (monotonic_now() - started) / count_blocks(chain);
    *released += settle(pool, chain, reason, each);
    short_lock_take(&stream->lock);
    order_drop_user(stream, event);
    short_lock_give(&stream->lock);
    return *released > before;
}

/* The context is pinned. */
static uint64_t release_behind_events(struct pool *pool, struct context *context, uint64_t bytes)
{
    struct streams *streams = streams_of(pool);
    uint64_t released = 0;
    for (unsigned i = 0; i < stream_count(streams); i++)
        while (released < bytes && release_behind_one(pool, context, stream_at(streams, i),
                                                      bytes - released, EVICTION_CAP, &released))
            continue;
    return released;
}

uint64_t stream_release_behind(struct pool *pool, struct stream_ref ref, struct context *context,
                               uint64_t *stamp)
{
    struct stream *stream = ref.stream;
    uint64_t released = 0;
    short_lock_take(&stream->lock);
    const struct own_event *last =
        stream_is(ref) && stream->ordered_by_others ? order_last_in_free(stream) : NULL;
    *stamp = last ? last->stamp : 0;
    short_lock_give(&stream->lock);
    if (!*stamp || !context_pin(context, context_generation(context)))
        return 0;
    while (release_behind_one(pool, context, stream, UINT64_MAX, EVICTION_MEMORY, &released))
        continue;
    context_unpin(context);
    return released;
}

bool stream_release_wait_behind(struct pool *pool, struct stream *stream, uint64_t stamp)
{
    uint64_t started = monotonic_now();
    CUresult result;
    while ((result = order_ask(pool, stream, stamp)) == CUDA_ERROR_NOT_READY &&
           monotonic_now() - started < PATIENCE_NANOSECONDS)
        patient_nap(started);
    thread_state.waited_ns += monotonic_now() - started;
    return result == CUDA_SUCCESS;
}

/* ---- what turns out to be over ---- */

static uint64_t newest_stamp(struct stream *stream)
{
    short_lock_take(&stream->lock);
    order_settle(stream);
    uint64_t stamp = stream->pending.first && stream->newest ? stream->newest->stamp : 0;
    short_lock_give(&stream->lock);
    return stamp;
}

static void settle_streams(struct pool *pool, const struct device *device,
                           bool (*query)(struct pool *, struct stream *, uint64_t))
{
    struct streams *streams = streams_of(pool);
    for (unsigned i = 0; streams && i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        if ((device && stream->device != device) || counter_get(&stream->free_bytes) == 0)
            continue;
        uint64_t stamp = newest_stamp(stream);
        /* The newest first: it may settle all. */
        if (stamp && !query(pool, stream, stamp))
            while (newest_stamp(stream) && query(pool, stream, 1))
                continue;
    }
}

void stream_release_settle(struct pool *pool, const struct device *device)
{
    settle_streams(pool, device, order_query);
}

/* ---- before a miss ---- */

/* Where the memory pool has a release threshold, the driver would hold on to what was needed once,
 * and give it out again in any size: so twice the peak is kept, and so many growth budgets. */
#define THRESHOLD_PEAKS   2u
#define THRESHOLD_BUDGETS 4u

/* Bytes that may be reserved in all. What the driver's memory pool keeps anyway costs nobody
 * anything here, except where memory is short. */
static uint64_t bound_on_reserve(const struct pool *pool, const struct device *device,
                                 const struct mempool *mempool)
{
    uint64_t peak = counter_get(&stream_device(device)->counters->peak_requested);
    uint64_t bound = (uint64_t)((double)peak * pool->settings.stream_ordered.caps.reserve_ratio) +
                     device->growth_budget;
    uint64_t kept = atomic_load_explicit(&mempool->kept, memory_order_relaxed);
    uint64_t needed = THRESHOLD_PEAKS * peak + THRESHOLD_BUDGETS * device->growth_budget;
    bool is_short = atomic_load_explicit(&device->is_short, memory_order_relaxed);
    if (kept > needed && !MUTATED(threshold_taken_for_need))
        kept = needed;
    return kept > bound && !is_short ? kept : bound;
}

bool stream_release_has_room(struct pool *pool, const struct context *context,
                             const struct mempool *mempool, uint64_t bytes)
{
    const struct device *device = context->device;
    uint64_t reserved =
        atomic_load_explicit(&stream_device(device)->reserved_bytes, memory_order_relaxed);
    return reserved + bytes <= bound_on_reserve(pool, device, mempool);
}

/* Each time what is left of the device has halved, what is pending without an event gets one: when
 * there is none left, the program may have submitted more work behind it. */
static void look_at_what_is_left(struct pool *pool, struct device *device, uint64_t bytes)
{
    uint64_t taken = atomic_load_explicit(&device->reserved_bytes, memory_order_relaxed) + bytes;
    uint64_t left = taken < device->total_bytes ? device->total_bytes - taken : 1;
    uint64_t noted = atomic_load_explicit(&stream_device(device)->left_bytes, memory_order_relaxed);
    if (noted == 0)
        noted = device->total_bytes;
    if (left >= noted / 2 && left / 2 <= noted)
        return;
    atomic_store_explicit(&stream_device(device)->left_bytes, left, memory_order_relaxed);
    if (left > noted || MUTATED(shortage_unnoticed))
        return;
    struct context *c = context_next(pool, NULL, device);
    for (; c; c = context_next(pool, c, device))
        order_record_where_missing(pool, c);
}

/* Of many streams the sum is only made now and then: a peak between may not be seen. */
static void raise_peaks(struct pool *pool, struct device *device, uint64_t bytes, uint64_t after)
{
    struct streams *streams = streams_of(pool);
    uint64_t started;
    counter_raise_to(&stream_device(device)->counters->peak_reserved, after);
    counter_raise_shared(&stream_device(device)->counters->recent_peak, after);
    if (streams_pause(streams, &streams->sums, &started))
        return;
    /* Two threads may both be right. */
    counter_raise_to(&stream_device(device)->counters->peak_requested,
                     stream_release_sum(pool, device).requested + bytes);
    streams_rest(streams, &streams->sums, started);
}

static void settle_now_and_then(struct pool *pool, const struct device *device)
{
    struct streams *streams = streams_of(pool);
    uint64_t started;
    if (streams_pause(streams, &streams->settling, &started))
        return;
    settle_streams(pool, device, order_query_sparingly);
    streams_rest(streams, &streams->settling, started);
}

static uint64_t release_behind_events_now_and_then(struct pool *pool, struct context *context,
                                                   uint64_t bytes)
{
    struct streams *streams = streams_of(pool);
    uint64_t started;
    if (streams_pause(streams, &streams->releases_behind, &started) ||
        !context_pin(context, context_generation(context)))
        return 0;
    uint64_t released = release_behind_events(pool, context, bytes);
    if (released == 0)
        streams_rest(streams, &streams->releases_behind, started);
    context_unpin(context);
    return released;
}

bool stream_release_before_growth(struct pool *pool, struct context *context,
                                  const struct mempool *mempool, uint64_t bytes,
                                  struct stream_ref ref, CUstream handle)
{
    struct device *device = context->device;
    uint64_t after =
        atomic_load_explicit(&stream_device(device)->reserved_bytes, memory_order_relaxed) + bytes;
    raise_peaks(pool, device, bytes, after);
    look_at_what_is_left(pool, device, bytes);
    uint64_t bound = bound_on_reserve(pool, device, mempool);
    if (after <= bound)
        return false;
    settle_now_and_then(pool, device);
    uint64_t excess = after - bound;
    uint64_t released = release_hastily(pool, device, excess);
    if (released < excess && !MUTATED(own_pending_kept))
        released += in_order(pool, ref, handle, excess - released, EVICTION_CAP);
    if (released < excess)
        released += release_behind_events_now_and_then(pool, context, excess - released);
    return released != 0;
}

/* ---- what turns out to be over, with patience ---- */

static bool is_pending_in(struct pool *pool, const struct context *context)
{
    struct streams *streams = streams_of(pool);
    bool pending = false;
    for (unsigned i = 0; i < stream_count(streams) && !pending; i++) {
        struct stream *stream = stream_at(streams, i);
        short_lock_take(&stream->lock);
        order_settle(stream);
        pending = stream->context == context && stream->pending.first;
        short_lock_give(&stream->lock);
    }
    return pending;
}

/* Whether an event of ours tells when the first of what is pending there is over. */
static bool has_event(struct stream *stream, const struct context *context)
{
    short_lock_take(&stream->lock);
    order_settle(stream);
    bool has = stream->context == context && stream->pending.first && stream->newest &&
               stream->newest->stamp >= counter_get(&stream->pending.first->epoch);
    short_lock_give(&stream->lock);
    return has;
}

/* Asks about what is pending there. Whether events of ours will tell when it is over; not those of
 * which the driver says that something is wrong. */
static bool is_awaited(struct pool *pool, const struct context *context)
{
    struct streams *streams = streams_of(pool);
    bool awaited = false;
    for (unsigned i = 0; i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        CUresult result = CUDA_SUCCESS;
        while (result == CUDA_SUCCESS && has_event(stream, context))
            result = order_ask(pool, stream, 1);
        awaited = awaited || result == CUDA_ERROR_NOT_READY;
    }
    return awaited;
}

/* An event over all of the context's work so far, of our own; the caller destroys it. Under the
 * fence lock, so that no capture begins meanwhile. */
static bool record_context(struct pool *pool, struct context *context, CUevent *event)
{
    const struct driver *driver = pool->driver;
    bool pushed, recorded = false;
    if (!driver->cuCtxRecordEvent || !context_push(pool, context, &pushed))
        return false;
    if (driver->cuEventCreate(event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS) {
        pthread_mutex_lock(&pool->fence_lock);
        recorded = !program_captures(&pool->captures) &&
                   driver->cuCtxRecordEvent(context->handle, *event) == CUDA_SUCCESS;
        pthread_mutex_unlock(&pool->fence_lock);
        if (!recorded)
            driver->cuEventDestroy_v2(*event);
    }
    context_pop(pool, pushed);
    return recorded;
}

/* A context and who uses it: somebody who waits pins it only for single calls of the driver's,
 * since its end, or what only might be one, waits for pins. Whoever ends it himself needs none. */
struct visit {
    struct context *context;
    uint64_t generation;
    bool ends;
};

static bool begin_calls(const struct visit *visit)
{
    return visit->ends || context_pin(visit->context, visit->generation);
}

static void end_calls(const struct visit *visit)
{
    if (!visit->ends)
        context_unpin(visit->context);
}

/* While it is not known whether the context ends, nothing is. */
static CUresult ask(struct pool *pool, const struct visit *visit, CUevent event)
{
    if (!begin_calls(visit))
        return context_generation(visit->context) == visit->generation
                   ? CUDA_ERROR_NOT_READY
                   : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    enter_driver();
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    CUresult result = pool->driver->cuEventQuery(event);
    relaxed_mode_end(pool->driver, mode);
    leave_driver();
    end_calls(visit);
    return result;
}

/* Where the context may be about to end, the event ends with it. */
static void destroy(struct pool *pool, const struct visit *visit, CUevent event)
{
    if (!begin_calls(visit))
        return;
    enter_driver();
    pool->driver->cuEventDestroy_v2(event);
    leave_driver();
    end_calls(visit);
}

/* Until the event is over, or, without one, our own are; or one of ours tells of memory that can go
 * back. What the driver says of the event. */
static CUresult wait_patiently(struct pool *pool, const struct visit *visit, const CUevent *event,
                               uint64_t give_up_at)
{
    struct context *context = visit->context;
    uint64_t started = monotonic_now();
    uint64_t cached = stream_release_sum(pool, context->device).cached;
    CUresult result = CUDA_ERROR_NOT_READY;
    while (result == CUDA_ERROR_NOT_READY && (is_awaited(pool, context) || event)) {
        if (event)
            result = ask(pool, visit, *event);
        if (stream_release_sum(pool, context->device).cached > cached ||
            monotonic_now() >= give_up_at)
            break;
        patient_nap(started);
    }
    thread_state.waited_ns += monotonic_now() - started;
    return result;
}

static void settle_context_until(struct pool *pool, const struct visit *visit, uint64_t give_up_at)
{
    CUevent event;
    struct context *context = visit->context;
    struct order_marks *marks = order_take_context(pool, context);
    if (!marks)
        return;
    order_record_where_missing(pool, context);
    bool recorded = false;
    if (begin_calls(visit)) {
        enter_driver();
        recorded = record_context(pool, context, &event);
        leave_driver();
        end_calls(visit);
    }
    /* Where the driver could record one but did not, something is wrong. */
    bool waits =
        recorded || (!pool->driver->cuCtxRecordEvent && !program_captures(&pool->captures));
    if (waits && wait_patiently(pool, visit, recorded ? &event : NULL, give_up_at) == CUDA_SUCCESS)
        order_context_is_over(marks);
    if (recorded)
        destroy(pool, visit, event);
    order_free_marks(marks);
}

void stream_release_settle_until(struct pool *pool, const struct device *device,
                                 uint64_t give_up_at)
{
    struct context *c = streams_of(pool) ? context_next(pool, NULL, changeable(device)) : NULL;
    for (; c; c = context_next(pool, c, changeable(device))) {
        struct visit visit = {c, context_generation(c), false};
        if (is_pending_in(pool, c))
            settle_context_until(pool, &visit, give_up_at);
    }
}

bool stream_release_is_vain(const struct device *device)
{
    uint64_t until =
        device ? atomic_load_explicit(&stream_device(device)->vain_until, memory_order_relaxed) : 0;
    return monotonic_now() < until;
}

void stream_release_was_vain(const struct device *device, uint64_t nanoseconds)
{
    atomic_store_explicit(&stream_device(device)->vain_until, monotonic_now() + nanoseconds,
                          memory_order_relaxed);
}

/* ---- pools and contexts that end ---- */

/* On the context's legacy stream: after all of its blocking streams', those included that nobody
 * can name any more. */
static bool record_legacy(struct pool *pool, struct context *context, CUevent *event)
{
    const struct driver *driver = pool->driver;
    bool pushed, recorded = false;
    if (program_captures(&pool->captures) || !context_push(pool, context, &pushed))
        return false;
    if (driver->cuEventCreate(event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS) {
        recorded = driver->cuEventRecord(*event, CU_STREAM_LEGACY) == CUDA_SUCCESS;
        if (!recorded)
            driver->cuEventDestroy_v2(*event);
    }
    context_pop(pool, pushed);
    return recorded;
}

/* On a driver without cuCtxRecordEvent, where the context is about to end: the driver would wait
 * for its work, too, but not where it is mistaken for the end. */
static void wait_for_context(struct pool *pool, struct context *context)
{
    CUevent event;
    struct visit visit = {context, context_generation(context), true};
    uint64_t give_up_at = monotonic_now() + PATIENCE_NANOSECONDS;
    struct order_marks *marks = order_take_context(pool, context);
    if (!marks)
        return;
    enter_driver();
    bool recorded = record_legacy(pool, context, &event);
    leave_driver();
    bool waits = recorded;
    while (is_pending_in(pool, context) && (waits || is_awaited(pool, context)) &&
           monotonic_now() < give_up_at) {
        CUresult result = wait_patiently(pool, &visit, waits ? &event : NULL, give_up_at);
        if (waits && result == CUDA_SUCCESS)
            order_blocking_are_over(marks);
        waits = waits && result == CUDA_ERROR_NOT_READY;
    }
    if (recorded)
        destroy(pool, &visit, event);
    order_free_marks(marks);
}

/* The stream as it can be named in this thread, if it is one of the context with something pending.
 */
static bool can_be_named(const struct choice *choice, struct stream *stream, struct stream_ref *ref,
                         CUstream *handle)
{
    short_lock_take(&stream->lock);
    *ref = (struct stream_ref){stream, stream->id};
    *handle = stream->handle;
    bool can = is_of(choice, stream) && stream->pending.first && stream->id &&
               (!stream->thread || stream->thread == thread_state.id);
    short_lock_give(&stream->lock);
    return can;
}

static bool may_be_capturing(const struct pool *pool, CUstream handle)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return program_captures(&pool->captures) &&
           (!pool->driver->cuStreamIsCapturing ||
            pool->driver->cuStreamIsCapturing(handle, &status) != CUDA_SUCCESS ||
            status != CU_STREAM_CAPTURE_STATUS_NONE);
}

/* Each stream's pending blocks in its own order, as the program freed them: where no event can be
 * recorded over all of the context's work. */
static void give_back_in_order(const struct choice *choice)
{
    struct pool *pool = choice->pool;
    bool pushed;
    enter_driver();
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    bool current = context_push(pool, choice->context, &pushed);
    for (unsigned i = 0; current && i < stream_count(streams_of(pool)); i++) {
        struct stream_ref ref;
        CUstream handle;
        if (can_be_named(choice, stream_at(streams_of(pool), i), &ref, &handle) &&
            !may_be_capturing(pool, handle))
            in_order_at_the_end(pool, ref, handle);
    }
    if (current)
        context_pop(pool, pushed);
    relaxed_mode_end(pool->driver, mode);
    leave_driver();
}

/* The context's work so far comes before what is given back now. Where the context itself ends, the
 * driver waits for its work next, and so may we. */
static void release_all(struct pool *pool, struct context *context, const struct mempool *mempool,
                        enum eviction reason)
{
    struct own_event after = {.context = context};
    struct choice choice = {.pool = pool,
                            .context = context,
                            .generation = context_generation(context),
                            .mempool = mempool,
                            .older_than = UINT64_MAX};
    stream_release_settle(pool, context->device);
    give_back(&choice, UINT64_MAX, reason, NULL, RELEASE_IN_ALLOCATION);
    if (!is_pending_in(pool, context))
        return;
    enter_driver();
    bool recorded = record_context(pool, context, &after.event);
    leave_driver();
    if (recorded) {
        choice.pending_too = true;
        give_back(&choice, UINT64_MAX, reason, &after, RELEASE_IN_ALLOCATION);
        enter_driver();
        pool->driver->cuEventDestroy_v2(after.event);
        leave_driver();
        return;
    }
    /* Where only a memory pool ends, what is pending goes back when it is known to be over. */
    if (mempool)
        return;
    if (!MUTATED(not_given_back_in_order))
        give_back_in_order(&choice);
    if (!pool->driver->cuCtxRecordEvent && is_pending_in(pool, context)) {
        wait_for_context(pool, context);
        give_back(&choice, UINT64_MAX, reason, NULL, RELEASE_IN_ALLOCATION);
    }
}

void stream_release_mempool(struct pool *pool, const struct mempool *mempool, uint64_t bytes,
                            bool all)
{
    struct context *c = context_next(pool, NULL, mempool->device);
    stream_release_settle(pool, mempool->device);
    for (; c; c = context_next(pool, c, mempool->device)) {
        struct choice choice = any_choice(pool);
        choice.mempool = mempool;
        if (!all)
            release_in(pool, c, choice, bytes, EVICTION_MEMORY, RELEASE_IN_FREE);
        else if (context_pin(c, context_generation(c))) {
            release_all(pool, c, mempool, EVICTION_MEMORY);
            context_unpin(c);
        }
    }
}

/* While captures go on no event can be recorded: what can be given back in its stream's order is,
 * and for the rest those events that there are are waited for, as the context's end would. */
void stream_release_before_end(struct pool *pool, struct context *context)
{
    uint64_t started = monotonic_now();
    struct choice choice = {
        .pool = pool, .context = context, .generation = context_generation(context)};
    if (!program_captures(&pool->captures) || !pool->driver->cuMemFreeAsync)
        return;
    if (!MUTATED(not_given_back_in_order))
        give_back_in_order(&choice);
    while (is_awaited(pool, context) && monotonic_now() - started < PATIENCE_NANOSECONDS)
        patient_nap(started);
}

void stream_release_context(struct pool *pool, struct context *context)
{
    if (streams_of(pool) && pool->driver->cuMemFreeAsync)
        release_all(pool, context, NULL, EVICTION_MEMORY);
}

/* Stream's lock held. */
static struct block *take_any(struct stream *stream, const struct context *context)
{
    struct shelf *shelf = stream->context == context
                              ? atomic_load_explicit(&stream->shelves, memory_order_relaxed)
                              : NULL;
    for (; shelf; shelf = shelf->next) {
        struct shelf_bucket *b = atomic_load_explicit(&shelf->buckets, memory_order_relaxed);
        for (; b; b = b->next)
            if (b->bucket.clean.first || b->bucket.pending.first)
                return b->bucket.clean.first ? b->bucket.clean.first : b->bucket.pending.first;
    }
    return NULL;
}

void stream_release_forget(struct pool *pool, struct context *context)
{
    struct streams *streams = streams_of(pool);
    for (unsigned i = 0; streams && i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        struct block *found, *chain = NULL;
        short_lock_take(&stream->lock);
        while ((found = take_any(stream, context)) != NULL) {
            detach(pool, stream, found);
            counter_add(&found->bucket->counters->evictions[EVICTION_CONTEXT], 1);
            found->links[LINK_HEAP].next = chain;
            chain = found;
        }
        short_lock_give(&stream->lock);
        for (struct block *next; chain; chain = next) {
            next = chain->links[LINK_HEAP].next;
            stream_heap_forget_free(pool, stream_block_of(chain));
            stream_block_is_settled(stream);
        }
    }
}
