/*
 * What is known to be over, and what comes after what, among streams.
 *
 * Every free on a stream takes the stream's next stamp, under its lock; so the work that used the
 * block was submitted before the stamp was taken. A block may be given to work of another stream
 * when one of these is known of its stamp:
 *   - it is over: the program has waited for the stream, for an event recorded on it later, or for
 *     the whole context; or was told by a query that it need not wait; or an event of our own,
 *     recorded in a free with that stamp or a later one, has completed (stream.done);
 *   - the other stream comes after it, because the program made it wait for an event recorded later
 *     (stream.known: a vector clock; Mattern 1988, Fidge 1988);
 *   - it has an event of its own, recorded in that very free, and the other stream is made to wait
 *     for it. Never for a later one: that would make the stream wait for work that the program
 *     submitted after the free, which it does not do without the pool.
 *
 * What is put into the program's streams
 *
 * Some streams are ordered by others, through operations that are put into them: the legacy stream
 * and blocking ones (each thread's own among them) by each other, and every stream of a context by
 * a barrier of the program's (cuCtxWaitEvent). The driver's free is such an operation; its
 * allocation, its synchronise and its query are none. So
 *   - each free there puts an operation of ours in the place of the driver's. A program may lean on
 *     it without any use of the block: a wait for the stream is one for what came before the free
 *     (the legacy stream's kernel, say), and a free on the legacy stream stands between two
 *     blocking ones. Where it cannot be put there, the driver frees the block.
 *   - nothing else puts one there: it would wait for everything that was submitted before it, and
 *     make others wait, also for work that was submitted after the last free, for which nobody
 *     waits without the pool. (As the stream is destroyed one may be: nobody can wait for it any
 *     more.)
 * Its own order, and a wait for it, tell of the frees up to the last operation: up to
 * stream.marked. Nearly always those are all; not what was freed before a barrier made the stream
 * one of these. An operation serves the frees before it, too.
 * The operation is a record of an event and a wait for that event, both in the stream. A record
 * alone is not enough: in a stream without work of its own it comes after what others order before
 * it, as whoever waits for the event finds, but cuStreamQuery and cuStreamSynchronize do not see it
 * and say that the stream is idle (measured; only the legacy stream's wait for the blocking ones
 * with nothing in it). The event is one of our own where one is due anyway, which can be asked
 * about; else, and where too many of those are outstanding, one event is recorded over and over
 * that nobody asks about: the marker.
 *
 * A stream that nobody orders (created with CU_STREAM_NON_BLOCKING, no barriers) needs no marker:
 * who comes before a free on it does so by operations of its own.
 *
 * An event is also recorded in a free where the stream would otherwise leave more than its share
 * pending that nobody can ask about: such memory would come back only after all of its context's
 * work, another stream's long kernel included.
 *
 * Locking: struct stream by its lock, which is not held across a driver call.
 */
#ifndef CUDAPOOL_CORE_STREAM_ORDER_H
#define CUDAPOOL_CORE_STREAM_ORDER_H

#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "streams.h"

/* ---- a stream ---- */

/* No lock held. Taken before the driver is asked or told. */
void order_take_mark(struct pool *pool, CUstream handle, struct order_mark *mark);

/* The same before the program waits for the stream, or asks about it. */
void order_take_mark_of_wait(struct pool *pool, CUstream handle, struct order_mark *mark);

/* The wait or query succeeded: all of it is over. */
void order_mark_is_over(struct pool *pool, const struct order_mark *mark);

/* Everything that the clock's first so many stamps name is over. No lock held. */
void order_clock_is_over(struct streams *streams, const struct order_clock *clock, unsigned count);

/* ---- a whole context ---- */

/* The same for all streams of a context. The answer may be NULL, where memory is short; else it is
 * the caller's until it frees it. */
struct order_marks;
struct order_marks *order_take_context(struct pool *pool, const struct context *context);
void order_context_is_over(struct order_marks *marks);

/* The same where only the context's legacy stream was waited for: of blocking streams. */
void order_blocking_are_over(struct order_marks *marks);
void order_free_marks(struct order_marks *marks);

#endif
