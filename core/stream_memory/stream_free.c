#include "stream_free.h"

#include "core/base/clock.h"
#include "core/base/numbers.h"
#include "core/contexts/device.h"
#include "core/contexts/epoch.h"
#include "core/contexts/fence_event.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"
#include "core/housekeeper/housekeeper.h"
#include "core/reclaim/room.h"
#include "mempool.h"
#include "mempool_list.h"
#include "stream_bypass.h"
#include "stream_events.h"
#include "stream_order.h"
#include "stream_owner.h"
#include "stream_part_free.h"
#include "stream_pending.h"
#include "stream_release.h"
#include "stream_reserve.h"
#include "stream_shelf.h"
#include "stream_table.h"
#include "use.h"

/* ---- frees in a stream's order ---- */

/* A free on another stream than the allocation's, or one that puts something into the stream or its
 * context. The block is detached. False: the driver frees the block, and its free is the operation
 * that others wait for. */
static bool free_slowly(struct pool *pool, struct stream_block *block, struct stream_ref ref,
                        CUstream handle, struct stream_free_event put)
{
    struct stream *stream = ref.stream;
    bool moved = shelf_of(block)->stream != stream;
    uint64_t stamp;
    bool may = stream_free_event_record(pool, ref, handle, put, &stamp);
    if (moved)
        stream_block_leave_shelf(block);
    lock_take(&stream->lock, LOCK_STREAM);
    /* The context may have begun to end meanwhile. Nobody would release a block that is put here
     * now. */
    bool stays = may && stream_is(ref) && shelf_may_keep(stream, block) &&
                 (!put.operation || !stream_pending_capture_is_coming(pool));
    struct shelf *shelf = stays ? shelf_get(pool, stream, block->mempool) : NULL;
    struct bucket *bucket = shelf ? shelf_get_bucket(pool, shelf, block->block.bytes) : NULL;
    stays = bucket && !(moved && shelf_is_full(pool, bucket));
    if (stays)
        stream_free_make_pending(pool, shelf, bucket, block, moved, stamp);
    if (stays && put.operation)
        shelf_raise_marked(stream, counter_get(&block->block.epoch));
    stream_done_apply(stream);
    shelf_set_unchecked(stream);
    /* If no event can be recorded, not every free tries again. */
    if (put.event && (!stamp || stream->covered < stamp))
        shelf_put_off_check(stream);
    struct context *context = stays ? stream->context : NULL;
    lock_give(&stream->lock);
    stream_block_has_a_place(stream);
    if (context && put.event)
        room_look_again(pool, context);
    if (!stays && moved)
        stream_block_return_to_shelf(block);
    return stays;
}

static bool free_whole_in_order(struct pool *pool, struct stream_block *block,
                                struct stream_ref ref, CUstream handle)
{
    struct stream *stream = ref.stream;
    bool looked = false;
    lock_take(&stream->lock, LOCK_STREAM);
    for (;;) {
        if (!stream_is(ref) || !shelf_may_keep(stream, block) ||
            (!looked && bypass_is_too_far_behind(stream, block))) {
            lock_give(&stream->lock);
            return false;
        }
        /* If the block moves to another stream's bucket, free_slowly checks that bucket. */
        if (shelf_is_within_cap(stream, block) &&
            (shelf_of(block)->stream != stream || !shelf_is_full(pool, block->block.bucket)))
            break;
        lock_give(&stream->lock);
        if (looked || !stream_reserve_keeps(pool, stream, block))
            return false;
        looked = true;
        lock_take(&stream->lock, LOCK_STREAM);
    }
    struct stream_free_event put = stream_free_event_due(pool, stream, block);
    if ((put.fence || put.event || put.operation) && bypass_is_for_driver(stream)) {
        lock_give(&stream->lock);
        return false;
    }
    uint64_t bytes = block->block.bytes;
    bool look = shelf_look_is_due(stream);
    stream_block_is_detached(stream);
    lock_give(&stream->lock);
    bool kept = free_slowly(pool, block, ref, handle, put);
    if (kept && look)
        stream_reserve_look(pool, stream, bytes);
    else if (kept)
        housekeeper_look(pool, bytes);
    return kept;
}

bool stream_free_in_order(struct pool *pool, struct stream_block *block, struct stream_ref ref,
                          CUstream handle)
{
    if (block_is_part(&block->block))
        return stream_part_free_in_order(pool, block, ref, handle);
    return free_whole_in_order(pool, block, ref, handle);
}

/* ---- frees that need nothing but a marker ---- */

/* Whether the free needs nothing but the marker. The slow path serves the others:
 * - where memory is short, each free records an event, and only a free may;
 * - now and then a free checks how much may be pending without an event;
 * - some frees are left to the driver. */
static bool needs_only_a_marker(const struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    return stream->events.marker && stream->ordered_by_others && !shelf_launches_early(stream) &&
           stream->frees_until_look != 0 && stream->bypass.for_driver == 0 &&
           !device_is_short(stream->device);
}

bool stream_free_with_marker(struct pool *pool, struct shelf *shelf, struct stream_block *block,
                             CUdeviceptr address, CUstream handle)
{
    struct stream *stream = shelf->stream;
    lock_must_be_held(&stream->lock);
    struct stream_ref ref = {stream, stream->id};
    struct stream_event *marker = NULL;
    uint64_t bytes = block->block.bytes;
    if (needs_only_a_marker(stream) && shelf_may_free_at_once(shelf, block, address)) {
        atomic_store_explicit(&block->held_at, 0, memory_order_relaxed);
        marker = stream_use_marker(stream);
    }
    lock_give(&stream->lock);
    if (!marker)
        return false;
    bool recorded = stream_mark_by(pool, marker, handle);
    lock_take(&stream->lock, LOCK_STREAM);
    stream_drop_marker(stream, marker);
    /* Otherwise the block is the program's again, and the slow path frees it. */
    bool stays = recorded && stream_is(ref) && shelf_may_keep(stream, block) &&
                 !stream_pending_capture_is_coming(pool);
    if (stays) {
        stream_free_make_pending(pool, shelf, block->block.bucket, block, false, 0);
        shelf_raise_marked(stream, counter_get(&block->block.epoch));
    } else {
        atomic_store_explicit(&block->held_at, address, memory_order_release);
    }
    /* The look is due if the housekeeper has ended meanwhile because it saw nothing free. */
    bool look = stays && (shelf_look_is_due(stream) || bytes >= HOUSEKEEPER_MUCH);
    lock_give(&stream->lock);
    if (look)
        stream_reserve_look(pool, stream, bytes);
    return stays;
}

/* ---- plain frees ---- */

/* Whether the free before the block's present allocation is known to be over. A block that was
 * handed out for the record's former stream has a stamp of that stream. What is done on the present
 * stream says nothing of it. */
static bool last_free_is_over(const struct stream_block *block)
{
    struct stream *stream = shelf_of(block)->stream;
    lock_take(&stream->lock, LOCK_STREAM);
    stream_done_apply(stream);
    bool own = atomic_load_explicit(&block->generation, memory_order_relaxed) >
                   stream->given.handed_before ||
               counter_get(&block->block.epoch) == 0;
    bool over = own && counter_get(&block->block.epoch) <= stream_done(stream);
    lock_give(&stream->lock);
    return over;
}

/* Makes the block pending on ref, the context's record of plain frees, behind a fence. The context
 * is pinned. False: there is no fence now, or the record may not keep the block. The driver's own
 * free is the better one then: it relies on the program to have waited for all uses. */
static bool free_in_context(struct pool *pool, struct stream_block *block, struct stream_ref ref)
{
    struct stream *stream = ref.stream;
    lock_take(&stream->lock, LOCK_STREAM);
    stream_block_is_detached(stream);
    lock_give(&stream->lock);
    uint64_t stamp = epoch_close_in_order(pool, block->context, true);
    stream_block_leave_shelf(block);
    lock_take(&stream->lock, LOCK_STREAM);
    bool may = stamp && stream_is(ref) && shelf_may_keep(stream, block);
    struct shelf *shelf = may ? shelf_get(pool, stream, block->mempool) : NULL;
    struct bucket *bucket = shelf ? shelf_get_bucket(pool, shelf, block->block.bytes) : NULL;
    if (bucket)
        stream_free_make_pending(pool, shelf, bucket, block, true, stamp);
    stream_done_apply(stream);
    lock_give(&stream->lock);
    stream_block_has_a_place(stream);
    if (!bucket)
        stream_block_return_to_shelf(block);
    return bucket;
}

/* The pool does not keep the block: the driver is to free it behind all of the context's work. */
static void record_behind(struct pool *pool, struct context *context, struct fence_event *behind)
{
    CUevent event;
    enter_driver();
    bool recorded = stream_pending_record_context(pool, context, &event);
    leave_driver();
    if (recorded)
        *behind = (struct fence_event){context, context_generation(context), event, false};
}

bool stream_free_plainly(struct pool *pool, struct stream_block *block, struct fence_event *behind)
{
    *behind = (struct fence_event){NULL, 0, NULL, false};
    return !last_free_is_over(block) && stream_free_behind_all(pool, block, behind);
}

bool stream_free_behind_all(struct pool *pool, struct stream_block *block,
                            struct fence_event *behind)
{
    struct context *context = block->context;
    uint64_t bytes = block->block.bytes;
    *behind = (struct fence_event){NULL, 0, NULL, false};
    if (!context_pin(context, block->context_generation))
        return false;
    struct stream_ref ref = streams_of_plain_frees(pool, context);
    bool kept = ref.stream && free_in_context(pool, block, ref);
    if (!kept)
        record_behind(pool, context, behind);
    context_unpin(context);
    if (kept)
        housekeeper_look(pool, bytes);
    return kept;
}

/* ---- frees by the driver ---- */

CUresult stream_free_by_driver(struct pool *pool, struct stream_block *block,
                               stream_release *release, const void *argument)
{
    CUdeviceptr address = block_address(&block->block);
    stream_block_begin_free(pool, block);
    uint64_t started = monotonic_now();
    mempool_move_begin(streams_of(pool));
    enter_driver();
    CUresult result = release(pool, block, argument);
    leave_driver();
    uint64_t nanoseconds = monotonic_now() - started;
    if (driver_is_rid_of(pool->driver, address, result)) {
        use_forget(pool, block);
        stream_block_freed(pool, block, nanoseconds);
    } else {
        stream_block_free_failed(pool, block);
    }
    mempool_move_end(streams_of(pool));
    /* The driver's memory pool may keep the memory. Only the housekeeper releases it to others. */
    housekeeper_look(pool, 0);
    return result;
}

/* Frees the block behind the event, if there is one, and else by cuMemFree. The event stands for
 * the block's last free in a stream's order, which the driver has not seen. */
static CUresult call_plain_free(struct pool *pool, const struct stream_block *block,
                                const void *argument)
{
    const struct fence_event *behind = argument;
    if (behind->event && stream_release_one_behind(pool, behind, block_address(&block->block)))
        return CUDA_SUCCESS;
    CUresult result = stream_block_free_plainly(pool->driver, block);
    if (result == CUDA_SUCCESS)
        epoch_note_freed_in_order(block->context, block->block.bytes);
    return result;
}

static CUresult call_free_behind(struct pool *pool, const struct stream_block *block,
                                 const void *argument)
{
    const struct fence_event *behind = argument;
    return stream_release_one_behind(pool, behind, block_address(&block->block))
               ? CUDA_SUCCESS
               : CUDA_ERROR_NOT_READY;
}

/* The context has died, and its work with it. */
static CUresult call_free_of_dead(struct pool *pool, const struct stream_block *block,
                                  const void *unused)
{
    (void)unused;
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    CUresult result = stream_block_free_plainly(pool->driver, block);
    relaxed_mode_end(pool->driver, mode);
    return result;
}

/* Lets the driver free the block, and then destroys the event. */
static CUresult free_by(struct pool *pool, struct stream_block *block, stream_release *release,
                        const struct fence_event *behind)
{
    CUresult result = stream_free_by_driver(pool, block, release, behind);
    fence_event_destroy_pinned(pool, behind);
    return result;
}

CUresult stream_free_by_plain_call(struct pool *pool, struct stream_block *block,
                                   const struct fence_event *behind)
{
    return free_by(pool, block, call_plain_free, behind);
}

/* ---- late frees ---- */

/* If the driver has refused, the block counts as the program's again. The program has freed it, so
 * it is claimed once more. */
static bool is_rid_of(struct stream_block *block, CUdeviceptr address, CUresult result)
{
    return result == CUDA_SUCCESS || !stream_block_claim(block, address);
}

/* The program has waited for nothing: its earlier work may still be running. */
static bool free_unwaited(struct pool *pool, struct stream_block *block)
{
    struct fence_event behind;
    CUdeviceptr address = block_address(&block->block);
    if (stream_free_behind_all(pool, block, &behind)) {
        use_forget(pool, block);
        return true;
    }
    return behind.event &&
           is_rid_of(block, address, free_by(pool, block, call_free_behind, &behind));
}

bool stream_free_late(struct pool *pool, CUdeviceptr address, uint64_t generation)
{
    struct stream_block *block = stream_block_at(pool, address);
    /* The driver may have given out the address again. */
    if (!block || atomic_load_explicit(&block->generation, memory_order_relaxed) != generation)
        return true;
    if (block_is_part(&block->block)) {
        stream_part_free_late(pool, block);
        return true;
    }
    if (context_generation(block->context) == block->context_generation)
        return free_unwaited(pool, block);
    /* The block outlives its context, but no work of the context does. */
    return is_rid_of(block, address, stream_free_by_driver(pool, block, call_free_of_dead, NULL));
}
