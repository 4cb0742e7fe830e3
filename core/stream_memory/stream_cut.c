#include "stream_cut.h"

#include "core/base/numbers.h"
#include "core/contexts/device.h"
#include "core/contexts/pool_state.h"
#include "stream_merge.h"
#include "stream_order.h"
#include "stream_parts.h"
#include "stream_reserve.h"

/* The spare bytes of a shelf's segments may be this share of the device. Beyond it the driver is
 * asked for single blocks. */
#define SPARE_SHARE 64u

struct stream_block *stream_cut_own(struct stream *stream, struct shelf *shelf,
                                    struct bucket *bucket, bool anywhere)
{
    lock_must_be_held(&stream->lock);
    struct stream_block *block = search_take_own(stream, bucket);
    return block ? block : stream_parts_cut(shelf, bucket, anywhere);
}

bool stream_cut_for(const struct search *search, struct shelf *shelf, struct bucket *bucket,
                    CUdeviceptr *address, size_t bytes, bool anywhere)
{
    struct stream *stream = search->ref.stream;
    struct stream_block *block = NULL;
    lock_take(&stream->lock, LOCK_STREAM);
    if (stream_is(search->ref) && shelf_is_usable(stream->context))
        block = stream_cut_own(stream, shelf, bucket, anywhere);
    if (block) {
        thread_count_wait(bucket->counters);
        *address = shelf_hand_out_hit(shelf, bucket, block, bytes, HIT_CLEAN);
    }
    lock_give(&stream->lock);
    return block;
}

/* The oldest pending stamp of the stream, or else that of its spare memory; 0: nothing is pending.
 */
static uint64_t oldest_stamp(struct stream *stream)
{
    lock_take(&stream->lock, LOCK_STREAM);
    uint64_t spare = counter_get(&stream->parts.spare_stamp);
    uint64_t stamp = stream->pending.first ? counter_get(&stream->pending.first->epoch) : 0;
    if (!stamp && spare > stream_done(stream))
        stamp = spare;
    lock_give(&stream->lock);
    return stamp;
}

bool stream_cut_after_asking(const struct search *search, struct shelf *shelf,
                             struct bucket *bucket, CUdeviceptr *address, size_t bytes)
{
    struct pool *pool = search->pool;
    struct stream *stream = search->ref.stream;
    uint64_t stamp = search->host_only && search_asks(search) ? oldest_stamp(stream) : 0;
    bool asked = stamp && order_ask(pool, stream, stamp);
    bool merged = stream_merge_own(pool, stream);
    return (merged || asked) && stream_cut_for(search, shelf, bucket, address, bytes, false);
}

/* ---- new segments ---- */

/* Makes the search one for a whole block of these bytes, if there can be a bucket for it. */
static void aim(struct search *search, struct shelf *shelf, uint64_t bytes)
{
    struct stream *stream = shelf->stream;
    lock_take(&stream->lock, LOCK_STREAM);
    struct bucket *whole = shelf_get_bucket(search->pool, shelf, bytes);
    lock_give(&stream->lock);
    if (whole)
        search_for_whole(search, whole);
}

void stream_cut_search_segment(struct search *search, struct shelf *shelf, struct bucket *bucket)
{
    search->shelf = shelf;
    search->bucket = bucket;
    aim(search, shelf, segment_bytes_for(&shelf->segments, bucket->bytes));
}

static bool spares_too_much(const struct search *search, const struct shelf *shelf, uint64_t bytes)
{
    struct stream *stream = shelf->stream;
    lock_take(&stream->lock, LOCK_STREAM);
    uint64_t spare = segments_spare_bytes(&shelf->segments, bytes);
    lock_give(&stream->lock);
    return spare > search->context->device->total_bytes / SPARE_SHARE;
}

void stream_cut_aim_for_driver(struct search *search)
{
    struct shelf *shelf = search->shelf;
    const struct bucket *bucket = search->bucket;
    uint64_t segment = segment_bytes_for(&shelf->segments, bucket->bytes);
    bool alone = !segment_is_for_several(&shelf->segments, bucket->bytes) ||
                 spares_too_much(search, shelf, bucket->bytes);
    if (alone)
        segment = segment_bytes_of_one(bucket->bytes);
    if (!device_limits_allow(search->context->device, segment))
        segment = bucket->bytes;
    aim(search, shelf, segment);
}

struct stream_block *stream_cut_new(struct shelf *shelf, struct stream_block *block,
                                    struct bucket **bucket)
{
    lock_must_be_held(&shelf->stream->lock);
    struct bucket *of_whole = block->block.bucket;
    if (of_whole->bytes <= (*bucket)->bytes)
        return block;
    shelf_count_out(shelf, of_whole, block);
    struct stream_block *part = stream_parts_cut_new(shelf, block, *bucket);
    if (part)
        return part;
    *bucket = of_whole;
    shelf_count_in(shelf, of_whole, block);
    return block;
}
