#include "stream_ends.h"

#include "core/base/clock.h"
#include "core/contexts/capture.h"
#include "core/contexts/epoch.h"
#include "core/contexts/fence_event.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/contexts/return_stream.h"
#include "core/driver/calls.h"
#include "stream_choice.h"
#include "stream_events.h"
#include "stream_merge.h"
#include "stream_owner.h"
#include "stream_pending.h"
#include "stream_release.h"
#include "stream_shelf.h"
#include "stream_table.h"

/* ---- in each stream's order ---- */

/* Whether the stream belongs to the choice's context, has pending blocks, and can be named in this
 * thread. Sets *ref and *handle. */
static bool can_be_named(const struct choice *choice, struct stream *stream, struct stream_ref *ref,
                         CUstream *handle)
{
    lock_take(&stream->lock, LOCK_STREAM);
    *ref = (struct stream_ref){stream, stream->id};
    *handle = stream->handle;
    bool can = choice_is_of(choice, stream) && stream->pending.first && stream->id &&
               (!stream->thread || stream->thread == thread_state.id);
    lock_give(&stream->lock);
    return can;
}

static bool may_be_capturing(const struct pool *pool, CUstream handle)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return program_captures(&pool->captures) &&
           (!pool->driver->cuStreamIsCapturing ||
            pool->driver->cuStreamIsCapturing(handle, &status) != CUDA_SUCCESS ||
            status != CU_STREAM_CAPTURE_STATUS_NONE);
}

/* Releases each stream's pending blocks in the stream's own order, as the program freed them. Used
 * where no event can be recorded over all of the context's work. */
static void give_back_in_order(const struct choice *choice)
{
    struct pool *pool = choice->pool;
    bool pushed;
    struct relaxed_mode mode = enter_driver_relaxed(pool->driver);
    bool current = context_push(pool, choice->context, &pushed);
    for (unsigned i = 0; current && i < stream_count(streams_of(pool)); i++) {
        struct stream_ref ref;
        CUstream handle;
        if (can_be_named(choice, stream_at(streams_of(pool), i), &ref, &handle) &&
            !may_be_capturing(pool, handle))
            stream_release_at_the_end(pool, ref, handle);
    }
    if (current)
        context_pop(pool, pushed);
    leave_driver_relaxed(pool->driver, mode);
}

/* ---- after the context's work ---- */

/* Records an event on the context's legacy stream. It is ordered after the work of all blocking
 * streams of the context, even of those that nobody can name any more. */
static bool record_legacy(struct pool *pool, struct context *context, CUevent *event)
{
    const struct driver *driver = pool->driver;
    bool pushed, recorded = false;
    if (program_captures(&pool->captures) || !context_push(pool, context, &pushed))
        return false;
    if (driver->cuEventCreate(event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS) {
        recorded = driver->cuEventRecord(*event, CU_STREAM_LEGACY) == CUDA_SUCCESS;
        if (!recorded)
            driver->cuEventDestroy_v2(*event);
    }
    context_pop(pool, pushed);
    return recorded;
}

/* An event on the legacy stream has completed, and with it the work of the context's blocking
 * streams alone. Without fences the record of plain frees keeps nothing, so it may be raised, too.
 */
static void note_blocking_are_done(struct pool *pool, const struct context *context, uint64_t stamp)
{
    for (unsigned i = 0; i < stream_count(streams_of(pool)); i++) {
        struct stream *stream = stream_at(streams_of(pool), i);
        lock_take(&stream->lock, LOCK_STREAM);
        if (stream->context == context && stream->ordered_by_others)
            stream_done_raise(stream, stamp);
        lock_give(&stream->lock);
    }
}

/* For a driver without cuCtxRecordEvent, where the context is about to end: waits for its blocking
 * streams. The driver would wait for the context's work too, but not if the context does not end
 * after all. */
static void wait_for_blocking(struct pool *pool, struct context *context)
{
    CUevent event;
    uint64_t stamp = epoch_close(context), started = monotonic_now();
    enter_driver();
    bool recorded = record_legacy(pool, context, &event);
    leave_driver();
    if (!recorded)
        return;
    CUresult result;
    while ((result = event_query_relaxed(pool, event)) == CUDA_ERROR_NOT_READY &&
           monotonic_now() - started < CONTEXT_END_WAIT_NANOSECONDS)
        patient_nap(started);
    if (result == CUDA_SUCCESS)
        note_blocking_are_done(pool, context, stamp);
    enter_driver();
    pool->driver->cuEventDestroy_v2(event);
    leave_driver();
}

/* Releases what is pending, and segments, behind an event after all of the context's work. False:
 * none can be recorded. Parts are taken first, since the event stands for no free after it. */
static bool release_behind_all(struct choice *choice, enum eviction reason)
{
    struct pool *pool = choice->pool;
    struct context *context = choice->context;
    struct merge_parts parts = {0, 0, NULL};
    CUevent after;
    if (!choice->mempool)
        parts = stream_merge_take_waiting(pool, context);
    enter_driver();
    bool recorded = stream_pending_record_context(pool, context, &after);
    leave_driver();
    if (!recorded) {
        stream_merge_put_back(pool, &parts);
        return false;
    }
    choice->pending_too = true;
    stream_give_back(choice, UINT64_MAX, reason, &after, RELEASE_IN_ALLOCATION);
    struct block *segments = stream_merge_collect_segments(pool, &parts);
    stream_release_chain(pool, context, segments, reason, &after);
    enter_driver();
    pool->driver->cuEventDestroy_v2(after);
    leave_driver();
    return true;
}

/* Releases the context's free blocks of the memory pool, ordered after the context's work so far.
 * mempool NULL: the context itself ends. Then segments go too, and the function may wait, since the
 * driver waits for the context's work next. */
static void release_all(struct pool *pool, struct context *context, const struct mempool *mempool,
                        enum eviction reason)
{
    struct choice choice = {.pool = pool,
                            .context = context,
                            .generation = context_generation(context),
                            .mempool = mempool,
                            .older_than = UINT64_MAX};
    stream_pending_query(pool, context->device);
    if (!mempool)
        stream_merge_all(pool, context->device, context);
    stream_give_back(&choice, UINT64_MAX, reason, NULL, RELEASE_IN_ALLOCATION);
    bool waits = !mempool && stream_merge_has_waiting(streams_of(pool), context->device);
    if (!waits && !stream_pending_newest(pool, context))
        return;
    if (release_behind_all(&choice, reason))
        return;
    /* If only a memory pool ends, its pending blocks are released once they are clean. */
    if (mempool)
        return;
    give_back_in_order(&choice);
    if (!pool->driver->cuCtxRecordEvent && stream_pending_newest(pool, context)) {
        wait_for_blocking(pool, context);
        stream_merge_all(pool, context->device, context);
        stream_give_back(&choice, UINT64_MAX, reason, NULL, RELEASE_IN_ALLOCATION);
    }
}

void stream_ends_mempool(struct pool *pool, const struct mempool *mempool, uint64_t bytes, bool all)
{
    struct context *c = context_next(pool, NULL, mempool->device);
    stream_pending_query(pool, mempool->device);
    for (; c; c = context_next(pool, c, mempool->device)) {
        struct choice choice = choice_any(pool);
        choice.mempool = mempool;
        if (!all)
            stream_release_in(pool, c, choice, bytes, EVICTION_MEMORY, RELEASE_IN_FREE);
        else if (context_pin(c, context_generation(c))) {
            release_all(pool, c, mempool, EVICTION_MEMORY);
            context_unpin(c);
        }
    }
}

/* During captures no event can be recorded. So blocks are released in their streams' order where
 * possible. For the others, the fences that exist are waited for, as the context's end would. */
void stream_ends_before(struct pool *pool, struct context *context)
{
    struct choice choice = {
        .pool = pool, .context = context, .generation = context_generation(context)};
    if (!program_captures(&pool->captures))
        return;
    give_back_in_order(&choice);
    uint64_t newest = stream_pending_newest(pool, context);
    stream_pending_wait_for(pool, context, newest, monotonic_now() + CONTEXT_END_WAIT_NANOSECONDS);
    stream_pending_apply(pool, context);
}

void stream_ends_context(struct pool *pool, struct context *context)
{
    release_all(pool, context, NULL, EVICTION_MEMORY);
}

/* ---- after the context's end ---- */

void stream_ends_forget(struct pool *pool, struct context *context)
{
    struct streams *streams = streams_of(pool);
    for (unsigned i = 0; i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        struct block *chain = NULL;
        lock_take(&stream->lock, LOCK_STREAM);
        for (struct block *found; (found = choice_find_any(stream, context)) != NULL;) {
            choice_detach(pool, stream, found);
            counter_add(&found->bucket->counters->evictions[EVICTION_CONTEXT], 1);
            found->links[LINK_HEAP].next = chain;
            chain = found;
        }
        lock_give(&stream->lock);
        for (struct block *next; chain; chain = next) {
            next = chain->links[LINK_HEAP].next;
            stream_block_recycle(pool, stream_block_of(chain));
            stream_block_has_a_place(stream);
        }
    }
    /* The work that parts waited for has ended with the context. */
    stream_merge_all(pool, context->device, context);
}
