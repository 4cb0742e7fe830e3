#include "release_sums.h"

#include "cache_set.h"
#include "core/base/numbers.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/reclaim/reclaim.h"
#include "free_pages.h"
#include "heap.h"
#include "parts.h"
#include "sums.h"

struct heap_bytes release_sum(struct pool *pool, struct device *device)
{
    struct heap_bytes sum = {0};
    for (struct context *c = context_next(pool, NULL, device); c;
         c = context_next(pool, c, device)) {
        struct heap_bytes of_one = heap_bytes(heap_of(c));
        sum.clean += of_one.clean;
        sum.pending += of_one.pending;
        sum.spare += of_one.spare;
        sum.requested += of_one.requested;
    }
    return sum;
}

uint64_t release_changes(struct pool *pool, struct device *device)
{
    struct heap_bytes kept = release_sum(pool, device);
    uint64_t sum = kept.clean + kept.pending;
    for (struct context *c = context_next(pool, NULL, device); c; c = context_next(pool, c, device))
        sum += counter_get(&heap_of(c)->reserved_bytes) + counter_get(&heap_of(c)->misses) +
               counter_get(&c->counters->fences) + counter_get(&heap_of(c)->caches.emptied);
    return sum;
}

/* Bytes of the pending blocks whose stamp is this one or an older one. */
static uint64_t pending_up_to(const struct heap *heap, uint64_t stamp)
{
    heap_lock_must_be_held(heap);
    const struct block *last = heap->pending.last;
    uint64_t bytes = 0;
    if (last && counter_get(&last->epoch) <= stamp)
        return counter_get(&heap->pending_bytes);
    for (const struct block *b = heap->pending.first; b && counter_get(&b->epoch) <= stamp;
         b = b->links[LINK_HEAP].next)
        bytes += b->bytes;
    return bytes;
}

/* Bytes that a request which is out of memory may hope for. Whole pages count, since releasing the
 * last small block of a page releases the page. Bytes stuck in fragmented segments do not count.
 * They would keep the request waiting for as long as other threads allocate and free. */
uint64_t release_returnable(struct pool *pool, struct device *device)
{
    uint64_t sum = 0;
    for (struct context *c = context_next(pool, NULL, device); c;
         c = context_next(pool, c, device)) {
        struct heap *heap = heap_of(c);
        uint64_t pages = free_pages_of_context(pool, c);
        heap_lock(heap);
        struct heap_bytes bytes = heap_bytes(heap);
        uint64_t waited_for = pending_up_to(heap, epoch_waited_for(&c->epochs));
        uint64_t stuck = heap_splits(heap) ? heap_stuck_bytes(heap) : 0;
        sum += rest_of(larger_of(bytes.clean + bytes.pending, pages), waited_for + stuck);
        heap_unlock(heap);
    }
    return sum;
}

void release_add_kept(struct pool *pool, struct device *device, struct kept_bytes *sum)
{
    for (struct context *c = context_next(pool, NULL, device); c;
         c = context_next(pool, c, device)) {
        /* The lock keeps blocks from moving from one sum into another between the two reads. */
        heap_lock(heap_of(c));
        struct heap_bytes of_one = heap_bytes(heap_of(c));
        uint64_t reserved = counter_get(&heap_of(c)->reserved_bytes);
        heap_unlock(heap_of(c));
        uint64_t kept = of_one.clean + of_one.pending;
        /* Threads may change their caches meanwhile, so kept may exceed reserved. */
        sum->live += rest_of(reserved, kept);
        sum->cached += of_one.clean;
        sum->pending += of_one.pending;
    }
}

/* ---- peaks ---- */

static void add(struct heap *heap, struct kept_peaks *sum)
{
    heap_lock(heap);
    heap_note_requested(heap, heap_bytes(heap).requested);
    sum->live += counter_get(&heap->peaks.live);
    sum->reserved += counter_get(&heap->peaks.reserved);
    heap_unlock(heap);
}

/* Hits in caches would raise the peaks unseen. So all caches are emptied into the heap's lists. */
static void start_again(struct heap *heap)
{
    heap_lock(heap);
    thread_caches_collect(heap);
    counter_set(&heap->peaks.live, heap_bytes(heap).requested);
    counter_set(&heap->peaks.reserved, counter_get(&heap->reserved_bytes));
    heap_unlock(heap);
}

void heap_peaks_add(struct pool *pool, struct device *device, struct kept_peaks *sum)
{
    for (struct context *c = context_next(pool, NULL, device); c; c = context_next(pool, c, device))
        add(heap_of(c), sum);
}

void heap_peaks_start_again(struct pool *pool, struct device *device)
{
    for (struct context *c = context_next(pool, NULL, device); c; c = context_next(pool, c, device))
        start_again(heap_of(c));
}
