/*
 * Stream captures under way, in the whole process.
 *
 * A fence, a barrier or a synchronise on a context with a capturing stream invalidates the capture,
 * and captures spread to other contexts through events. So the pool keeps one count: while it is
 * not 0, nothing is fenced, and allocations and frees are the driver's.
 *
 * Locking: the list is guarded by the fence lock, which is held across the driver's own begin, so
 * that no fence is recorded between that and our knowing.
 */
#ifndef CUDAPOOL_CORE_CAPTURE_H
#define CUDAPOOL_CORE_CAPTURE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "pool_state.h"

static inline bool captures_are_going_on(const struct captures *captures)
{
    return atomic_load_explicit(&captures->count, memory_order_relaxed) != 0;
}

/* Whether the program captures anywhere in the process. */
static inline bool program_captures(const struct captures *captures)
{
    /* Relaxed: see captures_are_going_on. */
    return atomic_load_explicit(&captures->count, memory_order_relaxed) != captures->idle;
}

/* Whether every capture that goes on, if any, leaves it to the pool what calls it minds. */
static inline bool captures_are_all_owned(const struct captures *captures)
{
    return atomic_load_explicit(&captures->unowned, memory_order_relaxed) == 0;
}

/* Whether the driver's own frees may be asked for: no capture goes on, or none minds. */
static inline bool captures_spare_frees(const struct pool *pool)
{
    return !captures_are_going_on(&pool->captures) ||
           (pool->settings.captures.allocate && captures_are_all_owned(&pool->captures));
}

/* Whether a capture has the stream, or may have it. No lock held. */
bool stream_may_be_captured(const struct pool *pool, CUstream stream);

/* The fence lock is held. Whether the capture has failed, though nobody has ended it yet. The
 * driver is asked, which spoils nothing. Only streams that were created are known to be there. */
bool capture_is_spoilt(struct pool *pool, const struct capture *capture);

/* Around an allocation or a free of the driver's: where captures may allocate, none is to mind,
 * not even one that another thread begins meanwhile. Ends with relaxed_mode_end. */
struct relaxed_mode relaxed_mode_where_captures_allocate(const struct pool *pool);

/* The pool not yet in use: it does as if a capture went on that never ends. */
void captures_switch_off(struct pool *pool);

/* The fence lock: held around the driver's begin of a capture, and around the destruction of a
 * stream while captures go on. */
void captures_lock(struct pool *pool);
void captures_unlock(struct pool *pool);

/*
 * Lock held by the caller. A capture has begun on the stream; the stream's capture has perhaps
 * ended (the driver is asked: a failed end may leave it going on); the stream has been destroyed,
 * and its capture with it. per_thread: the NULL stream means the calling thread's own, as in the
 * _ptsz functions. graph: what the driver said that the capture has left, NULL for none.
 */
void captures_began(struct pool *pool, CUstream stream, bool per_thread);
void captures_perhaps_ended(struct pool *pool, CUstream stream, bool per_thread, CUgraph graph);
void captures_stream_destroyed(struct pool *pool, CUstream stream);

/* The same as captures_began, of a graph that has been captured before and is to be captured anew:
 * no kind is told, since it would tie something to the graph each time, and nobody would take it
 * off. */
void captures_began_again(struct pool *pool, CUstream stream);

/* Lock held by the caller. The context has died, and every capture on its streams with it, those of
 * its green contexts' streams included. */
void captures_context_died(struct pool *pool, const struct context *context);

#endif
