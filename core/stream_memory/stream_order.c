#include "stream_order.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/mutation.h"
#include "core/contexts/pool_state.h"
#include "core/driver/calls.h"
#include "stream_find.h"
#include "stream_heap.h"
#include "stream_shelf.h"

/* With so many events outstanding, one of the older ones is asked about before another is recorded:
 * what it finds over serves again. */
#define OWN_EVENTS_TO_ASK (OWN_EVENTS_MAX / 2)
#define OWN_EVENTS_ASKED  (OWN_EVENTS_MAX / 4)

/* An event that was not over is not asked about again for so long at first, and at most. */
#define VAIN_NANOSECONDS_MIN UINT64_C(1000)
#define VAIN_NANOSECONDS_MAX UINT64_C(1000000)

/* Streams share the growth budget as if they were no fewer than this. */
#define FEW_STREAMS 16u

/* And their share of the device as if they were no fewer than this. */
#define VERY_FEW_STREAMS 4u

/* The share of a device's memory that they share at most. */
#define UNKNOWN_SHARE 64u

/* ---- what is over ---- */

void order_complete(struct stream *stream, uint64_t stamp)
{
    uint64_t done = order_done(stream);
    while (done < stamp &&
           !atomic_compare_exchange_weak_explicit(&stream->done, &done, stamp, memory_order_relaxed,
                                                  memory_order_relaxed))
        continue;
}

static void put_spare(struct stream *stream, struct own_event *event)
{
    event->next = stream->spare;
    stream->spare = event;
}

static void retire_oldest(struct stream *stream)
{
    struct own_event *event = stream->oldest;
    stream->oldest = event->next;
    if (!stream->oldest)
        stream->newest = NULL;
    counter_subtract(&stream->outstanding, 1);
    event->over = true;
    if (event->users == 0)
        put_spare(stream, event);
}

void order_drop_user(struct stream *stream, struct own_event *event)
{
    event->users--;
    if (event->users == 0 && event->over)
        put_spare(stream, event);
}

void order_settle(struct stream *stream)
{
    uint64_t done = order_done(stream);
    while (stream->pending.first && counter_get(&stream->pending.first->epoch) <= done)
        stream_heap_make_clean(stream, stream_block_of(stream->pending.first));
    while (stream->oldest && stream->oldest->stamp <= done)
        retire_oldest(stream);
}

/* Lock held. The clock of work that comes after everything on the stream so far. */
static void copy_clock(const struct streams *streams, struct stream *stream,
                       struct order_mark *mark)
{
    unsigned count = stream_count(streams);
    mark->stream = stream;
    mark->context = stream->context;
    mark->stamp =
        atomic_load_explicit(&stream->stamp, memory_order_relaxed) + MUTATED(mark_covers_one_more);
    mark->count = count < STREAMS_ORDERED ? count : STREAMS_ORDERED;
    memcpy(mark->clock.after, stream->known.after, mark->count * sizeof mark->clock.after[0]);
    if (stream->index < mark->count)
        mark->clock.after[stream->index] = mark->stamp;
}

/* Lock held. The stamp up to which a wait for the stream tells that it is over. */
static uint64_t told_by_wait(const struct stream *stream)
{
    bool all = !stream->ordered_by_others || MUTATED(legacy_use_forgotten);
    return all ? atomic_load_explicit(&stream->stamp, memory_order_relaxed) : stream->joined;
}

/* Lock held. What the stream waits for by events of others, it waits for with no operation too. */
static void lower_to_what_a_wait_tells(struct order_mark *mark)
{
    uint64_t told = told_by_wait(mark->stream);
    if (mark->stamp <= told)
        return;
    mark->stamp = told;
    if (mark->stream->index < mark->count)
        mark->clock.after[mark->stream->index] = told;
}

static void take_mark(struct pool *pool, CUstream handle, struct order_mark *mark, bool of_wait)
{
    struct stream_ref ref = stream_find_beside_captures(pool, handle, false);
    mark->stream = NULL;
    mark->context = NULL;
    if (!ref.stream)
        return;
    short_lock_take(&ref.stream->lock);
    if (stream_is(ref)) {
        copy_clock(streams_of(pool), ref.stream, mark);
        if (of_wait)
            lower_to_what_a_wait_tells(mark);
    }
    short_lock_give(&ref.stream->lock);
}

void order_take_mark(struct pool *pool, CUstream handle, struct order_mark *mark)
{
    take_mark(pool, handle, mark, false);
}

void order_take_mark_of_wait(struct pool *pool, CUstream handle, struct order_mark *mark)
{
    take_mark(pool, handle, mark, true);
}

/* Lock held. */
static void raise_joined(struct stream *stream, uint64_t stamp)
{
    if (stream->joined < stamp)
        stream->joined = stamp;
}

static void clock_is_over(struct streams *streams, const struct order_clock *clock, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (clock->after[i])
            order_complete(stream_at(streams, i), clock->after[i]);
}

static void settle(struct stream *stream)
{
    short_lock_take(&stream->lock);
    order_settle(stream);
    short_lock_give(&stream->lock);
}

void order_mark_is_over(struct pool *pool, const struct order_mark *mark)
{
    if (!mark->stream)
        return;
    order_complete(mark->stream, mark->stamp);
    clock_is_over(streams_of(pool), &mark->clock, mark->count);
    settle(mark->stream);
}

/* ---- a whole context ---- */

struct order_marks {
    unsigned count;
    struct {
        struct stream *stream;
        uint64_t stamp;
    } marks[];
};

/* Lock not needed, and the answer may be a moment old: nothing on it waits to be known to be over.
 */
static bool seems_settled(const struct stream *stream)
{
    return counter_get(&stream->free_bytes) == counter_get(&stream->clean_bytes) &&
           counter_get(&stream->outstanding) == 0;
}

/* Of many streams only few may have been used since they were last looked at. */
static void take_stream(struct streams *streams, unsigned index, const struct context *context,
                        struct order_marks *taken, unsigned room)
{
    struct stream *stream = stream_at(streams, index);
    bool settled = seems_settled(stream);
    if (settled && stream_id(streams, stream))
        return;
    short_lock_take(&stream->lock);
    if (stream->context == context && taken->count < room) {
        taken->marks[taken->count].stream = stream;
        taken->marks[taken->count++].stamp =
            atomic_load_explicit(&stream->stamp, memory_order_relaxed);
    }
    if (!stream->id && seems_settled(stream) &&
        atomic_load_explicit(&stream->away, memory_order_acquire) == 0)
        streams_note_idle(streams, stream);
    short_lock_give(&stream->lock);
}

static unsigned count_busy(const struct streams *streams)
{
    unsigned count = 0;
    for (unsigned i = 0; i < STREAMS_MAX / 64; i++)
        count += (unsigned)__builtin_popcountll(
            atomic_load_explicit(&streams->busy[i], memory_order_relaxed));
    return count;
}

struct order_marks *order_take_context(struct pool *pool, const struct context *context)
{
    struct streams *streams = streams_of(pool);
    unsigned room = count_busy(streams);
    struct order_marks *taken = malloc(sizeof *taken + room * sizeof taken->marks[0]);
    if (!taken)
        return NULL;
    taken->count = 0;
    for (unsigned i = 0; i < STREAMS_MAX / 64; i++) {
        uint64_t bits = atomic_load_explicit(&streams->busy[i], memory_order_relaxed);
        for (; bits; bits &= bits - 1)
            take_stream(streams, i * 64 + (unsigned)__builtin_ctzll(bits), context, taken, room);
    }
    return taken;
}

void order_free_marks(struct order_marks *taken)
{
    free(taken);
}

void order_context_is_over(struct order_marks *taken)
{
    for (unsigned i = 0; i < taken->count; i++) {
        order_complete(taken->marks[i].stream, taken->marks[i].stamp);
        settle(taken->marks[i].stream);
    }
}

void order_blocking_are_over(struct order_marks *taken)
{
    for (unsigned i = 0; i < taken->count; i++) {
        struct stream *stream = taken->marks[i].stream;
        short_lock_take(&stream->lock);
        if (stream->ordered_by_others) {
            order_complete(stream, taken->marks[i].stamp);
            order_settle(stream);
        }
        short_lock_give(&stream->lock);
    }
}

/* ---- events of our own ---- */

/* Lock held. Of another owner of the record: for order_destroy_events. */
static void discard(struct stream *stream, struct own_event *event)
{
    event->next = stream->discarded;
    stream->discarded = event;
}

void order_take_discarded(struct stream *stream, struct own_event **chain)
{
    while (stream->discarded) {
        struct own_event *event = stream->discarded;
        stream->discarded = event->next;
        event->next = *chain;
        *chain = event;
    }
}

void order_destroy_events(struct pool *pool, struct own_event *events)
{
    for (struct own_event *next; events; events = next) {
        next = events->next;
        if (events->event && context_pin(events->context, events->generation)) {
            enter_driver();
            pool->driver->cuEventDestroy_v2(events->event);
            leave_driver();
            context_unpin(events->context);
        }
        free(events);
    }
}

void order_drop_events(struct stream *stream)
{
    if (stream->marker && stream->marker->users == 0)
        discard(stream, stream->marker);
    stream->marker = NULL;
    while (stream->oldest)
        retire_oldest(stream);
    while (stream->spare) {
        struct own_event *event = stream->spare;
        stream->spare = event->next;
        discard(stream, event);
    }
}

/* Lock held. What another context left behind goes. */
static struct own_event *take_spare(struct stream *stream)
{
    struct own_event *event;
    while ((event = stream->spare) != NULL) {
        stream->spare = event->next;
        if (event->context == stream->context && event->generation == stream->generation)
            return event;
        discard(stream, event);
    }
    return NULL;
}

/* The context that is current here is the stream's, unless the program names a stream of another
 * context. */
static struct own_event *make_event(struct pool *pool, struct context *context)
{
    struct own_event *event = calloc(1, sizeof *event);
    bool pushed;
    if (!event || !context_push(pool, context, &pushed)) {
        free(event);
        return NULL;
    }
    event->context = context;
    event->generation = context_generation(context);
    CUresult result = pool->driver->cuEventCreate(&event->event, CU_EVENT_DISABLE_TIMING);
    context_pop(pool, pushed);
    if (result == CUDA_SUCCESS)
        return event;
    free(event);
    return NULL;
}

/* Lock held. What is pending up to this stamp can be asked about from now on. */
static void cover(struct stream *stream, uint64_t stamp)
{
    uint64_t bytes = counter_get(&stream->free_bytes) - counter_get(&stream->clean_bytes);
    if (stamp <= stream->covered)
        return;
    for (const struct block *b = stream->pending.last; b && counter_get(&b->epoch) > stamp;
         b = b->links[LINK_HEAP].previous)
        bytes -= b->bytes;
    stream->covered = stamp;
    stream->covered_bytes = bytes;
}

/* Lock held. Other threads may have published later ones meanwhile. */
static void publish(struct stream *stream, struct own_event *event)
{
    cover(stream, event->stamp);
    struct own_event **link = &stream->oldest;
    while (*link && (*link)->stamp < event->stamp)
        link = &(*link)->next;
    event->next = *link;
    *link = event;
    if (!event->next)
        stream->newest = event;
    counter_add(&stream->outstanding, 1);
}

/* Lock held. What may be recorded again, or NULL: made is then to be one if there may be more. */
static struct own_event *begin_record(struct stream *stream, bool *make)
{
    struct own_event *event = NULL;
    order_settle(stream);
    *make = counter_get(&stream->outstanding) < OWN_EVENTS_MAX;
    if (*make)
        event = take_spare(stream);
    *make = *make && !event;
    return event;
}

typedef CUresult recorder(struct pool *pool, const struct own_event *event, CUstream handle);

static CUresult record_on_stream(struct pool *pool, const struct own_event *event, CUstream handle)
{
    CUresult result = pool->driver->cuEventRecord(event->event, handle);
    /* A capture that began meanwhile may have it: who waits for it becomes a part of that. */
    bool captured = stream_may_be_captured(pool, handle) && !MUTATED(captured_event_kept);
    return result == CUDA_SUCCESS && captured ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : result;
}

/* Whether a wait for the stream, or a query, tells of the blocking ones with nothing in it. */
static bool is_told_of_others(const struct context *context, CUstream handle)
{
    /* Acquire: pairs with the release store in streams_are_barred. */
    return (handle == NULL || handle == CU_STREAM_LEGACY) &&
           !atomic_load_explicit(&context->barred, memory_order_acquire);
}

/* What comes before a record in a stream that has no work of its own comes before the event, but
 * waits and queries of that stream do not see it. A wait for the event they do see. */
static CUresult record_operation(struct pool *pool, const struct own_event *event, CUstream handle)
{
    CUresult result = record_on_stream(pool, event, handle);
    if (result == CUDA_SUCCESS && !is_told_of_others(event->context, handle) &&
        !MUTATED(record_is_operation))
        result = pool->driver->cuStreamWaitEvent(handle, event->event, 0);
    return result;
}

/* The context is pinned. Under the fence lock, so that no capture begins meanwhile. */
static CUresult record_in_context(struct pool *pool, const struct own_event *event, CUstream unused)
{
    CUresult result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    (void)unused;
    pthread_mutex_lock(&pool->fence_lock);
    if (!program_captures(&pool->captures))
        result = pool->driver->cuCtxRecordEvent(event->context->handle, event->event);
    pthread_mutex_unlock(&pool->fence_lock);
    return result;
}

/* Makes the event first where a context is given. Whether it was recorded. */
static inline bool record_event(struct pool *pool, struct context *made_in,
                                struct own_event **event, CUstream handle, recorder *record)
{
    enter_driver();
    if (made_in)
        *event = make_event(pool, made_in);
    bool recorded = *event && record(pool, *event, handle) == CUDA_SUCCESS;
    leave_driver();
    return recorded;
}

static struct own_event *record_by(struct pool *pool, struct stream *stream, CUstream handle,
                                   uint64_t stamp, recorder *record)
{
    bool make;
    struct own_event *discarded = NULL;
    short_lock_take(&stream->lock);
    struct context *context = stream->context;
    struct own_event *event = begin_record(stream, &make);
    order_take_discarded(stream, &discarded);
    short_lock_give(&stream->lock);
    order_destroy_events(pool, discarded);
    bool recorded = record_event(pool, make ? context : NULL, &event, handle, record);
    if (!event)
        return NULL;
    short_lock_take(&stream->lock);
    event->stamp = stamp;
    event->users = 1;
    event->over = false;
    event->in_free = false;
    if (recorded) {
        publish(stream, event);
        if (record == record_operation)
            raise_joined(stream, stamp);
    } else {
        event->over = true;
        order_drop_user(stream, event);
    }
    short_lock_give(&stream->lock);
    return recorded ? event : NULL;
}

/* Before there are too many of them. */
static void ask_about_older_ones(struct pool *pool, struct stream *stream)
{
    uint64_t stamp = 0;
    short_lock_take(&stream->lock);
    if (counter_get(&stream->outstanding) >= OWN_EVENTS_TO_ASK) {
        const struct own_event *event = stream->oldest;
        for (unsigned i = 1; event->next && i < OWN_EVENTS_ASKED; i++)
            event = event->next;
        stamp = event->stamp;
    }
    short_lock_give(&stream->lock);
    if (stamp)
        order_query_sparingly(pool, stream, stamp);
}

struct own_event *order_record(struct pool *pool, struct stream_ref ref, CUstream handle,
                               uint64_t stamp, bool join)
{
    ask_about_older_ones(pool, ref.stream);
    struct own_event *event =
        record_by(pool, ref.stream, handle, stamp, join ? record_operation : record_on_stream);
    if (!event)
        return NULL;
    short_lock_take(&ref.stream->lock);
    event->in_free = true;
    short_lock_give(&ref.stream->lock);
    return event;
}

struct own_event *order_record_at_end(struct pool *pool, struct stream_ref ref, CUstream handle,
                                      uint64_t stamp)
{
    return record_by(pool, ref.stream, handle, stamp, record_on_stream);
}

static void drop(struct stream *stream, struct own_event *event)
{
    if (!event)
        return;
    short_lock_take(&stream->lock);
    order_drop_user(stream, event);
    short_lock_give(&stream->lock);
}

/* Lock held. */
static struct own_event *use_marker(struct stream *stream)
{
    if (stream->marker)
        stream->marker->users++;
    return stream->marker;
}

/* Lock held. */
static void drop_marker(struct stream *stream, struct own_event *event, bool made)
{
    if (!made)
        event->users--;
    if (made && !stream->marker)
        stream->marker = event;
    else if (event != stream->marker && event->users == 0)
        discard(stream, event);
}

/* Nobody else than the stream itself ever waits for the event, so it may be recorded again while it
 * is outstanding. */
bool order_join(struct pool *pool, struct stream_ref ref, CUstream handle, uint64_t stamp)
{
    struct stream *stream = ref.stream;
    short_lock_take(&stream->lock);
    struct context *context = stream->context;
    struct own_event *event = use_marker(stream);
    short_lock_give(&stream->lock);
    bool make = !event;
    bool recorded = record_event(pool, make ? context : NULL, &event, handle, record_operation);
    if (!event)
        return false;
    short_lock_take(&stream->lock);
    drop_marker(stream, event, make);
    if (recorded)
        raise_joined(stream, stamp);
    short_lock_give(&stream->lock);
    return recorded;
}

/* This process's memory takes up less than half of the device. */
static bool memory_is_plentiful(const struct device *device)
{
    /* Relaxed: it orders nothing. */
    uint64_t reserved = atomic_load_explicit(&device->reserved_bytes, memory_order_relaxed);
    return reserved < device->total_bytes / 2 && !device_is_short(device);
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t share_of(uint64_t all, uint64_t streams, uint64_t at_least)
{
    return all / (streams > at_least ? streams : at_least);
}

uint64_t order_share(const struct pool *pool, const struct stream *stream,
                     const struct mempool *mempool)
{
    const struct device *device = stream->device;
    uint64_t streams = stream_count(streams_of(pool)), all = device->growth_budget;
    uint64_t kept = atomic_load_explicit(&mempool->kept, memory_order_relaxed);
    if (device_is_short(device))
        return 0;
    if (stream->own_order && all && kept > all && memory_is_plentiful(device))
        all = kept;
    all = smaller(all, stream_device(device)->cached_cap / 2);
    return smaller(share_of(all, streams, FEW_STREAMS),
                   share_of(device->total_bytes / UNKNOWN_SHARE, streams, VERY_FEW_STREAMS));
}

/* Under the fence lock, so that the stream is not captured meanwhile. */
static CUresult record_on_free_stream(struct pool *pool, const struct own_event *event,
                                      CUstream handle)
{
    CUresult result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&pool->fence_lock);
    if (!program_captures(&pool->captures))
        result = pool->driver->cuEventRecord(event->event, handle);
    pthread_mutex_unlock(&pool->fence_lock);
    return result;
}

/* Lock held. */
static bool lacks_event(const struct stream *stream)
{
    const struct block *last = stream->pending.last;
    return last && (!stream->newest || stream->newest->stamp < counter_get(&last->epoch));
}

struct own_event *order_record_context(struct pool *pool, struct stream *stream, uint64_t stamp)
{
    return pool->driver->cuCtxRecordEvent ? record_by(pool, stream, NULL, stamp, record_in_context)
                                          : NULL;
}

bool order_capture_is_coming(const struct pool *pool)
{
    /* Relaxed: the stream's lock orders it. Whoever has left something pending without having seen
     * it did so before the stream was looked at below. */
    return (atomic_load_explicit(&streams_of(pool)->captures_coming, memory_order_relaxed) ||
            program_captures(&pool->captures)) &&
           !MUTATED(pending_as_capture_comes);
}

void order_capture_has_come(struct pool *pool)
{
    atomic_fetch_sub_explicit(&streams_of(pool)->captures_coming, 1, memory_order_relaxed);
}

void order_record_the_rest(struct pool *pool)
{
    struct streams *streams = streams_of(pool);
    atomic_fetch_add_explicit(&streams->captures_coming, 1, memory_order_relaxed);
    if (!pool->driver->cuCtxRecordEvent)
        return;
    for (unsigned i = 0; i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        short_lock_take(&stream->lock);
        order_settle(stream);
        bool lacks = lacks_event(stream);
        uint64_t stamp = atomic_load_explicit(&stream->stamp, memory_order_relaxed);
        struct context *context = stream->context;
        uint64_t generation = stream->generation;
        short_lock_give(&stream->lock);
        if (!lacks || !context_pin(context, generation))
            continue;
        drop(stream, order_record_context(pool, stream, stamp));
        context_unpin(context);
    }
}

/* Lock held. Only into a created stream that no others order may an operation be put outside of a
 * free: it holds nobody up. */
static bool may_be_named(const struct stream *stream)
{
    return stream->id && stream_is_created(stream->handle) && !stream->ordered_by_others;
}

/* The context is pinned. */
static void record_where_missing(struct pool *pool, struct stream *stream,
                                 const struct context *context)
{
    short_lock_take(&stream->lock);
    order_settle(stream);
    bool lacks = stream->context == context && lacks_event(stream) && may_be_named(stream);
    uint64_t stamp = atomic_load_explicit(&stream->stamp, memory_order_relaxed);
    CUstream handle = stream->handle;
    if (lacks)
        stream_is_named(stream);
    short_lock_give(&stream->lock);
    if (!lacks)
        return;
    drop(stream, record_by(pool, stream, handle, stamp, record_on_free_stream));
    stream_is_not_named(stream);
}

void order_record_where_missing(struct pool *pool, const struct context *context)
{
    uint64_t generation = context_generation(context);
    for (unsigned i = 0; i < stream_count(streams_of(pool)); i++) {
        struct context *pinned = (struct context *)(uintptr_t)context;
        if (!context_pin(pinned, generation))
            return;
        record_where_missing(pool, stream_at(streams_of(pool), i), context);
        context_unpin(pinned);
    }
}

void order_record_to_wait(struct pool *pool, struct stream *stream)
{
    short_lock_take(&stream->lock);
    order_settle(stream);
    bool lacks = lacks_event(stream), named = may_be_named(stream);
    bool is_here = stream->id && (!stream->thread || stream->thread == thread_state.id);
    uint64_t stamp = atomic_load_explicit(&stream->stamp, memory_order_relaxed);
    uint64_t generation = stream->generation;
    struct context *context = stream->context;
    short_lock_give(&stream->lock);
    if (!lacks || (is_here && !named) || !context_pin(context, generation))
        return;
    if (named)
        record_where_missing(pool, stream, context);
    else
        drop(stream, order_record_context(pool, stream, stamp));
    context_unpin(context);
}

/* Where its context has died, the work has died with it, and whoever buries it says so. */
static CUresult ask_driver(struct pool *pool, const struct own_event *event)
{
    if (!context_pin(event->context, event->generation))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    enter_driver();
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    CUresult result = pool->driver->cuEventQuery(event->event);
    relaxed_mode_end(pool->driver, mode);
    leave_driver();
    context_unpin(event->context);
    return MUTATED(stream_query_ignored) ? CUDA_SUCCESS : result;
}

/* Lock held. Later events are over no earlier. */
static bool was_asked_in_vain(const struct stream *stream, const struct own_event *event)
{
    return event && stream->vain_stamp > order_done(stream) && event->stamp >= stream->vain_stamp &&
           monotonic_now() < stream->vain_until && !MUTATED(asked_again_at_once);
}

/* Lock held. */
static void note_answer(struct stream *stream, uint64_t stamp, CUresult result)
{
    if (result != CUDA_ERROR_NOT_READY) {
        stream->vain_ns = 0;
        stream->vain_stamp = 0;
        return;
    }
    stream->vain_ns =
        stream->vain_ns ? smaller(2 * stream->vain_ns, VAIN_NANOSECONDS_MAX) : VAIN_NANOSECONDS_MIN;
    stream->vain_stamp = stamp;
    stream->vain_until = monotonic_now() + stream->vain_ns;
}

static CUresult ask(struct pool *pool, struct stream *stream, uint64_t stamp, bool sparingly)
{
    short_lock_take(&stream->lock);
    struct own_event *event = stream->oldest;
    while (event && event->stamp < stamp)
        event = event->next;
    uint64_t covered = event ? event->stamp : 0;
    bool vain = sparingly && was_asked_in_vain(stream, event);
    if (event && !vain)
        event->users++;
    short_lock_give(&stream->lock);
    if (vain)
        return CUDA_ERROR_NOT_READY;
    if (!event)
        return order_done(stream) >= stamp ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    CUresult result = ask_driver(pool, event);
    short_lock_take(&stream->lock);
    if (result == CUDA_SUCCESS)
        order_complete(stream, covered);
    note_answer(stream, covered, result);
    order_drop_user(stream, event);
    order_settle(stream);
    short_lock_give(&stream->lock);
    return result;
}

CUresult order_ask(struct pool *pool, struct stream *stream, uint64_t stamp)
{
    return ask(pool, stream, stamp, false);
}

bool order_query_sparingly(struct pool *pool, struct stream *stream, uint64_t stamp)
{
    return ask(pool, stream, stamp, true) == CUDA_SUCCESS;
}

bool order_query(struct pool *pool, struct stream *stream, uint64_t stamp)
{
    return order_ask(pool, stream, stamp) == CUDA_SUCCESS;
}

CUresult order_synchronise(struct pool *pool, struct stream *stream, uint64_t stamp)
{
    uint64_t started = monotonic_now();
    CUresult result;
    if (MUTATED(pinned_while_waiting))
        context_pin(stream->context, stream->generation);
    while ((result = order_ask(pool, stream, stamp)) == CUDA_ERROR_NOT_READY)
        patient_nap(started);
    return result;
}

uint64_t order_newest(const struct stream *stream)
{
    return stream->newest ? stream->newest->stamp : 0;
}

static bool may_be_waited_for(const struct own_event *event)
{
    return event->in_free || MUTATED(waited_for_later_work);
}

struct own_event *order_first_in_free(const struct stream *stream, uint64_t stamp)
{
    struct own_event *event = stream->oldest;
    while (event && (event->stamp < stamp || !may_be_waited_for(event)))
        event = event->next;
    return event;
}

struct own_event *order_last_in_free(const struct stream *stream)
{
    struct own_event *last = NULL;
    for (struct own_event *event = stream->oldest; event; event = event->next)
        if (may_be_waited_for(event))
            last = event;
    return last;
}

bool order_wait(struct pool *pool, CUstream handle, const struct own_event *event)
{
    enter_driver();
    CUresult result = pool->driver->cuStreamWaitEvent(handle, event->event, 0);
    leave_driver();
    return result == CUDA_SUCCESS;
}

/* ---- the program's events: a table in shards, open addressing with linear probing ---- */

#define SHARDS 16u

struct program_event {
    CUevent event; /* NULL: the place is free */
    uint64_t version;
    unsigned recording; /* threads between begin and recorded */
    bool contested;     /* several of them at a time: nobody knows whose record was the last */
    bool unseen;        /* somebody records it where we do not see it: it never counts again */
    bool valid;
    struct context *context; /* that it is in, and dies with; NULL: not known yet */
    struct order_clock *clock;
};

struct event_shard {
    pthread_mutex_t lock;
    struct program_event *events;
    size_t slots, used; /* slots: a power of two, or 0 */
    uint64_t versions;  /* given out so far */
};

bool order_init(struct streams *streams)
{
    streams->events = calloc(SHARDS, sizeof *streams->events);
    for (unsigned i = 0; streams->events && i < SHARDS; i++)
        pthread_mutex_init(&streams->events[i].lock, NULL);
    return streams->events != NULL;
}

static uint64_t mix(CUevent event)
{
    return (uint64_t)(uintptr_t)event * UINT64_C(0x9E3779B97F4A7C15);
}

static struct event_shard *shard_of(struct pool *pool, CUevent event)
{
    return &streams_of(pool)->events[mix(event) >> 60];
}

static size_t first_slot(const struct event_shard *shard, CUevent event)
{
    return (size_t)(mix(event) >> 24) & (shard->slots - 1);
}

/* The event's place, or the free one where it would be; the shard has slots. */
static struct program_event *find_place(struct event_shard *shard, CUevent event)
{
    size_t i = first_slot(shard, event);
    while (shard->events[i].event && shard->events[i].event != event)
        i = (i + 1) & (shard->slots - 1);
    return &shard->events[i];
}

static bool grow(struct event_shard *shard)
{
    struct event_shard larger = {.slots = shard->slots ? 2 * shard->slots : 64};
    larger.events = calloc(larger.slots, sizeof *larger.events);
    if (!larger.events)
        return false;
    for (size_t i = 0; i < shard->slots; i++)
        if (shard->events[i].event)
            *find_place(&larger, shard->events[i].event) = shard->events[i];
    free(shard->events);
    shard->events = larger.events;
    shard->slots = larger.slots;
    return true;
}

static struct program_event *find_event(struct event_shard *shard, CUevent event)
{
    struct program_event *place = shard->slots ? find_place(shard, event) : NULL;
    return place && place->event ? place : NULL;
}

static struct program_event *add_event(struct event_shard *shard, CUevent event)
{
    struct program_event *found = find_event(shard, event);
    if (found)
        return found;
    if (2 * (shard->used + 1) > shard->slots && !grow(shard))
        return NULL;
    found = find_place(shard, event);
    *found = (struct program_event){.event = event};
    shard->used++;
    return found;
}

/* Keeps the probe sequences whole: what follows moves up. */
static void remove_event(struct event_shard *shard, struct program_event *gone)
{
    size_t hole = (size_t)(gone - shard->events), mask = shard->slots - 1;
    free(gone->clock);
    gone->clock = NULL;
    shard->used--;
    for (size_t i = (hole + 1) & mask; shard->events[i].event; i = (i + 1) & mask) {
        size_t first = first_slot(shard, shard->events[i].event);
        if (((i - first) & mask) >= ((i - hole) & mask)) {
            shard->events[hole] = shard->events[i];
            hole = i;
        }
    }
    shard->events[hole] = (struct program_event){.event = NULL};
}

uint64_t order_event_begin(struct pool *pool, CUevent event)
{
    struct event_shard *shard = shard_of(pool, event);
    uint64_t version = 0;
    if (!event)
        return 0;
    pthread_mutex_lock(&shard->lock);
    struct program_event *found = add_event(shard, event);
    if (found) {
        found->valid = false;
        found->contested = found->recording++ != 0;
        version = found->version = ++shard->versions;
    }
    pthread_mutex_unlock(&shard->lock);
    return version;
}

static bool set_clock(struct program_event *event, const struct order_mark *mark)
{
    if (!event->clock)
        event->clock = malloc(sizeof *event->clock);
    if (!event->clock)
        return false;
    event->context = mark->context;
    memcpy(event->clock->after, mark->clock.after, mark->count * sizeof event->clock->after[0]);
    memset(event->clock->after + mark->count, 0,
           (STREAMS_ORDERED - mark->count) * sizeof event->clock->after[0]);
    return true;
}

void order_event_recorded(struct pool *pool, CUevent event, uint64_t version,
                          const struct order_mark *mark)
{
    struct event_shard *shard = shard_of(pool, event);
    if (!version)
        return;
    pthread_mutex_lock(&shard->lock);
    struct program_event *found = find_event(shard, event);
    if (found && found->recording && --found->recording == 0) {
        found->valid = !found->contested && !found->unseen && found->version == version && mark &&
                       mark->stream && set_clock(found, mark);
        /* What says nothing need not be remembered. */
        if (!found->valid && !found->unseen)
            remove_event(shard, found);
    }
    pthread_mutex_unlock(&shard->lock);
}

void order_event_lost(struct pool *pool, CUevent event)
{
    struct event_shard *shard = shard_of(pool, event);
    CUcontext current = NULL;
    pool->driver->cuCtxGetCurrent(&current);
    struct context *context = current ? context_find(pool, current) : NULL;
    pthread_mutex_lock(&shard->lock);
    struct program_event *found = event ? add_event(shard, event) : NULL;
    if (found) {
        if (!found->context)
            found->context = context;
        found->unseen = !MUTATED(events_of_launches_followed);
        found->valid = false;
        found->version = ++shard->versions;
    }
    pthread_mutex_unlock(&shard->lock);
    /* There is no memory for that: it must not be believed later. */
    if (event && !found)
        order_lose_events(pool);
}

void order_event_destroyed(struct pool *pool, CUevent event)
{
    struct event_shard *shard = shard_of(pool, event);
    pthread_mutex_lock(&shard->lock);
    struct program_event *found = find_event(shard, event);
    if (found)
        remove_event(shard, found);
    pthread_mutex_unlock(&shard->lock);
}

static unsigned count_events_of(const struct event_shard *shard, const struct context *context)
{
    unsigned count = 0;
    for (size_t i = 0; i < shard->slots; i++)
        count += shard->events[i].event && shard->events[i].context == context;
    return count;
}

/* Lock held. Those that stay move to another table; where there is no memory for one, all do, and
 * say nothing. */
static void keep_others(struct event_shard *shard, const struct context *context)
{
    struct event_shard others = {.slots = shard->slots};
    others.events = calloc(others.slots, sizeof *others.events);
    for (size_t i = 0; i < shard->slots; i++) {
        struct program_event *event = &shard->events[i];
        if (event->event && event->context == context) {
            free(event->clock);
            event->clock = NULL;
            event->valid = false;
        } else if (event->event && others.events) {
            *find_place(&others, event->event) = *event;
            others.used++;
        }
    }
    if (!others.events)
        return;
    free(shard->events);
    shard->events = others.events;
    shard->used = others.used;
}

static void forget_events(struct event_shard *shard, const struct context *context)
{
    pthread_mutex_lock(&shard->lock);
    if (count_events_of(shard, context))
        keep_others(shard, context);
    pthread_mutex_unlock(&shard->lock);
}

size_t order_count_events(struct pool *pool)
{
    size_t count = 0;
    for (unsigned i = 0; i < SHARDS; i++) {
        struct event_shard *shard = &streams_of(pool)->events[i];
        pthread_mutex_lock(&shard->lock);
        count += shard->used;
        pthread_mutex_unlock(&shard->lock);
    }
    return count;
}

void order_context_died(struct pool *pool, const struct context *context)
{
    for (unsigned i = 0; i < SHARDS && !MUTATED(events_outlive_context); i++)
        forget_events(&streams_of(pool)->events[i], context);
}

static bool events_are_lost(const struct pool *pool)
{
    return atomic_load_explicit(&streams_of(pool)->events_are_lost, memory_order_relaxed);
}

void order_event_look(struct pool *pool, CUevent event, struct event_look *look)
{
    struct event_shard *shard = shard_of(pool, event);
    look->version = 0;
    look->context = NULL;
    if (events_are_lost(pool))
        return;
    pthread_mutex_lock(&shard->lock);
    const struct program_event *found = find_event(shard, event);
    if (found)
        look->context = found->context;
    if (found && found->valid) {
        look->version = found->version;
        look->clock = *found->clock;
    }
    pthread_mutex_unlock(&shard->lock);
}

static bool still_stands(struct pool *pool, CUevent event, const struct event_look *look)
{
    struct event_shard *shard = shard_of(pool, event);
    if (!look->version || events_are_lost(pool))
        return false;
    pthread_mutex_lock(&shard->lock);
    const struct program_event *found = find_event(shard, event);
    bool same = (found && found->valid && found->version == look->version) ||
                MUTATED(event_recorded_anew_counts);
    pthread_mutex_unlock(&shard->lock);
    return same;
}

void order_event_is_over(struct pool *pool, CUevent event, const struct event_look *look)
{
    if (still_stands(pool, event, look))
        clock_is_over(streams_of(pool), &look->clock, STREAMS_ORDERED);
}

static bool says_anything(const struct order_clock *clock)
{
    for (unsigned i = 0; i < STREAMS_ORDERED; i++)
        if (clock->after[i])
            return true;
    return false;
}

void order_event_waited(struct pool *pool, CUevent event, const struct event_look *look,
                        CUstream handle)
{
    if (!says_anything(&look->clock) || !still_stands(pool, event, look))
        return;
    struct stream_ref ref = stream_find(pool, handle, true);
    if (!ref.stream)
        return;
    short_lock_take(&ref.stream->lock);
    for (unsigned i = 0; i < STREAMS_ORDERED && stream_is(ref); i++)
        if (look->clock.after[i] > ref.stream->known.after[i])
            ref.stream->known.after[i] = look->clock.after[i];
    short_lock_give(&ref.stream->lock);
}

void order_lose_events(struct pool *pool)
{
    atomic_store_explicit(&streams_of(pool)->events_are_lost, true, memory_order_relaxed);
}
