#include "stream_part_free.h"

#include <stdlib.h>

#include "core/contexts/capture.h"
#include "core/contexts/context.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"
#include "core/housekeeper/housekeeper.h"
#include "core/reclaim/room.h"
#include "mempool_list.h"
#include "own_event_record.h"
#include "own_events.h"
#include "stream_aside.h"
#include "stream_find.h"
#include "stream_hands.h"
#include "stream_parts.h"
#include "stream_put.h"
#include "stream_reserve.h"
#include "use.h"

/* What came of a free. */
struct outcome {
    bool done;
    enum merged merged;
    struct stream_block *whole;
};

/* ---- in a stream's order ---- */

/* Whether the stream's order tells at once that the part is spare: it is its own stream's. */
static bool is_at_home(const struct stream *stream, const struct stream_block *part, uint64_t stamp)
{
    lock_must_be_held(&stream->lock);
    const struct shelf *home = stream_part_home(part);
    bool ordered = stream->own_order || (!shelf_launches_early(stream) &&
                                         (stamp <= stream->marked || !stream->ordered_by_others));
    return home && home->stream == stream && ordered;
}

/* The part is counted nowhere. False where it cannot lie on the stream. */
static bool put(struct pool *pool, struct stream *stream, struct stream_block *part,
                struct own_event *event, uint64_t stamp, struct outcome *outcome)
{
    lock_must_be_held(&stream->lock);
    if (is_at_home(stream, part, stamp)) {
        struct shelf *home = stream_part_home(part);
        counter_add(&part->block.bucket->counters->frees, 1);
        outcome->merged = stream_parts_merge(home, part, stamp, true, &outcome->whole);
        return true;
    }
    struct shelf *shelf = shelf_get(pool, stream, part->mempool);
    struct bucket *bucket = shelf ? shelf_get_bucket(pool, shelf, part->block.bytes) : NULL;
    if (bucket)
        stream_put_on_shelf(pool, shelf, bucket, part, true, event, stamp);
    return bucket;
}

/* The free puts something into the stream, or the part is not at home there. The stamp is taken. */
static struct outcome free_slowly(struct pool *pool, struct stream_block *part,
                                  struct stream_ref ref, CUstream handle, uint64_t stamp,
                                  struct stream_put due)
{
    struct stream *stream = ref.stream;
    struct outcome outcome = {false, MERGED_PART, NULL};
    struct own_event *event;
    bool may = stream_put_in_free(pool, ref, handle, stamp, due, &event);
    stream_block_leave_shelf(part);
    lock_take(&stream->lock, LOCK_STREAM);
    bool stays = may && stream_is(ref) && shelf_may_keep_part(stream, part) &&
                 (event || !due.marker || !own_events_capture_is_coming(pool));
    outcome.done = stays && put(pool, stream, part, event, stamp, &outcome);
    if (event)
        own_event_drop(stream, event);
    own_events_settle(stream);
    shelf_set_unchecked(stream);
    if (due.event && !event && !due.marker)
        shelf_put_off_check(stream);
    struct context *context = outcome.done && due.event ? stream->context : NULL;
    lock_give(&stream->lock);
    if (context)
        room_look_again(pool, context);
    if (!outcome.done)
        stream_block_return_to_shelf(part);
    return outcome;
}

/* Lock held, and nothing has to be put into the stream. */
static bool free_at_home(struct stream *stream, struct stream_block *part, struct outcome *outcome)
{
    struct shelf *shelf = shelf_of(part);
    lock_must_be_held(&stream->lock);
    if (!stream->own_order || stream_part_home(part) != shelf || shelf->stream != stream)
        return false;
    counter_add(&part->block.bucket->counters->frees, 1);
    shelf_count_not_live(shelf, part);
    shelf_count_out(shelf, part->block.bucket, part);
    shelf_follow_fall(shelf);
    outcome->merged =
        stream_parts_merge(shelf, part, shelf_next_stamp(stream), true, &outcome->whole);
    shelf_set_unchecked(stream);
    return true;
}

/* No lock held. */
static void finish(struct pool *pool, struct stream_ref ref, CUstream handle, bool look,
                   uint64_t bytes, const struct outcome *outcome)
{
    if (outcome->merged == MERGED_LEAVES)
        stream_aside_give(pool, outcome->whole, &handle);
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
    struct outcome outcome = {false, MERGED_PART, NULL};
    uint64_t bytes = part->block.bytes, stamp = 0;
    lock_take(&stream->lock, LOCK_STREAM);
    if (!stream_is(ref) || !shelf_may_keep_part(stream, part)) {
        lock_give(&stream->lock);
        return false;
    }
    struct stream_put due = stream_put_due(pool, stream, part);
    bool look = shelf_look_is_due(stream);
    outcome.done = !due.event && !due.marker && free_at_home(stream, part, &outcome);
    if (!outcome.done) {
        stamp = shelf_next_stamp(stream);
        stream_block_is_detached(stream);
    }
    lock_give(&stream->lock);
    if (!outcome.done) {
        outcome = free_slowly(pool, part, ref, handle, stamp, due);
        stream_block_has_a_place(stream);
    }
    if (outcome.done)
        finish(pool, ref, handle, look, bytes, &outcome);
    return outcome.done;
}

/* ---- behind an event of its own ---- */

/* In the current context; NULL where it can't be. */
static CUevent record_here(const struct driver *driver, CUstream handle)
{
    CUevent event = NULL;
    if (driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return NULL;
    if (driver->cuEventRecord(event, handle) == CUDA_SUCCESS)
        return event;
    driver->cuEventDestroy_v2(event);
    return NULL;
}

/* Behind the work of the stream that the handle means here; NULL where none can be had. context:
 * the stream's, or NULL: the event is made in what is current, for a stream of the current green
 * context's own. */
static struct own_event *record_apart(struct pool *pool, struct context *context,
                                      struct context *current, CUstream handle)
{
    const struct driver *driver = pool->driver;
    struct own_event *event = calloc(1, sizeof *event);
    struct context *owner = context ? context : current;
    bool pushed = false;
    /* Not pinned: where the context only seems to end the free must not wait for its work, which
     * may wait for the program; and in one that ends nobody calls. */
    if (!event || !owner) {
        free(event);
        return NULL;
    }
    event->context = owner;
    event->generation = context_generation(owner);
    enter_driver();
    struct relaxed_mode mode = relaxed_mode_begin(driver);
    if (!context || context_push(pool, context, &pushed)) {
        event->event = record_here(driver, handle);
        context_pop(pool, pushed);
    }
    relaxed_mode_end(driver, mode);
    leave_driver();
    if (event->event)
        return event;
    free(event);
    return NULL;
}

static CUresult synchronise(struct pool *pool, CUstream handle)
{
    enter_driver();
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    CUresult result = pool->driver->cuStreamSynchronize(handle);
    relaxed_mode_end(pool->driver, mode);
    leave_driver();
    return result;
}

static CUresult give_to_program(struct stream_block *part, CUresult result)
{
    atomic_store_explicit(&part->held_at, block_address(&part->block), memory_order_release);
    return result;
}

/* A claimed part is counted as free, and no more. */
static void leave_shelf(struct stream_block *part)
{
    struct stream *stream = shelf_of(part)->stream;
    lock_take(&stream->lock, LOCK_STREAM);
    counter_add(&part->block.bucket->counters->frees, 1);
    lock_give(&stream->lock);
    stream_block_leave_shelf(part);
    block_set_state(&part->block, BLOCK_LEAVING);
}

/* Of a memory pool that has ended the driver must not be asked: the device's own does as well. */
static CUmemoryPool pool_to_ask(struct pool *pool, const struct stream_block *part)
{
    return mempool_is_open(part->mempool) ? mempool_handle(part->mempool)
                                          : mempool_default_of(pool, part->context->device);
}

/* What the driver says of a free on that stream while captures go on, which may mind: it is given
 * memory of its own in the part's place. */
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
        result = CUDA_SUCCESS; /* it would say so of that memory alone */
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
    struct own_event *event = record_apart(pool, context, current, handle);
    /* Of one that seems to end it is not told which it is; the driver takes a created stream for
     * none of another context's. */
    if (!event && context != part->context && stream_is_created(handle))
        event = record_apart(pool, part->context, NULL, handle);
    if (!event)
        result = synchronise(pool, handle);
    if (result != CUDA_SUCCESS)
        return give_to_program(part, result);
    uint64_t bytes = part->block.bytes;
    leave_shelf(part);
    if (event)
        stream_aside_wait(pool, part, event);
    else
        stream_aside_take_home(pool, part);
    housekeeper_look(pool, bytes);
    return CUDA_SUCCESS;
}

/* ---- plainly ---- */

/* Until the context ends: nothing else can tell. */
static CUresult wait_for_its_context(struct pool *pool, struct stream_block *part)
{
    struct own_event *event = calloc(1, sizeof *event);
    if (!event)
        return give_to_program(part, CUDA_ERROR_OUT_OF_MEMORY);
    event->context = part->context;
    event->generation = part->context_generation;
    leave_shelf(part);
    stream_aside_wait(pool, part, event);
    return CUDA_SUCCESS;
}

CUresult stream_part_may_be_freed(struct pool *pool, struct stream_block *part)
{
    if (!program_captures(&pool->captures))
        return CUDA_SUCCESS;
    /* Of an address inside a block of its own the driver says no more than that it is none. */
    enter_driver();
    CUresult result = pool->driver->cuMemFree_v2(block_address(&part->block));
    leave_driver();
    return result == CUDA_ERROR_INVALID_VALUE ? CUDA_SUCCESS : give_to_program(part, result);
}

CUresult stream_part_free_unknown(struct pool *pool, struct stream_block *part)
{
    use_forget(pool, part);
    if (context_generation(part->context) == part->context_generation)
        return wait_for_its_context(pool, part);
    stream_part_free_of_dead(pool, part);
    return CUDA_SUCCESS;
}

void stream_part_free_of_dead(struct pool *pool, struct stream_block *part)
{
    use_forget(pool, part);
    leave_shelf(part);
    stream_aside_take_home(pool, part);
}
