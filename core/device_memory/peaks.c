#include "peaks.h"

#include "cache_set.h"
#include "core/contexts/registry.h"
#include "sums.h"

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
