#include "stream_done.h"

#include "core/base/numbers.h"
#include "stream_shelf.h"

void stream_done_raise(struct stream *stream, uint64_t stamp)
{
    lock_must_be_held(&stream->lock);
    if (stream_done(stream) < stamp)
        atomic_store_explicit(&stream->done, stamp, memory_order_relaxed);
    while (stream->pending.first &&
           counter_get(&stream->pending.first->epoch) <= stream_done(stream))
        shelf_make_clean(stream, stream_block_of(stream->pending.first));
}

void stream_done_apply(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    stream_done_raise(stream, epoch_own_clean(&stream->context->epochs));
}

uint64_t stream_newest_unclean(const struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    const struct block *last = stream->pending.last;
    uint64_t newest =
        larger_of(last ? counter_get(&last->epoch) : 0, counter_get(&stream->spare_stamp));
    return newest > stream_done(stream) || counter_get(&stream->away) ? newest : 0;
}
