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
 * stream_events.h puts operations and events into streams, and applies what is known.
 * stream_pending.h asks and waits for whole contexts and devices.
 *
 * Locking: a stream's lock guards its struct stream. It is not held across a driver call.
 */
#ifndef CUDAPOOL_CORE_STREAM_ORDER_H
#define CUDAPOOL_CORE_STREAM_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "stream_block.h"
#include "stream_shelf.h"
#include "streams.h"

/* ---- asking; no lock is held ---- */

/* Asks about a fence for the stamp. True: all work before the stream's frees up to it has
 * completed. */
bool order_ask(struct pool *pool, struct stream *stream, uint64_t stamp);

/* Another stream looked for a block with a fence and found none: the next frees record one each. */
void order_request_fences(struct stream *stream);

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

/* ---- what a free puts into its stream ----
 *
 * What a free puts into its stream and its context, and how the freed block becomes pending.
 * stream_events.h says more of events, stream_free.h when this happens.
 */

struct stream_free_event {
    bool fence;     /* a fence of the context, which can be asked about */
    bool event;     /* an event, behind which memory can go to the driver before it is clean */
    bool operation; /* an operation, since others order the stream */
};

/* Lock held. What the free of this block must put there. */
struct stream_free_event stream_free_event_due(const struct pool *pool, struct stream *stream,
                                               const struct stream_block *block);

/* No lock held. Puts it there. False if an operation is required and cannot be made. *stamp: the
 * free's, of an epoch with a fence or an event; 0: the stamp of the moment at which the block
 * becomes pending. */
bool stream_free_event_record(struct pool *pool, struct stream_ref ref, CUstream handle,
                              struct stream_free_event due, uint64_t *stamp);

/* Lock held. Makes the block pending on the shelf, with this stamp, or of now (0). Each free up to
 * it has its operation, where the stream needs some. moved: no shelf counted the block before. */
static inline void stream_free_make_pending(const struct pool *pool, struct shelf *shelf,
                                            struct bucket *bucket, struct stream_block *block,
                                            bool moved, uint64_t stamp)
{
    lock_must_be_held(&shelf->stream->lock);
    struct stream *stream = shelf->stream;
    if (moved) {
        atomic_store_explicit(&block->shelf, shelf, memory_order_relaxed);
        block->block.bucket = bucket;
        shelf_count_in(shelf, bucket, block);
    } else {
        shelf_count_not_live(shelf, block);
    }
    shelf_list_bucket(pool, stream, bucket);
    shelf_make_pending(stream, bucket, block, stamp ? stamp : shelf_stamp(stream));
    shelf_follow_fall(shelf);
    shelf_count_if_covered(stream, block);
}

#endif
