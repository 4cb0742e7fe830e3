/*
 * What a free on a stream puts there: an event or an operation into the stream, and the block among
 * what is pending. stream_order.h says why, stream_free.h when.
 */
#ifndef CUDAPOOL_CORE_STREAM_PUT_H
#define CUDAPOOL_CORE_STREAM_PUT_H

#include <stdbool.h>
#include <stdint.h>

#include "stream_block.h"
#include "stream_shelf.h"
#include "streams.h"

struct stream_put {
    bool event;  /* one of its own, so that it can be asked about */
    bool marker; /* or at least an operation: others order the stream */
};

/* Lock held. What the free of this block is to put into its stream. */
struct stream_put stream_put_due(const struct pool *pool, struct stream *stream,
                                 const struct stream_block *block);

/* No lock held. Puts it in, of the free with this stamp. False where an operation cannot be made
 * that has to be. *event: where there is one, used by the caller. */
bool stream_put_in_free(struct pool *pool, struct stream_ref ref, CUstream handle, uint64_t stamp,
                        struct stream_put put, struct own_event **event);

/* Lock held. The block is pending on the shelf from now on. moved: it was counted on none. */
static inline void stream_put_on_shelf(const struct pool *pool, struct shelf *shelf,
                                       struct bucket *bucket, struct stream_block *block,
                                       bool moved, struct own_event *event, uint64_t stamp)
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
    block->event = event;
    shelf_list_bucket(pool, stream, bucket);
    shelf_make_pending(stream, bucket, block, stamp);
    shelf_follow_fall(shelf);
    shelf_count_if_covered(stream, block);
}

#endif
