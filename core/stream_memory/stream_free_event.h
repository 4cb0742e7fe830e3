/*
 * What a free puts into its stream and its context, and how the freed block becomes pending.
 * stream_order.h and stream_events.h say why, stream_free.h when.
 */
#ifndef CUDAPOOL_CORE_STREAM_FREE_EVENT_H
#define CUDAPOOL_CORE_STREAM_FREE_EVENT_H

#include <stdbool.h>
#include <stdint.h>

#include "stream_block.h"
#include "stream_shelf.h"
#include "streams.h"

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
