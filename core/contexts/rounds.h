/*
 * Rounds: what a fence needs of the contexts beside its own.
 *
 * The driver's free waits for copies of the memory that other contexts make. So once several
 * contexts have lived, a fence is over when its own event is, and when a round that began after it
 * is over: an event in every live context. One round serves the fences of all contexts that were
 * recorded before it began, so that a free costs about as many events beside many contexts as
 * beside two.
 *
 * Nobody can see which contexts have work: libraries call the driver past the pool. So a round
 * leaves none out but those that have ended, for good or by an error.
 *
 * Rounds are numbered. A round that is over has seen all that the earlier ones have: events of one
 * context are recorded in order.
 *
 * A round is only asked about, and never ordered before anything: it may be recorded anywhere. It
 * begins in a free that records a fence, where as many fences as there are contexts / ROUND_SHARE
 * wait for it; where somebody asks about a fence whose own event is over, and a quarter as many
 * wait; and at once before a wait in a free, and where memory is short.
 */
#ifndef CUDAPOOL_CORE_ROUNDS_H
#define CUDAPOOL_CORE_ROUNDS_H

#include "fence_event.h"
#include "round.h"

/* So many events in other contexts are worth recording for one fence. */
#define ROUND_SHARE 2u

/* No lock needed. */
static inline bool round_has_begun(const struct rounds *rounds, uint64_t number)
{
    return atomic_load_explicit(&rounds->begun, memory_order_acquire) >= number;
}

/* Fence lock held. The number of the round that a fence needs which is recorded now; 0: none. */
uint64_t rounds_needed(struct pool *pool);

/* Fence lock held, inside the driver. A fence was recorded: begins a round if it is due, or if
 * at_once. RECORDED also where none is due, or there is no place for one. */
enum record_result rounds_note_fence(struct pool *pool, bool at_once, CUresult *error);

/* No lock held, inside the driver. Whether the round of this number is over: asks the driver. One
 * that has not begun begins if enough fences wait for it. */
bool rounds_ask(struct pool *pool, uint64_t number);

/* No lock held. Begins the round of this number, unless it has begun. */
void rounds_demand(struct pool *pool, uint64_t number);

#endif
