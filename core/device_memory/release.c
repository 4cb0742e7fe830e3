#include "release.h"

#include "cache_set.h"
#include "core/base/clock.h"
#include "core/base/numbers.h"
#include "core/contexts/capture.h"
#include "core/contexts/device.h"
#include "core/contexts/epoch.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/contexts/return_stream.h"
#include "core/contexts/surroundings.h"
#include "core/driver/calls.h"
#include "core/reclaim/kept.h"
#include "core/reclaim/managed.h"
#include "core/reclaim/reclaim.h"
#include "core/reclaim/room.h"
#include "core/reclaim/waiting.h"
#include "driver_free.h"
#include "heap.h"
#include "release_sums.h"
#include "sums.h"

/* How long a caller that is out of memory waits for a context that another thread is ending. */
#define DYING_NANOSECONDS (UINT64_C(1) * 1000 * 1000 * 1000)

/* A release costs milliseconds however small it is. So it is at least 1 / RELEASE_SHARE of what is
 * clean. */
#define RELEASE_SHARE 8u

/* One in this many misses asks the driver how much memory is left. */
#define MISSES_PER_LOOK 64u

/* ---- releasing to the driver ---- */

/* Whether cuMemFree may be called. It waits for the context's work, and keeps others out of the
 * driver meanwhile. */
static bool may_free_plainly(enum release_place place)
{
    return place == RELEASE_IN_FREE || place == RELEASE_OUT_OF_MEMORY || place == RELEASE_IN_TRIM;
}

/* Makes the driver calls that free the blocks; the context is pinned. Sets block->refused. The
 * blocks stay BLOCK_LEAVING until settle, under the lock, looks at refused. */
static void hand_to_driver(struct pool *pool, struct context *context, CUstream stream,
                           struct block *blocks, enum release_place place)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    const struct driver *driver = pool->driver;
    uint64_t bytes = 0;
    for (struct block *b = blocks; b; b = b->links[LINK_HEAP].next) {
        b->refused = !stream || driver->cuMemFreeAsync(block_address(b), stream) != CUDA_SUCCESS;
        /* A device without memory pools has cuMemFreeAsync, but the call never succeeds. */
        if (b->refused && may_free_plainly(place))
            b->refused = driver->cuMemFree_v2(block_address(b)) != CUDA_SUCCESS;
        b->refused = b->refused && driver_has_block(driver, block_address(b));
        bytes += b->refused ? 0 : b->bytes;
    }
    if (stream && !return_wait(pool, context, stream, place))
        epoch_note_freed_in_order(context, bytes);
}

static void put_back(struct pool *pool, struct heap *heap, struct block *block)
{
    heap_lock_must_be_held(heap);
    if (!heap_enter_table(pool, heap, block))
        return;
    heap_count_back(block);
    heap_add_clean(heap, block);
}

/* Puts refused blocks back into the heap and forgets the others. Returns the bytes that the driver
 * has taken. */
static uint64_t settle(struct pool *pool, struct heap *heap, struct block *blocks,
                       enum eviction reason, uint64_t nanoseconds_each)
{
    heap_lock_must_be_held(heap);
    uint64_t released = 0;
    for (struct block *next, *b = blocks; b; b = next) {
        struct bucket_counters *counters = b->bucket->counters;
        next = b->links[LINK_HEAP].next;
        if (b->refused) {
            put_back(pool, heap, b);
            continue;
        }
        released += b->bytes;
        if (reason != EVICTION_IDLE && device_is_short(context_of_heap(heap)->device) &&
            b->bucket->bytes && !heap_splits(heap))
            keep_note_unused(&heap->keep, b->bytes);
        thread_caches_update_closed(heap);
        heap_forget_block(pool, heap, b);
        bucket_count_return(counters, reason, nanoseconds_each);
    }
    return released;
}

typedef bool preference(const struct block *one, const struct block *other);

static bool is_larger(const struct block *one, const struct block *other)
{
    return one->bytes > other->bytes;
}

static bool is_older(const struct block *one, const struct block *other)
{
    return counter_get(&one->epoch) < counter_get(&other->epoch);
}

/* Returns the preferred one among the oldest clean blocks of all buckets, or NULL. */
static struct block *find_clean(const struct heap *heap, preference *is_preferred)
{
    heap_lock_must_be_held(heap);
    struct block *found = NULL;
    for (const struct bucket *b = heap->buckets.first; b; b = b->next)
        if (b->clean.first && (!found || is_preferred(b->clean.first, found)))
            found = b->clean.first;
    return found;
}

/* Returns a block of the bucket that is being drained. Once that has no clean block, the bucket of
 * the largest block is drained next. */
static struct block *find_largest(struct heap *heap)
{
    heap_lock_must_be_held(heap);
    struct block *found =
        heap->draining && heap->draining->clean.first ? heap->draining->clean.first : NULL;
    if (!found)
        found = find_clean(heap, is_larger);
    heap->draining = found ? found->bucket : NULL;
    return found;
}

/* Blocks that are not kept are chosen before all others. */
static struct block *choose_victim(const struct pool *pool, struct heap *heap)
{
    heap_lock_must_be_held(heap);
    bool lru = pool->settings.device.evict == EVICT_LEAST_RECENTLY_USED;
    if (heap->unkept.bucket.clean.first)
        return heap->unkept.bucket.clean.first;
    return lru ? find_clean(heap, is_older) : find_largest(heap);
}

/* Chooses the next block to release, or NULL. The heap's lock is held. released: bytes chosen so
 * far. */
typedef struct block *chooser(const struct pool *pool, struct context *context, uint64_t released,
                              void *argument);

/* Takes the chosen clean blocks out of the heap, chained through their heap links. */
static struct block *collect(struct pool *pool, struct context *context, chooser *choose,
                             void *argument)
{
    struct block *chain = NULL, *block;
    uint64_t bytes = 0;
    heap_lock(heap_of(context));
    heap_of(context)->draining = NULL;
    while ((block = choose(pool, context, bytes, argument)) != NULL) {
        returning_begin(context->device, block->bytes);
        heap_begin_leaving(heap_of(context), block);
        heap_leave_table(pool, heap_of(context), block);
        block->links[LINK_HEAP].next = chain;
        chain = block;
        bytes += block->bytes;
    }
    heap_unlock(heap_of(context));
    return chain;
}

static bool can_release(const struct pool *pool, enum release_place place)
{
    return returns_in_stream_order(pool) || may_free_plainly(place);
}

static void refuse_all(struct block *chain)
{
    for (struct block *b = chain; b; b = b->links[LINK_HEAP].next)
        b->refused = true;
}

static void give_back(struct pool *pool, struct context *context, struct block *chain,
                      enum release_place place)
{
    bool pushed;
    look_at_objects(pool);
    struct relaxed_mode mode = enter_driver_relaxed(pool->driver);
    bool current = context_push(pool, context, &pushed);
    CUstream stream = returns_in_stream_order(pool) ? return_stream(pool, context) : NULL;
    if (current)
        hand_to_driver(pool, context, stream, chain, place);
    else
        refuse_all(chain);
    context_pop(pool, pushed);
    leave_driver_relaxed(pool->driver, mode);
}

/* The caller pins the context throughout, so that the context can't end while a block is half
 * released. */
static uint64_t release_pinned(struct pool *pool, struct context *context, chooser *choose,
                               void *argument, enum eviction reason, enum release_place place)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct block *chain = collect(pool, context, choose, argument);
    if (!chain)
        return 0;
    uint64_t count = block_chain_count(chain), bytes = block_chain_bytes(chain);
    uint64_t started = monotonic_now();
    give_back(pool, context, chain, place);
    uint64_t each = (monotonic_now() - started) / count;
    heap_lock(heap_of(context));
    uint64_t released = settle(pool, heap_of(context), chain, reason, each);
    returning_end(context->device, bytes);
    heap_unlock(heap_of(context));
    return released;
}

/* Pins the context. A context that is about to end may live on after all. A caller that needs
 * memory now waits for that, but not for long. */
static bool pin_patiently(struct context *context, enum release_place place)
{
    uint64_t generation = context_generation(context);
    uint64_t started = monotonic_now();
    while (!context_pin(context, generation)) {
        bool over = context_generation(context) != generation || (generation & 1) == 0;
        if (over || place != RELEASE_OUT_OF_MEMORY || monotonic_now() - started > DYING_NANOSECONDS)
            return false;
        patient_nap(started);
    }
    return true;
}

static uint64_t release_chosen(struct pool *pool, struct context *context, chooser *choose,
                               void *argument, enum eviction reason, enum release_place place)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    if (!can_release(pool, place) || !pin_patiently(context, place))
        return 0;
    uint64_t released = release_pinned(pool, context, choose, argument, reason, place);
    context_unpin(context);
    return released;
}

/* ---- which blocks ---- */

static struct block *choose_until(const struct pool *pool, struct context *context,
                                  uint64_t released, void *argument)
{
    lock_must_be_held(&context->lock);
    const uint64_t *wanted = argument;
    return released < *wanted ? choose_victim(pool, heap_of(context)) : NULL;
}

/* Moves the blocks of threads' caches to the heap's lists, so that they can be chosen too. */
static void collect_caches(struct context *context)
{
    heap_lock(heap_of(context));
    thread_caches_collect(heap_of(context));
    heap_unlock(heap_of(context));
}

uint64_t release_clean(struct pool *pool, struct context *context, uint64_t bytes,
                       enum eviction reason, enum release_place place)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    if (counter_get(&heap_of(context)->clean_bytes) < bytes)
        collect_caches(context);
    return release_chosen(pool, context, choose_until, &bytes, reason, place);
}

/* Returns a clean block of a bucket that has more free blocks than the cap, or NULL. Such a bucket
 * may have no clean block yet, so NULL does not mean that there is none. */
static struct block *choose_crowded(const struct pool *pool, struct heap *heap)
{
    heap_lock_must_be_held(heap);
    uint64_t cap = pool->settings.device.caps.blocks_per_bucket;
    struct block *found = NULL;
    bool any = false;
    if (!heap->bucket_may_exceed_cap)
        return NULL;
    for (const struct bucket *b = heap->buckets.first; b; b = b->next) {
        if (b->free_blocks + device_bucket(b)->granted_to_caches <= cap)
            continue;
        any = true;
        if (!found && heap_free_blocks(heap, b) > cap)
            found = b->clean.first;
    }
    heap->bucket_may_exceed_cap = any;
    return found;
}

/* Chooses blocks that are not kept, and blocks over the caps. *argument: bytes over the cap on
 * cached bytes. */
static struct block *choose_over_cap(const struct pool *pool, struct context *context,
                                     uint64_t released, void *argument)
{
    lock_must_be_held(&context->lock);
    struct heap *heap = heap_of(context);
    const uint64_t *excess = argument;
    if (heap->unkept.bucket.clean.first)
        return heap->unkept.bucket.clean.first;
    if (released < *excess)
        return choose_victim(pool, heap);
    return choose_crowded(pool, heap);
}

static bool was_freed_earlier(const struct block *one, const struct block *other)
{
    return one->freed_at < other->freed_at;
}

static bool is_idle(const struct pool *pool, const struct block *block, uint64_t now)
{
    return block && block->freed_at + pool->settings.device.release_after_idle_ns <= now;
}

static struct block *choose_idle(const struct pool *pool, struct context *context,
                                 uint64_t released, void *argument)
{
    lock_must_be_held(&context->lock);
    struct block *oldest = find_clean(heap_of(context), was_freed_earlier);
    const uint64_t *now = argument;
    (void)released;
    return is_idle(pool, oldest, *now) ? oldest : NULL;
}

struct situation release_look(const struct pool *pool, struct heap *heap)
{
    heap_lock_must_be_held(heap);
    uint64_t idle = pool->settings.device.release_after_idle_ns;
    struct situation seen = {.now = monotonic_now()};
    seen.idle = idle && seen.now - heap->idle_checked_at >= idle / 4;
    seen.other = heap->bucket_may_exceed_cap || heap->unkept.bucket.clean.first;
    if (seen.idle)
        heap->idle_checked_at = seen.now;
    counter_set(&heap->now, seen.now);
    return seen;
}

/* How far all contexts of the device are over the cap or in the way of managed memory: the more. */
static uint64_t bytes_over_cap(struct pool *pool, struct context *context)
{
    uint64_t cap = context->device->cached_cap;
    /* A look through all caches costs their threads time. The first test is the cheaper one. */
    bool inside = device_reserved(context->device) <= cap || device_pooled(context->device) <= cap;
    if (inside && !managed_is_crowded(context->device))
        return 0;
    struct heap_bytes kept = release_sum(pool, context->device);
    uint64_t cached = kept.clean + kept.pending;
    /* Spare bytes can't be released: whole blocks would be, in their place. */
    uint64_t over = rest_of(rest_of(cached, kept.spare), cap);
    uint64_t in_the_way = managed_in_the_way(context->device, cached);
    return larger_of(over, in_the_way);
}

/* Releases from other contexts what this one could not release. The place is RELEASE_IN_ALLOCATION
 * even in a free, since cuMemFree would wait for the other contexts' work. */
static void release_in_other_contexts(struct pool *pool, struct context *context)
{
    struct device *device = context->device;
    uint64_t over = bytes_over_cap(pool, context);
    for (struct context *c = context_next(pool, NULL, device); c && over;
         c = context_next(pool, c, device)) {
        uint64_t released =
            c == context ? 0 : release_clean(pool, c, over, EVICTION_CAP, RELEASE_IN_ALLOCATION);
        over -= smaller_of(released, over);
    }
}

/* Where nothing can be released before a miss, frees keep the reserve within its ratio. */
static void release_over_bound(struct pool *pool, struct context *context)
{
    struct heap *heap = heap_of(context);
    heap_lock(heap);
    uint64_t bound = release_bound(pool, context, heap_bytes(heap).requested, 0);
    heap_unlock(heap);
    uint64_t reserved = counter_get(&heap->reserved_bytes);
    if (reserved > bound)
        release_clean(pool, context, reserved - bound, EVICTION_CAP, RELEASE_IN_FREE);
}

void release_excess(struct pool *pool, struct context *context, const struct situation *situation,
                    enum release_place place)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    uint64_t now = situation->now, over = bytes_over_cap(pool, context);
    figures_sample(&pool->figures, now);
    if (over || situation->idle)
        collect_caches(context);
    if (over || situation->other)
        release_chosen(pool, context, choose_over_cap, &over, EVICTION_CAP, place);
    if (over)
        release_in_other_contexts(pool, context);
    if (situation->idle)
        release_chosen(pool, context, choose_idle, &now, EVICTION_IDLE, place);
    if (place == RELEASE_IN_FREE && !returns_in_stream_order(pool))
        release_over_bound(pool, context);
}

/* Chooses at most left idle blocks, and no more than HOUSEKEEPING_PORTION and one block. */
struct idle_choice {
    uint64_t now;
    unsigned left;
};

static struct block *choose_some_idle(const struct pool *pool, struct context *context,
                                      uint64_t released, void *argument)
{
    struct idle_choice *choice = argument;
    bool more = released < HOUSEKEEPING_PORTION && choice->left--;
    return more ? choose_idle(pool, context, released, &choice->now) : NULL;
}

uint64_t release_some_idle(struct pool *pool, struct context *context, uint64_t now,
                           unsigned blocks)
{
    struct idle_choice choice = {now, blocks};
    return release_chosen(pool, context, choose_some_idle, &choice, EVICTION_IDLE,
                          RELEASE_FOR_OTHERS);
}

/* ---- before a miss ---- */

uint64_t release_bound(const struct pool *pool, const struct context *context, uint64_t requested,
                       uint64_t bytes)
{
    const struct heap *heap = heap_of(context);
    uint64_t peak = larger_of(counter_get(&heap->counters->peak_requested), requested + bytes);
    /* With the policy split, spare memory in segments serves all sizes: no floor is needed. */
    bool has_floor = !device_is_short(context->device) && !heap_splits(heap);
    return bound_on_taken(pool->settings.device.caps.reserve_ratio, peak,
                          context->device->growth_budget,
                          has_floor ? context->device->reserve_floor : 0);
}

/* Waits for the fence of the oldest pending block, if an allocation may. True if that block is
 * clean. */
static bool wait_for_oldest(struct pool *pool, struct context *context)
{
    struct heap *heap = heap_of(context);
    heap_lock(heap);
    bool waited = heap->pending.first &&
                  epoch_wait_in_allocation(pool, context, counter_get(&heap->pending.first->epoch));
    heap_unlock(heap);
    return waited;
}

void release_before_growth(struct pool *pool, struct context *context,
                           const struct situation *situation, uint64_t bytes)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    const struct heap *heap = heap_of(context);
    uint64_t bound = release_bound(pool, context, situation->requested, bytes);
    for (;;) {
        uint64_t after = counter_get(&heap->reserved_bytes) + bytes;
        if (after <= bound)
            return;
        struct heap_bytes kept = heap_bytes(heap);
        if (kept.clean + kept.pending == 0)
            return;
        uint64_t share = kept.clean / RELEASE_SHARE;
        uint64_t wanted = after - bound > share ? after - bound : share;
        if (release_clean(pool, context, wanted, EVICTION_CAP, RELEASE_IN_ALLOCATION) == 0 &&
            !wait_for_oldest(pool, context))
            return;
    }
}

/* ---- functions of struct kind, see kind.h ---- */

/* The newest stamp of all pending blocks; 0: none. Empties the caches into the lists. */
static uint64_t newest_pending(struct heap *heap)
{
    heap_lock_must_be_held(heap);
    thread_caches_collect(heap);
    return heap->pending.last ? counter_get(&heap->pending.last->epoch) : 0;
}

void release_wait_for_pending(struct pool *pool, struct context *context, uint64_t give_up_at)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct heap *heap = heap_of(context);
    heap_lock(heap);
    uint64_t stamp = newest_pending(heap);
    if (stamp)
        epoch_wait_until(pool, context, stamp, give_up_at);
    heap_unlock(heap);
}

static void wait_for_frees(struct pool *pool, struct context *context,
                           const struct reclaim *progress)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct heap *heap = heap_of(context);
    epoch_fence_the_rest(pool, context);
    heap_lock(heap);
    uint64_t stamp = newest_pending(heap);
    if (stamp)
        epoch_wait_for_pending(pool, context, stamp, progress->started, progress->give_up_at);
    heap_unlock(heap);
}

void release_look_at_memory(struct pool *pool, struct context *context)
{
    room_look(pool, context, counter_get(&heap_of(context)->misses) % MISSES_PER_LOOK == 1);
}

void release_note_shortage(struct context *context)
{
    struct heap *heap = heap_of(context);
    /* Blocks that are cut serve other sizes, so their own size need not recur. */
    if (heap_splits(heap))
        return;
    heap_lock(heap);
    keep_begin_trial(&heap->keep);
    thread_caches_update_closed(heap);
    heap_unlock(heap);
}

uint64_t release_everywhere(struct pool *pool, struct device *device, uint64_t bytes,
                            enum release_place place)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    uint64_t released = 0;
    for (struct context *c = context_next(pool, NULL, device); c && released < bytes;
         c = context_next(pool, c, device)) {
        if (place == RELEASE_OUT_OF_MEMORY)
            room_is_short(c);
        else
            epoch_ask_all(pool, c);
        released += release_clean(pool, c, bytes - released, EVICTION_MEMORY, place);
    }
    return released;
}

/* False while captures go on, once the context is unusable, or where the last record failed. */
static bool fences_can_be_recorded(struct pool *pool, struct context *context)
{
    context_lock(context);
    bool failed = context->epochs.failures != 0;
    context_unlock(context);
    return !failed && !captures_under_way(&pool->captures) && context_is_usable(context);
}

/* Where no fence can be recorded, the driver's own free waits for the pending blocks, as the
 * program's free would have. Nobody can end that wait, so it is not made where reclaim only looks.
 * True if anything was released. */
static bool free_without_fences(struct pool *pool, struct context *context,
                                const struct reclaim *progress)
{
    bool pushed;
    uint64_t pending = counter_get(&heap_of(context)->pending_bytes);
    if (fences_can_be_recorded(pool, context) || progress->step <= RECLAIM_THE_REST || !pending ||
        !context_push(pool, context, &pushed))
        return false;
    heap_free_pending_of_no_host(pool, context);
    context_pop(pool, pushed);
    return counter_get(&heap_of(context)->pending_bytes) < pending;
}

/* Waits for frees that have no waitable fence. A fence that is recorded now also waits for later
 * work, so the wait for it is bounded. */
bool release_wait_for_the_rest(struct pool *pool, struct device *device,
                               const struct reclaim *progress)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    bool any = false;
    for (struct context *c = context_next(pool, NULL, device); c;
         c = context_next(pool, c, device)) {
        if (!may_wait_for_frees(pool, device, c, progress))
            continue;
        wait_for_frees(pool, c, progress);
        any |= free_without_fences(pool, c, progress);
    }
    return any;
}
