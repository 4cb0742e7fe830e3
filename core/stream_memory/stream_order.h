/*
 * Which work on streams is known to have completed.
 *
 * Every free on a stream takes the stream's next stamp, under the stream's lock. So the work that
 * used the block was submitted before the stamp was taken. The pool may give the block to work of
 * another stream when one of these is known of its stamp:
 *   - The stamp has completed (stream.done). The program has waited for the stream or for the whole
 *     context, or a query told it that it need not wait. Or an event of the pool's own has
 *     completed that was recorded in a free with this stamp or a later one.
 *   - The stamp has an event of the pool's own, recorded in that very free, and the pool makes the
 *     other stream wait for it. The event of a later free is never used for this. The stream would
 *     wait for work that the program submitted after the free, which does not happen without the
 *     pool.
 *
 * What the pool puts into the program's streams
 *
 * Some streams are ordered by others, through operations that are put into them. The legacy stream
 * and the blocking streams, with each thread's own stream among them, order each other. A barrier
 * of the program (cuCtxWaitEvent) orders every stream of a context. The driver's free is such an
 * operation. Its allocation, its synchronise and its query are not. Two rules follow:
 *   - Each free on such a stream puts an operation of the pool's in the place of the driver's. A
 *     program may rely on that operation without any use of the block. A wait for the stream, for
 *     instance, waits for what came before the free (such as the legacy stream's kernel). And a
 *     free on the legacy stream stands between two blocking streams. Where the pool can't put an
 *     operation there, the driver frees the block.
 *   - Nothing else puts an operation there. It would wait for everything that was submitted before
 *     it, and make others wait. That includes work submitted after the last free, for which nobody
 *     waits without the pool. (Only as the stream is destroyed may one be put there: then nobody
 *     can wait for the stream any more.)
 *
 * The order of such a stream, and a wait for it, tell only of the frees up to the last operation:
 * up to stream.marked. Nearly always these are all frees. The exception is a free that was made
 * before a barrier began to order the stream. An operation serves all frees before it.
 *
 * The operation is a record of an event and a wait for that event, both in the stream. A record
 * alone is not enough. In a stream without work of its own, the record comes after what others
 * order before it, and whoever waits for the event finds that. But cuStreamQuery and
 * cuStreamSynchronize do not see the record and say that the stream is idle. (This is measured.
 * They see it only on the legacy stream, when that waits for blocking streams.)
 *
 * If an event of the pool's own is due anyway, the operation uses that one, and it can be asked
 * about. Otherwise, or if too many of those are outstanding, one event is recorded over and over
 * that nobody asks about: the marker.
 *
 * A stream that nobody orders (created with CU_STREAM_NON_BLOCKING, no barriers) needs no marker.
 * Whatever comes before a free on it does so by operations of its own.
 *
 * A free also records an event where the stream would otherwise have more than its share pending
 * that nobody can ask about. Such memory would become clean only after all of its context's work,
 * including another stream's long kernel.
 *
 * own_events.h holds the pool's own events, own_event_record.h records them and own_event_query.h
 * asks about them. The program's own events are not followed.
 *
 * Locking: a stream's lock guards its struct stream. It is not held across a driver call.
 */
#ifndef CUDAPOOL_CORE_STREAM_ORDER_H
#define CUDAPOOL_CORE_STREAM_ORDER_H

#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "streams.h"

/* ---- a stream ---- */

/* What a wait for a stream tells if it succeeds: the work before the frees stamped up to this has
 * completed. */
struct order_mark {
    struct stream *stream;   /* NULL: the wait tells nothing */
    struct context *context; /* of the stream, also where stream is NULL; NULL: not known */
    uint64_t stamp;
};

/* To be called before the program waits for the stream, or queries it. */
struct order_mark order_take_mark(struct pool *pool, CUstream handle);

/* The wait or query succeeded. The mark has a stream. */
void order_mark_is_over(struct order_mark mark);

/* ---- a whole context ---- */

/* Notes the stamps of all streams of a context, before the program waits for it. NULL where memory
 * is short; otherwise the caller owns the answer until it calls order_free_marks.
 * order_context_is_over: the wait succeeded, so everything up to these stamps has completed. */
struct order_marks;
struct order_marks *order_take_context(struct pool *pool, const struct context *context);
void order_context_is_over(struct order_marks *marks);

/* Only the context's legacy stream was waited for: everything up to these stamps has completed on
 * blocking streams. */
void order_blocking_are_over(struct order_marks *marks);
void order_free_marks(struct order_marks *marks);

#endif
