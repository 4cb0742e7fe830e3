/*
 * This file tracks the stream captures under way in the whole process.
 *
 * A fence, a barrier or a synchronise on a context with a capturing stream invalidates the capture.
 * Captures also spread to other contexts through events. So the pool keeps one count of captures.
 * While it is not 0, the pool records no fences, and the driver answers allocations and frees.
 *
 * Locking: the fence lock guards the list. A thread holds it across the driver's own begin of a
 * capture, so that no fence is recorded before the pool knows of the capture.
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

/* Whether every capture under way, if any, is owned (struct captures). The pool then decides which
 * of its calls may disturb a capture. */
static inline bool captures_are_all_owned(const struct captures *captures)
{
    return atomic_load_explicit(&captures->unowned, memory_order_relaxed) == 0;
}

/* Whether the pool may call the driver's own frees: no capture is under way, or none forbids
 * them. */
static inline bool captures_spare_frees(const struct pool *pool)
{
    return !captures_are_going_on(&pool->captures) ||
           (pool->settings.captures.allocate && captures_are_all_owned(&pool->captures));
}

/* No lock held. Whether a capture has the stream, or may have it. */
bool stream_may_be_captured(const struct pool *pool, CUstream stream);

/* The fence lock is held. Whether the capture has failed, though nobody has ended it yet. It asks
 * the driver, which does the capture no harm. False for other streams than created ones: only those
 * are known to exist. */
bool capture_is_spoilt(struct pool *pool, const struct capture *capture);

/* Used around an allocation or a free by the driver. Where captures may allocate, the call must
 * disturb no capture, not even one that another thread begins meanwhile. Ends with
 * relaxed_mode_end. */
struct relaxed_mode relaxed_mode_where_captures_allocate(const struct pool *pool);

/* The pool is not yet in use. Makes it behave as if a capture were under way that never ends. */
void captures_switch_off(struct pool *pool);

/* Take and release the fence lock. The caller holds it around the driver's begin of a capture, and
 * around the destruction of a stream while captures are under way. */
void captures_lock(struct pool *pool);
void captures_unlock(struct pool *pool);

/*
 * The caller holds the fence lock. captures_began: a capture has begun on the stream.
 * captures_perhaps_ended: the stream's capture may have ended. The driver is asked, since a failed
 * end may leave the capture under way. captures_stream_destroyed: the stream has been destroyed,
 * and its capture with it. per_thread: the NULL stream means the calling thread's own, as in the
 * _ptsz functions. graph: the graph that the driver says the capture has left, NULL for none.
 */
void captures_began(struct pool *pool, CUstream stream, bool per_thread);
void captures_perhaps_ended(struct pool *pool, CUstream stream, bool per_thread, CUgraph graph);
void captures_stream_destroyed(struct pool *pool, CUstream stream);

/* captures_began for a graph that has been captured before and is to be captured anew. No kind is
 * told: each time it would tie something to the graph, which nobody would take off. */
void captures_began_again(struct pool *pool, CUstream stream);

/* The caller holds the fence lock. The context has died, and with it every capture on its streams
 * and on the streams of its green contexts. */
void captures_context_died(struct pool *pool, const struct context *context);

#endif
