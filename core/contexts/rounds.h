/*
 * A round is what a fence needs of contexts other than its own.
 *
 * The driver's free waits for copies of the memory that other contexts make. A round is an event in
 * every live context. So once several contexts have lived, a fence has completed when its own event
 * has, and when a round that began after it has. One round serves the fences of all contexts that
 * were recorded before it began. So a free costs about as many events with many contexts as with
 * two.
 *
 * Nobody can see which contexts have work, since libraries call the driver without the pool. So a
 * round leaves out only contexts that have ended, for good or by an error. Rounds are numbered.
 * When a round has completed, all earlier ones have too, since the events of one context are
 * recorded in order.
 *
 * A round is only queried, and no work is ordered after it, so it may be recorded anywhere. It
 * begins
 *
 * - in a free that records a fence, if rounds->fences >= rounds->contexts / ROUND_SHARE;
 * - in a query of a fence whose own event has completed, if a quarter as many fences wait for it;
 * - at once before a wait in a free, and where memory is short.
 */
#ifndef CUDAPOOL_CORE_ROUNDS_H
#define CUDAPOOL_CORE_ROUNDS_H

#include "fence_event.h"
#include "round.h"

/* The number of events in other contexts that are worth recording for one fence. */
#define ROUND_SHARE 2u

/* No lock needed. Whether the round of this number has begun. */
static inline bool round_has_begun(const struct rounds *rounds, uint64_t number)
{
    return atomic_load_explicit(&rounds->begun, memory_order_acquire) >= number;
}

/* Fence lock held. The number of the round that a fence which is recorded now needs; 0: none. */
uint64_t rounds_needed(struct pool *pool);

/* Fence lock held, inside the driver. A fence was recorded: begins a round if it is due, or if
 * at_once. RECORDED also where no round is due, or there is no slot for one. */
enum record_result rounds_note_fence(struct pool *pool, bool at_once, CUresult *error);

/* No lock held, inside the driver. Asks the driver whether the round of this number has completed.
 * A round that has not begun begins if enough fences wait for it. */
bool rounds_ask(struct pool *pool, uint64_t number);

/* No lock held. Begins the round of this number, unless it has begun. */
void rounds_demand(struct pool *pool, uint64_t number);

#endif
