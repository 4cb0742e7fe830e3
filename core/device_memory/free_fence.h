/*
 * Ends a free: closes the epoch, records the fence, and waits where the driver's own free would
 * have waited.
 *
 * Fences are recorded here only inside the program's own frees. Threads may wait for the waitable
 * ones (epoch.h gives the reason). The fence of a free in a stream's order is only queried. A free
 * waits only for work that the driver's own free would have waited for.
 */
#ifndef CUDAPOOL_CORE_FREE_FENCE_H
#define CUDAPOOL_CORE_FREE_FENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "heap.h"

/* Heap lock held. Closes the epoch and begins its fence. The caller must record the fence, usually
 * by heap_end_free. Returns NULL, and leaves the epoch open, if no fence can be begun now. If
 * another free is recording a waitable fence then, that free records the one for this epoch next.
 * waitable: the driver's own free would have waited for the context's work. */
struct fence *heap_begin_fence(struct context *context, bool waitable);

/* No lock held. The slow part of a free. Records the fence from heap_begin_fence, which is not
 * NULL, and up to three more that become due meanwhile. Releases excess memory to the driver. If
 * waitable, waits where a later request might lack the pending memory. Returns an error that stays
 * in the context. */
CUresult heap_end_free(struct pool *pool, struct context *context, struct fence *fence,
                       bool waitable);

/* No lock held. Waits, as the driver's own free does, for all work submitted before the block with
 * this stamp was freed. *error: an error that stays in the context. Returns false if there is no
 * fence to wait for (epoch_fence_in_free). The caller then leaves the wait to the driver, which
 * waits with its own lock held. Returns true also where no mark concerns the stamp, and after it
 * has given up on work that an earlier call waited for without success (epoch_wait_in_free). The
 * driver must not wait for such work: the thread that must end the work may need the driver's lock.
 */
bool heap_wait_for_stamp(struct pool *pool, struct context *context, uint64_t stamp,
                         CUresult *error);

/* No lock held. Waits for the context's work: the driver frees one pinned byte, and that free waits
 * (epoch_wait_by_free). Returns an error that stays in the context. */
CUresult heap_wait_by_free(struct pool *pool, struct context *context);

/*
 * No lock held. heap_begin_driver_free is called before a driver free that waits for the context's
 * work, and heap_end_driver_free after it.
 *
 * The driver waits with its own lock held. Another thread may need that lock to allocate, while it
 * holds a lock of the program that some of the work waits for. Without the pool, that thread's own
 * free would have waited for the work before the thread took the program's lock.
 *
 * So heap_begin_driver_free waits, without a lock and for as long as necessary, until the context's
 * own work uses no freed block. It does not wait if one thread alone uses the heap, or if no fence
 * can be recorded. Until heap_end_driver_free, the heap's other frees wait for the driver free
 * (heap_wait_for_driver_frees). Without the pool, they would have waited for the driver's lock.
 * They must not wait earlier: the work that heap_begin_driver_free waits for may need a lock that a
 * freeing thread holds.
 *
 * Other threads may free so often that blocks are pending at each of DRIVER_FREE_LOOKS looks.
 * heap_begin_driver_free then returns, and frees do not wait for this driver free.
 */
#define DRIVER_FREE_LOOKS 8
void heap_begin_driver_free(struct pool *pool, struct context *context, struct driver_free *own);
void heap_end_driver_free(struct context *context, const struct driver_free *own);

/* Whether one of the first `number` driver frees is in progress or about to begin. No lock needed.
 * number: heap->driver_frees_begun when the caller's block was freed. Driver frees that begin later
 * do not count, since there may always be another one. Each of them first waits for the caller's
 * block to become unused. */
static inline bool heap_is_behind_driver_frees(const struct heap *heap, uint64_t number)
{
    uint64_t oldest = counter_get(&heap->oldest_driver_free);
    return oldest && oldest <= number;
}

/* No lock held. Called after a free with this stamp. Waits until the first `number` driver frees
 * have completed, or until blocks with this stamp are clean. */
void heap_wait_for_driver_frees(struct context *context, uint64_t number, uint64_t stamp);

/* No lock held. Waits, as the driver's own free does, until no request is likely to lack the
 * pending memory. If only other contexts' work keeps blocks pending, lets the driver free them.
 * now: nanoseconds of the monotonic clock. */
void heap_wait_if_missed(struct pool *pool, struct context *context, uint64_t now);

/* No lock held. Whether a request might lack memory if `bytes` more were pending. May ask the
 * driver how much memory is left. */
bool heap_would_miss(struct pool *pool, struct context *context, uint64_t bytes);

/* No lock held. Called inside a free, when the calling thread's cache is due for a fence. Closes
 * the epoch and records the fence, or leaves both to another thread. While memory is to stay hot,
 * it may put the fence off (thread_cache_puts_fence_off). Returns the result of the program's
 * free. */
CUresult heap_close_epoch(struct pool *pool, struct context *context);

#endif
