#include "stream_pending.h"

#include "core/base/clock.h"
#include "core/base/numbers.h"
#include "core/contexts/capture.h"
#include "core/contexts/epoch.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"
#include "stream_events.h"
#include "stream_merge.h"
#include "stream_release.h"
#include "stream_sums.h"

/* ---- by asking ---- */

/* Notes that nobody's stream is idle. */
static void apply(struct streams *streams, struct stream *stream, const struct context *context)
{
    lock_take(&stream->lock, LOCK_STREAM);
    if (!context || stream->context == context)
        stream_done_apply(stream);
    if (!stream->id && !stream_seems_unclean(stream) &&
        atomic_load_explicit(&stream->detached, memory_order_acquire) == 0)
        streams_note_idle(streams, stream);
    lock_give(&stream->lock);
}

/* Skips a stream with nothing pending: of many streams, few have been used since the last call. */
void stream_pending_apply(struct pool *pool, const struct context *context)
{
    struct streams *streams = streams_of(pool);
    for (unsigned i = 0; i < STREAMS_MAX / 64; i++) {
        uint64_t bits = atomic_load_explicit(&streams->busy[i], memory_order_relaxed);
        for (; bits; bits &= bits - 1) {
            struct stream *stream = stream_at(streams, i * 64 + (unsigned)__builtin_ctzll(bits));
            if (stream_seems_unclean(stream) || !stream_id(streams, stream))
                apply(streams, stream, context);
        }
    }
}

static bool is_anything_unclean(const struct streams *streams, const struct device *device)
{
    bool any = false;
    for (unsigned i = 0; streams && i < stream_count(streams) && !any; i++) {
        const struct stream *stream = stream_at(streams, i);
        any = (!device || stream->device == device) && stream_seems_unclean(stream);
    }
    return any;
}

static void ask_about_events(struct pool *pool, const struct device *device)
{
    struct streams *streams = streams_of(pool);
    for (unsigned i = 0; i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        if ((!device || stream->device == device) && stream_seems_unclean(stream))
            stream_events_ask_all(pool, stream);
    }
}

/* Fences first: they tell of all streams. */
static void ask_all(struct pool *pool, const struct device *device)
{
    struct context *c = context_next(pool, NULL, changeable(device));
    for (; c; c = context_next(pool, c, changeable(device)))
        epoch_ask_all_in_order(pool, c);
    stream_pending_apply(pool, NULL);
    ask_about_events(pool, device);
}

void stream_pending_query(struct pool *pool, const struct device *device)
{
    if (is_anything_unclean(streams_of(pool), device))
        ask_all(pool, device);
    stream_merge_all(pool, device, NULL);
}

void stream_pending_query_once(struct pool *pool, const struct device *device)
{
    struct context *c = context_next(pool, NULL, changeable(device));
    for (; c; c = context_next(pool, c, changeable(device)))
        epoch_ask_in_order(pool, c, epoch_own_clean(&c->epochs) + 1);
    stream_pending_apply(pool, NULL);
}

uint64_t stream_pending_newest(struct pool *pool, const struct context *context)
{
    struct streams *streams = streams_of(pool);
    uint64_t newest = 0;
    for (unsigned i = 0; i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        lock_take(&stream->lock, LOCK_STREAM);
        stream_done_apply(stream);
        if (stream->context == context)
            newest = larger_of(newest, stream_newest_unclean(stream));
        lock_give(&stream->lock);
    }
    return newest;
}

/* ---- fences ---- */

void stream_pending_fence(struct pool *pool, struct context *context)
{
    uint64_t newest = stream_pending_newest(pool, context);
    if (newest)
        epoch_fence_in_order(pool, context, newest);
}

void stream_pending_fence_device(struct pool *pool, const struct device *device)
{
    struct context *c = context_next(pool, NULL, changeable(device));
    for (; c; c = context_next(pool, c, changeable(device)))
        stream_pending_fence(pool, c);
}

void stream_pending_capture_comes(struct pool *pool)
{
    atomic_fetch_add_explicit(&streams_of(pool)->captures_coming, 1, memory_order_relaxed);
    stream_pending_fence_device(pool, NULL);
}

void stream_pending_capture_has_come(struct pool *pool)
{
    atomic_fetch_sub_explicit(&streams_of(pool)->captures_coming, 1, memory_order_relaxed);
}

bool stream_pending_capture_is_coming(const struct pool *pool)
{
    lock_of_rank_must_be_held(LOCK_STREAM);
    /* Relaxed: the stream's lock orders it. A thread that left a block pending without having seen
     * captures_coming did so before stream_pending_capture_comes looked at the stream. */
    return atomic_load_explicit(&streams_of(pool)->captures_coming, memory_order_relaxed) ||
           program_captures(&pool->captures);
}

/* ---- by waiting ---- */

static bool has_events(struct stream *stream)
{
    lock_take(&stream->lock, LOCK_STREAM);
    bool has = stream_events_may_tell(stream);
    lock_give(&stream->lock);
    return has;
}

/* Whether a fence or an event may still tell of something. */
static bool may_learn(struct pool *pool, const struct device *device)
{
    struct streams *streams = streams_of(pool);
    bool may = false;
    struct context *c = context_next(pool, NULL, changeable(device));
    for (; c && !may; c = context_next(pool, c, changeable(device)))
        may = epoch_may_learn_in_order(c);
    for (unsigned i = 0; i < stream_count(streams) && !may; i++) {
        struct stream *stream = stream_at(streams, i);
        may = (!device || stream->device == device) && has_events(stream);
    }
    return may;
}

void stream_pending_wait_until(struct pool *pool, const struct device *device, uint64_t give_up_at)
{
    struct streams *streams = streams_of(pool);
    if (!is_anything_unclean(streams, device))
        return;
    uint64_t started = monotonic_now(), cached = stream_sum(pool, device).cached;
    stream_pending_fence_device(pool, device);
    while ((may_learn(pool, device) || stream_merge_has_waiting(streams, device)) &&
           monotonic_now() < give_up_at) {
        stream_pending_query(pool, device);
        if (stream_sum(pool, device).cached > cached || !is_anything_unclean(streams, device))
            break;
        patient_nap(started);
    }
    thread_state.waited_ns += monotonic_now() - started;
}

void stream_pending_wait_for(struct pool *pool, struct context *context, uint64_t stamp,
                             uint64_t give_up_at)
{
    uint64_t started = monotonic_now();
    const struct epochs *epochs = &context->epochs;
    while (epoch_own_clean(epochs) < stamp && epoch_may_learn_in_order(context) &&
           context_is_usable(context) && !atomic_load(&context->dying) &&
           monotonic_now() < give_up_at) {
        epoch_ask_all_in_order(pool, context);
        patient_nap(started);
    }
}

/* ---- one event for all of a context's work ---- */

bool stream_pending_record_context(struct pool *pool, struct context *context, CUevent *event)
{
    const struct driver *driver = pool->driver;
    bool pushed, recorded = false;
    if (!driver->cuCtxRecordEvent || !context_push(pool, context, &pushed))
        return false;
    if (driver->cuEventCreate(event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS) {
        lock_take(&pool->fence_lock, LOCK_FENCE);
        recorded = !program_captures(&pool->captures) &&
                   driver->cuCtxRecordEvent(context->handle, *event) == CUDA_SUCCESS;
        lock_give(&pool->fence_lock);
        if (!recorded)
            driver->cuEventDestroy_v2(*event);
    }
    context_pop(pool, pushed);
    return recorded;
}
