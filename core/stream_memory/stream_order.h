/*
 * Which frees in a stream's order are over: all work that was submitted before them has completed.
 *
 * A free in a stream's order is stamped with the current epoch of the stream's context
 * (core/contexts/epoch.h). The work that used the block was submitted before that. A block may
 * serve another stream once its stamp is done (stream.done), which two things show:
 *   - A fence of the context has completed, or the program has waited for the context: everything
 *     up to epoch_own_clean is done.
 *   - The program has waited for the stream, or has asked whether it is idle. Before such a call
 *     the epoch of the stream's last free is closed. So what is freed during the wait has another
 *     stamp.
 *
 * A fence is ordered after all work of the context, and may be recorded long after the free. So the
 * pool only asks about it, and makes neither a thread nor a stream wait for it. The program's own
 * events are not followed.
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
 *     waits without the pool.
 *
 * The order of such a stream, and a wait for it, tell only of the frees up to the last operation:
 * up to stream.marked. Nearly always these are all frees. The exception is a free that was made
 * before a barrier began to order the stream. An operation serves all frees before it. A free
 * reads its stamp after its operation was put into the stream, unless the operation is an event,
 * before which it closes the epoch. While such a free is under way, a wait tells nothing.
 *
 * A stream that nobody orders (created with CU_STREAM_NON_BLOCKING, no barriers) needs no
 * operation. Whatever comes before a free on it does so by operations of its own.
 *
 * stream_done.h applies what is known. stream_events.h puts operations and events into streams.
 * stream_pending.h asks and waits for whole contexts and devices.
 *
 * Locking: a stream's lock guards its struct stream. It is not held across a driver call.
 */
#ifndef CUDAPOOL_CORE_STREAM_ORDER_H
#define CUDAPOOL_CORE_STREAM_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "streams.h"

/* ---- asking; no lock is held ---- */

/* Asks about a fence for the stamp. True: all work before the stream's frees up to it has
 * completed. */
bool order_ask(struct pool *pool, struct stream *stream, uint64_t stamp);

/* order_request_fences: another stream looked for a block with a fence and found none, so the next
 * frees record one each. order_release_request: one of them has. Concurrent calls may lose each
 * other's changes. */
void order_request_fences(struct stream *stream);
void order_release_request(struct stream *stream);

/* ---- the program's own waits; no lock is held ---- */

/* What a wait for a stream tells if it succeeds: the work before the frees stamped up to this has
 * completed. */
struct order_mark {
    struct stream_ref ref;   /* none: the wait tells nothing */
    struct context *context; /* of the stream, also where ref is none; NULL: not known */
    uint64_t stamp;
};

/* To be called before the program waits for the stream, or queries it. */
struct order_mark order_take_mark(struct pool *pool, CUstream handle);

/* The wait or query succeeded. The mark has a stream. */
void order_mark_is_over(struct order_mark mark);

#endif
