/*
 * This file tracks the stream captures under way in the whole process.
 *
 * A fence, a barrier or a synchronise on a context with a capturing stream invalidates the capture.
 * Captures also spread to other contexts through events. So the pool keeps one count of captures.
 * While the program captures, the pool records no fences. The driver then answers allocations and
 * frees, unless all captures are owned (struct captures). The driver also answers them in a pool
 * that is switched off, whose count is never 0.
 *
 * Locking: the fence lock guards the list. A thread holds it while the driver begins a capture, so
 * that no fence is recorded before the pool knows of the capture.
 */
#ifndef CUDAPOOL_CORE_CAPTURE_H
#define CUDAPOOL_CORE_CAPTURE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "pool_state.h"

/* Whether the program captures, or the pool is switched off. */
static inline bool captures_under_way(const struct captures *captures)
{
    /* Relaxed: whoever records a fence asks again under the fence lock. */
    return atomic_load_explicit(&captures->count, memory_order_relaxed) != 0;
}

/* Whether the program captures anywhere in the process. */
static inline bool program_captures(const struct captures *captures)
{
    /* Relaxed: whoever records a fence asks again under the fence lock. */
    return atomic_load_explicit(&captures->count, memory_order_relaxed) != captures->idle;
}

/* Whether every capture under way, if any, is owned (struct captures). False in a pool that is
 * switched off. If true, the pool itself sees to it that its driver calls disturb no capture. */
static inline bool captures_are_all_owned(const struct captures *captures)
{
    return atomic_load_explicit(&captures->unowned, memory_order_relaxed) == 0;
}

/* Whether the pool may call cuMemFree and its like: captures_under_way is false, or the settings
 * let captures allocate and all captures are owned. */
static inline bool captures_spare_frees(const struct pool *pool)
{
    return !captures_under_way(&pool->captures) ||
           (pool->settings.captures.allocate && captures_are_all_owned(&pool->captures));
}

/* Returns whether a capture under way includes the stream, or may include it. The caller holds no
 * lock. */
bool stream_may_be_captured(const struct pool *pool, CUstream stream);

/* Returns whether the capture has failed, though nobody has ended it yet. The caller holds the
 * fence lock. The function asks the driver; the question does not disturb the capture. It returns
 * false for a legacy or per-thread stream. Its handle would mean another stream in this thread. */
bool capture_is_spoilt(struct pool *pool, const struct capture *capture);

/* Begins relaxed mode where captures may allocate (captures.allocate). The caller uses it around an
 * allocation or a free by the driver. That driver call must not disturb a capture, not even one
 * that another thread begins meanwhile. relaxed_mode_end ends the mode. */
struct relaxed_mode relaxed_mode_where_captures_allocate(const struct pool *pool);

/* Switches off a pool that is not yet in use: captures_under_way is true from then on, so the
 * driver answers. The caller sets captures.idle afterwards, so program_captures is false. */
void captures_switch_off(struct pool *pool);

/* Take the fence lock and enter the driver, and the reverse. The lock is held while the driver
 * begins a capture. While captures are under way, it is also held while the driver destroys a
 * stream. */
void captures_lock(struct pool *pool);
void captures_unlock(struct pool *pool);

/*
 * The caller holds the fence lock.
 *
 * captures_began: a capture has begun on the stream.
 * captures_perhaps_ended: the stream's capture may have ended. The function asks the driver, since
 * a failed end may leave the capture under way.
 * captures_stream_destroyed: the stream has been destroyed, and its capture with it.
 *
 * per_thread: the NULL stream means the calling thread's own, as in the _ptsz functions.
 * graph: the graph that the driver returned for the capture; NULL: none.
 */
void captures_began(struct pool *pool, CUstream stream, bool per_thread);
void captures_perhaps_ended(struct pool *pool, CUstream stream, bool per_thread, CUgraph graph);
void captures_stream_destroyed(struct pool *pool, CUstream stream);

/* Replaces captures_began for a graph that has been captured before and is captured anew. The kinds
 * of memory are not told of the beginning. A kind would attach something to the graph at each
 * capture, and nobody would detach it. There is no per_thread, since this driver call has no _ptsz
 * form. */
void captures_began_again(struct pool *pool, CUstream stream);

/* The caller holds the fence lock. The context has died, and with it every capture on its streams
 * and on the streams of its green contexts. */
void captures_context_died(struct pool *pool, const struct context *context);

#endif
