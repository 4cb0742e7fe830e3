/*
 * Sets and clears the bits that close the quick path of pinned memory (enum host_closed in
 * host_heap.h).
 */
#include "core/contexts/host_marks.h"
#include "host_heap.h"

void host_set_closed(struct host_heap *heap, uint32_t reason, bool set)
{
    if (set)
        atomic_fetch_or_explicit(&heap->closed, reason, memory_order_relaxed);
    else
        atomic_fetch_and_explicit(&heap->closed, ~reason, memory_order_relaxed);
}

void host_update_waiting(struct context *context)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    bool waiting = frees_may_wait(&epochs->frees_wait) || host_work_goes_on(&epochs->host_work);
    struct host_heap *heap = host_heap_of(context);
    /* Every call reads closed, so it is written only when it changes. */
    if (host_is_closed(heap, HOST_CLOSED_WAITING) != waiting)
        host_set_closed(heap, HOST_CLOSED_WAITING, waiting);
}

void host_heap_set_ending(struct context *context, bool ending)
{
    struct host_heap *heap = host_heap_of(context);
    if (!heap->context)
        return;
    host_set_closed(heap, HOST_CLOSED_ENDING, ending);
    for (struct host_shard *shard = host_shards(heap); shard; shard = shard->next) {
        host_lock(shard);
        host_unlock(shard);
    }
}
