#include "stream_part_free.h"

#include <stdlib.h>

#include "core/contexts/capture.h"
#include "core/contexts/context.h"
#include "core/contexts/epoch.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"
#include "core/housekeeper/housekeeper.h"
#include "core/reclaim/room.h"
#include "mempool_list.h"
#include "stream_events.h"
#include "stream_merge.h"
#include "stream_order.h"
#include "stream_parts.h"
#include "stream_pending.h"
#include "stream_reserve.h"
#include "stream_table.h"
#include "use.h"

/* What a free in the stream's order has done. */
struct outcome {
    bool done; /* false: the part is still claimed, and counts as live */
    enum merged merged;
    struct stream_block *whole; /* the segment; NULL if merged is MERGED_PART */
};

static CUresult give_to_program(struct stream_block *part, CUresult result)
{
    atomic_store_explicit(&part->held_at, block_address(&part->block), memory_order_release);
    return result;
}

/* Counts the free of a claimed part, which is then counted nowhere. Lock of its stream held. */
static void count_free(struct stream_block *part)
{
    struct shelf *shelf = shelf_of(part);
    lock_must_be_held(&shelf->stream->lock);
    counter_add(&part->block.bucket->counters->frees, 1);
    shelf_count_not_live(shelf, part);
    shelf_count_out(shelf, part->block.bucket, part);
    shelf_follow_fall(shelf);
}

static void leave_shelf(struct stream_block *part)
{
    struct stream *stream = shelf_of(part)->stream;
    lock_take(&stream->lock, LOCK_STREAM);
    count_free(part);
    lock_give(&stream->lock);
    block_set_state(&part->block, BLOCK_LEAVING);
}

/* The part is over once its context's epoch of this stamp is clean. */
static void wait_for_stamp(struct pool *pool, struct stream_block *part, uint64_t stamp)
{
    leave_shelf(part);
    counter_set(&part->block.epoch, stamp);
    stream_merge_after(pool, part, NULL);
}

/* ---- in a stream's order ---- */

/* Whether the stream is in the part's context, and keeps blocks now. A part has no other place, so
 * neither caps nor the end of its memory pool matter. */
static bool may_wait(const struct stream *stream, const struct stream_block *part)
{
    lock_must_be_held(&stream->lock);
    return part->context == stream->context && part->context_generation == stream->generation &&
           shelf_is_usable(stream->context);
}

/* Whether this is the stream of the part's segment, whose order is enough for a free with this
 * stamp. */
static bool is_ordered_at_home(const struct stream *stream, const struct stream_block *part,
                               uint64_t stamp)
{
    lock_must_be_held(&stream->lock);
    const struct shelf *home = stream_part_shelf(part);
    bool ordered = stream->own_order || (!shelf_launches_early(stream) &&
                                         (stamp <= stream->marked || !stream->ordered_by_others));
    return home && home->stream == stream && ordered;
}

static struct outcome free_at_home(struct stream *stream, struct stream_block *part, uint64_t stamp)
{
    lock_must_be_held(&stream->lock);
    struct outcome outcome = {.done = true};
    count_free(part);
    outcome.merged = stream_parts_merge(shelf_of(part), part, stamp, true, &outcome.whole);
    shelf_set_unchecked(stream);
    return outcome;
}

/* What the free must put there. Elsewhere than at home only a fence shows when the part is over. */
static struct stream_free_event due_of(const struct pool *pool, struct stream *stream,
                                       const struct stream_block *part)
{
    lock_must_be_held(&stream->lock);
    const struct shelf *home = stream_part_shelf(part);
    if (home && home->stream == stream && !shelf_launches_early(stream))
        return stream_free_event_due(pool, stream, part);
    return (struct stream_free_event){.fence = true, .operation = stream->ordered_by_others};
}

/* A free that puts something into the stream or its context. */
static struct outcome free_slowly(struct pool *pool, struct stream_block *part,
                                  struct stream_ref ref, CUstream handle,
                                  struct stream_free_event due)
{
    struct stream *stream = ref.stream;
    struct outcome outcome = {.done = false};
    uint64_t stamp;
    bool may = stream_free_event_record(pool, ref, handle, due, &stamp);
    lock_take(&stream->lock, LOCK_STREAM);
    bool stays = may && stream_is(ref) && may_wait(stream, part) &&
                 (!due.operation || !stream_pending_capture_is_coming(pool));
    uint64_t stamp_of_part = stamp ? stamp : shelf_stamp(stream);
    if (stays && due.operation)
        shelf_raise_marked(stream, stamp_of_part);
    bool waits = stays && !is_ordered_at_home(stream, part, stamp_of_part);
    if (stays && !waits)
        outcome = free_at_home(stream, part, stamp_of_part);
    stream_done_apply(stream);
    shelf_set_unchecked(stream);
    if (due.event && (!stamp || stream->covered < stamp))
        shelf_put_off_check(stream);
    struct context *context = outcome.done && due.event ? stream->context : NULL;
    lock_give(&stream->lock);
    if (context)
        room_look_again(pool, context);
    outcome.done |= waits && pool->driver->cuCtxRecordEvent;
    if (waits && outcome.done)
        wait_for_stamp(pool, part, stamp_of_part);
    return outcome;
}

/* Ends a free that is done, with no lock held: a segment may have to go, and memory to be looked
 * at. */
static void finish(struct pool *pool, struct stream_ref ref, CUstream handle, bool look,
                   uint64_t bytes, const struct outcome *outcome)
{
    if (outcome->merged == MERGED_LEAVES)
        stream_merge_release_segment(pool, outcome->whole, &handle);
    if (outcome->merged == MERGED_WHOLE)
        stream_reserve_keep_inside_caps(pool, ref, handle);
    if (look)
        stream_reserve_look(pool, ref.stream, bytes);
    else
        housekeeper_look(pool, bytes);
}

bool stream_part_free_in_order(struct pool *pool, struct stream_block *part, struct stream_ref ref,
                               CUstream handle)
{
    struct stream *stream = ref.stream;
    struct outcome outcome = {.done = false};
    uint64_t bytes = part->block.bytes;
    lock_take(&stream->lock, LOCK_STREAM);
    if (!stream_is(ref) || !may_wait(stream, part)) {
        lock_give(&stream->lock);
        return false;
    }
    struct stream_free_event due = due_of(pool, stream, part);
    bool look = shelf_look_is_due(stream);
    if (!due.fence && !due.event && !due.operation)
        outcome = free_at_home(stream, part, shelf_stamp(stream));
    else
        stream_block_is_detached(stream);
    lock_give(&stream->lock);
    if (!outcome.done) {
        outcome = free_slowly(pool, part, ref, handle, due);
        stream_block_has_a_place(stream);
    }
    if (outcome.done)
        finish(pool, ref, handle, look, bytes, &outcome);
    return outcome.done;
}

/* ---- frees that wait for an event of their own ---- */

/* Makes an event in the current context, records it on the stream, and makes the stream wait for
 * it. NULL where that fails. */
static CUevent record_here(const struct pool *pool, CUstream handle)
{
    const struct driver *driver = pool->driver;
    CUevent event = NULL;
    if (driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return NULL;
    /* The wait is the operation that others see on the stream, in place of the driver's free. */
    if (driver->cuEventRecord(event, handle) == CUDA_SUCCESS &&
        driver->cuStreamWaitEvent(handle, event, 0) == CUDA_SUCCESS &&
        !stream_may_be_captured(pool, handle))
        return event;
    driver->cuEventDestroy_v2(event);
    return NULL;
}

/* Records an event after the work of the stream that the handle means here; NULL where none can be
 * had. context: the stream's. NULL: it is not known, and the event is made in the current context.
 * That is right for a stream of the green context that is current. Handles that no cuStreamCreate
 * has made mean another stream in each context, so they are used in the current one. */
static struct fence_event *record_apart(struct pool *pool, struct context *context,
                                        struct context *current, CUstream handle)
{
    const struct driver *driver = pool->driver;
    struct fence_event *event = calloc(1, sizeof *event);
    struct context *owner = context ? context : current;
    bool pushed = false;
    /* No pin: it would fail while the context seems to end. The free would then wait for the
     * stream, whose work may wait for the program. Nobody makes calls in a context that does end.
     */
    if (!event || !owner) {
        free(event);
        return NULL;
    }
    event->context = owner;
    event->generation = context_generation(owner);
    struct relaxed_mode mode = enter_driver_relaxed(driver);
    if (!context || !stream_is_created(handle) || context_push(pool, context, &pushed)) {
        event->event = record_here(pool, handle);
        context_pop(pool, pushed);
    }
    leave_driver_relaxed(driver, mode);
    if (event->event)
        return event;
    free(event);
    return NULL;
}

static CUresult synchronise(struct pool *pool, CUstream handle)
{
    struct relaxed_mode mode = enter_driver_relaxed(pool->driver);
    CUresult result = pool->driver->cuStreamSynchronize(handle);
    leave_driver_relaxed(pool->driver, mode);
    return result;
}

/* Returns the memory pool to ask about: the part's, or the device's default pool if that has ended.
 * The driver must not be asked about an ended pool. */
static CUmemoryPool pool_to_ask(struct pool *pool, const struct stream_block *part)
{
    return mempool_is_open(part->mempool) ? mempool_handle(part->mempool)
                                          : mempool_default_of(pool, part->context->device);
}

/* Asks what the driver says of a free on this stream while captures are under way, which may forbid
 * it. The driver frees memory of its own for this, not the part. */
static CUresult ask_about_captures(struct pool *pool, const struct stream_block *part,
                                   CUstream handle)
{
    const struct driver *driver = pool->driver;
    CUdeviceptr address;
    if (!program_captures(&pool->captures))
        return CUDA_SUCCESS;
    CUmemoryPool asked = pool_to_ask(pool, part);
    enter_driver();
    CUresult result = driver->cuMemAllocFromPoolAsync(&address, 1, asked, handle);
    if (result == CUDA_SUCCESS)
        result = driver->cuMemFreeAsync(address, handle);
    else if (result == CUDA_ERROR_OUT_OF_MEMORY || result == CUDA_ERROR_INVALID_VALUE)
        result = CUDA_SUCCESS; /* this error concerns only the driver's own memory */
    leave_driver();
    return result;
}

CUresult stream_part_free_apart(struct pool *pool, struct stream_block *part, CUstream handle)
{
    bool green;
    struct context *current = context_current(pool, &green);
    struct context *context = current ? stream_context_of(pool, handle, current) : NULL;
    CUresult result = ask_about_captures(pool, part, handle);
    if (result != CUDA_SUCCESS)
        return give_to_program(part, result);
    struct fence_event *event = record_apart(pool, context, current, handle);
    /* For a context that seems to end, the handle's context is not known. The driver accepts a
     * created stream in no other context than its own. */
    if (!event && context != part->context && stream_is_created(handle) &&
        context_generation(part->context) == part->context_generation)
        event = record_apart(pool, part->context, NULL, handle);
    /* A capture has begun meanwhile, which a synchronise would end. */
    if (!event && stream_may_be_captured(pool, handle))
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    else if (!event)
        result = synchronise(pool, handle);
    if (result != CUDA_SUCCESS)
        return give_to_program(part, result);
    uint64_t bytes = part->block.bytes;
    leave_shelf(part);
    if (event)
        stream_merge_after(pool, part, event);
    else
        stream_merge_part(pool, part);
    housekeeper_look(pool, bytes);
    return CUDA_SUCCESS;
}

/* ---- frees by cuMemFree ---- */

/* Whether the driver allows cuMemFree now; a capture may forbid it. The address lies inside a block
 * of the driver's. So otherwise the driver only says that no block begins there. */
static CUresult ask_about_plain_free(struct pool *pool, const struct stream_block *part)
{
    if (!program_captures(&pool->captures))
        return CUDA_SUCCESS;
    enter_driver();
    CUresult result = pool->driver->cuMemFree_v2(block_address(&part->block));
    leave_driver();
    return result == CUDA_ERROR_INVALID_VALUE ? CUDA_SUCCESS : result;
}

/* Returns the stamp of a free that happens now. A fence of the part's context is recorded after it,
 * if one can be had. */
static uint64_t stamp_with_fence(struct pool *pool, const struct stream_block *part)
{
    struct context *context = part->context;
    uint64_t stamp = 0;
    if (context_pin(context, part->context_generation)) {
        stamp = epoch_close_in_order(pool, context, true);
        context_unpin(context);
    }
    return stamp ? stamp : epoch_current(&context->epochs);
}

void stream_part_free_late(struct pool *pool, struct stream_block *part)
{
    uint64_t bytes = part->block.bytes;
    bool lives = context_generation(part->context) == part->context_generation;
    uint64_t stamp = lives ? stamp_with_fence(pool, part) : 0;
    use_forget(pool, part);
    if (lives) {
        wait_for_stamp(pool, part, stamp);
    } else {
        leave_shelf(part);
        stream_merge_part(pool, part);
    }
    housekeeper_look(pool, bytes);
}

CUresult stream_part_free_plainly(struct pool *pool, struct stream_block *part)
{
    CUresult result = ask_about_plain_free(pool, part);
    if (result != CUDA_SUCCESS)
        return give_to_program(part, result);
    stream_part_free_late(pool, part);
    return CUDA_SUCCESS;
}
