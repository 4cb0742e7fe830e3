/*
 * Releases idle blocks by the clock. This file has release_idle, watch and driver_has_taken of
 * struct kind, for device memory.
 *
 * Blocks in the heap's lists carry the time of their free. Blocks in threads' caches do not, since
 * frees there read no clock. Instead the housekeeper sees for each bin whether its thread has used
 * it since the last look. Blocks of a bin that was unused for long move to the heap's lists. A bin
 * in which its thread allocates and frees is left alone, however few of its blocks that needs.
 * Surplus blocks of such a bin leave it on the thread's own slow paths.
 */
#include "cache_set.h"
#include "core/base/size_class.h"
#include "core/contexts/epoch.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "heap.h"
#include "release.h"
#include "sums.h"

/* Blocks are released in batches of this size. A thread that is out of memory meanwhile waits for
 * one batch, and the end of the process lets no further batch begin. */
#define IDLE_BLOCKS_AT_A_TIME 64u

/* The unit in which the driver maps memory: bytes. */
#define DRIVER_PAGE (UINT64_C(2) << 20)

/* If nothing was freed since the last look, the program will record no fence for what is pending.
 * Such blocks get a fence that is only queried. */
static void fence_what_is_quiet(struct pool *pool, struct context *context)
{
    struct heap *heap = heap_of(context);
    heap_lock(heap);
    uint64_t newest = heap_newest_pending(heap);
    bool quiet = newest && newest == heap->pending_when_looked;
    heap->pending_when_looked = newest;
    heap_unlock(heap);
    if (quiet)
        epoch_fence_the_rest(pool, context);
}

/* When the next clean block in the heap's lists will be idle: nanoseconds of the monotonic clock.
 * Each look asks about pending blocks. */
static uint64_t next_idle_in_lists(struct heap *heap, uint64_t idle)
{
    heap_lock_must_be_held(heap);
    uint64_t first = UINT64_MAX - idle;
    for (const struct bucket *b = heap->buckets.first; b; b = b->next) {
        const struct block *oldest = b->clean.first;
        if (oldest && oldest->freed_at < first)
            first = oldest->freed_at;
    }
    return first + idle;
}

static uint64_t release_idle_in(struct pool *pool, struct context *context, uint64_t now)
{
    struct heap *heap = heap_of(context);
    uint64_t idle = pool->settings.device.release_after_idle_ns, released, sum = 0;
    fence_what_is_quiet(pool, context);
    epoch_ask_all(pool, context);
    heap_lock(heap);
    counter_raise_to(&heap->now, now);
    uint64_t in_caches = thread_caches_take_idle(heap, now, idle);
    heap_unlock(heap);
    do
        sum += released = release_some_idle(pool, context, now, IDLE_BLOCKS_AT_A_TIME);
    while (released && sum < HOUSEKEEPING_PORTION && !housekeeping_is_stopped(&pool->housekeeping));
    if (sum >= HOUSEKEEPING_PORTION)
        return RELEASE_MORE_AT_ONCE;
    heap_lock(heap);
    uint64_t in_lists = next_idle_in_lists(heap, idle);
    heap_unlock(heap);
    return in_caches < in_lists ? in_caches : in_lists;
}

uint64_t release_idle(struct pool *pool, struct device *device, uint64_t now)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    uint64_t next = UINT64_MAX;
    if (!pool->settings.device.release_after_idle_ns)
        return next;
    for (struct context *c = context_next(pool, NULL, device); c;
         c = context_next(pool, c, device)) {
        uint64_t of_one = release_idle_in(pool, c, now);
        next = of_one < next ? of_one : next;
    }
    return next;
}

bool release_watch(struct pool *pool)
{
    bool any = false;
    for (struct context *c = context_next(pool, NULL, NULL); c; c = context_next(pool, c, NULL)) {
        struct heap *heap = heap_of(c);
        heap_lock(heap);
        any |= thread_caches_watch(heap);
        any |= counter_get(&heap->clean_bytes) || counter_get(&heap->pending_bytes);
        heap_unlock(heap);
    }
    return any;
}

/* ---- what the driver takes for blocks beyond their bytes ---- */

/* The rest of the last pages of the bucket's blocks. 0 for blocks of less than a page and for
 * parts, which share pages; whole blocks of segments are whole pages. */
static uint64_t rest_of_pages(const struct heap *heap, const struct bucket *bucket)
{
    uint64_t bytes = bucket->bytes;
    if (bytes < DRIVER_PAGE || heap_splits(heap))
        return 0;
    uint64_t blocks = counter_get(&bucket->counters->reserved_bytes) / bytes;
    return blocks * (size_class_up(bytes, DRIVER_PAGE) - bytes);
}

uint64_t release_driver_has_taken(struct pool *pool, struct device *device)
{
    uint64_t sum = 0;
    for (struct context *c = context_next(pool, NULL, device); c;
         c = context_next(pool, c, device)) {
        heap_lock(heap_of(c));
        for (const struct bucket *b = heap_of(c)->buckets.first; b; b = b->next)
            sum += rest_of_pages(heap_of(c), b);
        heap_unlock(heap_of(c));
    }
    return sum;
}
