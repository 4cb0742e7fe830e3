/*
 * What a free puts into its stream (an event or another operation), and how the freed block becomes
 * pending. stream_order.h says why, stream_free.h when.
 */
#ifndef CUDAPOOL_CORE_STREAM_FREE_EVENT_H
#define CUDAPOOL_CORE_STREAM_FREE_EVENT_H

#include <stdbool.h>
#include <stdint.h>

#include "stream_block.h"
#include "stream_shelf.h"
#include "streams.h"

struct stream_free_event {
    bool event;  /* an event of the pool's own, which can be asked about */
    bool marker; /* at least an operation, since others order the stream */
};

/* Lock held. What the free of this block must put into its stream. */
struct stream_free_event stream_free_event_due(const struct pool *pool, struct stream *stream,
                                               const struct stream_block *block);

/* No lock held. Puts the event or operation of the free with this stamp into the stream. False if
 * an operation is required and cannot be made. *event: the event, if there is one; it counts the
 * caller as a user. */
bool stream_free_event_record(struct pool *pool, struct stream_ref ref, CUstream handle,
                              uint64_t stamp, struct stream_free_event put,
                              struct own_event **event);

/* Lock held. Makes the block pending on the shelf. moved: no shelf counted the block before. */
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
    shelf_make_pending(stream, bucket, block, stamp);
    shelf_follow_fall(shelf);
    shelf_count_if_covered(stream, block);
}

#endif
