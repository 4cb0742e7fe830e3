/*
 * The fence that ends a free: closing epochs, and waiting inside the program's own free.
 *
 * Fences are recorded here, and so inside the program's frees only (epoch.h says why). What a free
 * waits for is what the plain one would have waited for.
 */
#ifndef CUDAPOOL_CORE_FREE_FENCE_H
#define CUDAPOOL_CORE_FREE_FENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "heap.h"

/* Heap lock held. Closes the epoch, and begins its fence, which is to go to heap_end_free; NULL
 * where another thread is recording one, which then comes back to this. waitable: the plain call
 * would have waited for the context. */
struct fence *heap_begin_fence(struct context *context, bool waitable);

/* No lock held. The slow part of a free: records its fence (NULL: it has none), gives back what is
 * too much, and waits where what is pending would be missed. */
CUresult heap_end_free(struct pool *pool, struct context *context, struct fence *fence,
                       bool waitable);

/* No lock held. Waits as the plain free does for what was submitted before the block of that stamp
 * was freed. False where no fence could be had: a capture has just begun, or another context is
 * ending. True also where it has given up beside what was waited for in vain (epoch_wait_in_free):
 * the driver's free would then wait with the driver's lock held, for which the thread that is to
 * end that work may be waiting. */
bool heap_wait_for_stamp(struct pool *pool, struct context *context, uint64_t stamp);

/* No lock held. Around a free of the driver's that waits for the context's work: it does so with
 * the driver's own lock held, and another thread may need that to allocate while it holds a lock of
 * the program's for which some of that work waits. Without the pool, that thread's free would have
 * waited for the work before it took the lock. So begin waits, for as long as it takes and without
 * a lock, until nothing that was freed is behind the context's work. From then until the end is
 * told, frees of the heap wait for that end (heap_wait_for_driver_frees), as they would have waited
 * for the driver's lock. Not before: the work that is waited for may need a lock that is held by
 * who frees. Where other threads free so often that something is pending at each of
 * DRIVER_FREE_LOOKS looks, the driver frees without all that. */
#define DRIVER_FREE_LOOKS 8
void heap_begin_driver_free(struct pool *pool, struct context *context, struct driver_free *own);
void heap_end_driver_free(struct context *context, const struct driver_free *own);

/* Whether one of the first so many frees of the driver's goes on, or is about to. No lock needed.
 * number: heap->driver_frees_begun when something was freed. It does not wait for those that come
 * after it: there may always be one, and they wait for what it has freed. */
static inline bool heap_is_behind_driver_frees(const struct heap *heap, uint64_t number)
{
    uint64_t oldest = counter_get(&heap->oldest_driver_free);
    return oldest && oldest <= number;
}

/* No lock held. After a free that was stamped so, until these are over, or the stamp is clean. */
void heap_wait_for_driver_frees(struct context *context, uint64_t number, uint64_t stamp);

/* No lock held. Waits as the plain free does, until what is pending can be done without. now:
 * nanoseconds of the monotonic clock. */
void heap_wait_if_missed(struct pool *pool, struct context *context, uint64_t now);

/* No lock held. Whether so many bytes more that are pending might be missed. The driver may be
 * asked what is left. */
bool heap_would_miss(struct pool *pool, struct context *context, uint64_t bytes);

/* No lock held. The fence of what a thread has freed into its cache is due. Answers for the
 * program's free. */
CUresult heap_close_epoch(struct pool *pool, struct context *context);

#endif
