#include "stream_order.h"

#include <stdlib.h>
#include <string.h>

#include "mutation.h"
#include "pool_state.h"
#include "stream_heap.h"

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
    stream->outstanding--;
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
    while (stream->pending.first && stream->pending.first->epoch <= done)
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

static void take_mark_of(struct pool *pool, struct stream_ref ref, struct order_mark *mark)
{
    mark->stream = NULL;
    if (!ref.stream)
        return;
    stream_lock_take(&ref.stream->lock);
    if (stream_is(ref))
        copy_clock(pool->streams, ref.stream, mark);
    stream_lock_give(&ref.stream->lock);
}

void order_take_mark(struct pool *pool, CUstream handle, struct order_mark *mark)
{
    take_mark_of(pool, stream_find(pool, handle, false), mark);
}

/* Lock held. Whether others put the stream's work behind theirs without an operation in it. */
static bool is_ordered_by_others(const struct stream *stream)
{
    return stream->blocking || (stream->context && atomic_load_explicit(&stream->context->barred,
                                                                        memory_order_relaxed));
}

static bool is_captured(const struct pool *pool, CUstream handle)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return streams_are_captured(pool) &&
           (!pool->driver->cuStreamIsCapturing ||
            pool->driver->cuStreamIsCapturing(handle, &status) != CUDA_SUCCESS ||
            status != CU_STREAM_CAPTURE_STATUS_NONE);
}

bool order_join_before_wait(struct pool *pool, struct stream_ref ref, CUstream handle,
                            uint64_t stamp)
{
    struct stream *stream = ref.stream;
    stream_lock_take(&stream->lock);
    bool needed =
        is_ordered_by_others(stream) && stamp > stream->joined && !MUTATED(legacy_use_forgotten);
    stream_lock_give(&stream->lock);
    if (!needed)
        return true;
    if (is_captured(pool, handle) || !order_join(pool, ref, handle))
        return false;
    stream_lock_take(&stream->lock);
    if (stream->joined < stamp)
        stream->joined = stamp;
    stream_lock_give(&stream->lock);
    return true;
}

void order_take_mark_to_wait(struct pool *pool, CUstream handle, struct order_mark *mark)
{
    struct stream_ref ref = stream_find(pool, handle, false);
    take_mark_of(pool, ref, mark);
    if (mark->stream && !order_join_before_wait(pool, ref, handle, mark->stamp))
        mark->stream = NULL;
}

static void clock_is_over(struct streams *streams, const struct order_clock *clock, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (clock->after[i])
            order_complete(stream_at(streams, i), clock->after[i]);
}

static void settle(struct stream *stream)
{
    stream_lock_take(&stream->lock);
    order_settle(stream);
    stream_lock_give(&stream->lock);
}

void order_mark_is_over(struct pool *pool, const struct order_mark *mark)
{
    if (!mark->stream)
        return;
    order_complete(mark->stream, mark->stamp);
    clock_is_over(pool->streams, &mark->clock, mark->count);
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

struct order_marks *order_take_context(struct pool *pool, const struct context *context)
{
    struct streams *streams = pool->streams;
    unsigned count = stream_count(streams);
    struct order_marks *taken = malloc(sizeof *taken + count * sizeof taken->marks[0]);
    if (!taken)
        return NULL;
    taken->count = 0;
    for (unsigned i = 0; i < count; i++) {
        struct stream *stream = stream_at(streams, i);
        stream_lock_take(&stream->lock);
        if (stream->context == context) {
            taken->marks[taken->count].stream = stream;
            taken->marks[taken->count++].stamp =
                atomic_load_explicit(&stream->stamp, memory_order_relaxed);
        }
        stream_lock_give(&stream->lock);
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

/* Lock held. Other threads may have published later ones meanwhile. */
static void publish(struct stream *stream, struct own_event *event)
{
    struct own_event **link = &stream->oldest;
    while (*link && (*link)->stamp < event->stamp)
        link = &(*link)->next;
    event->next = *link;
    *link = event;
    if (!event->next)
        stream->newest = event;
    stream->outstanding++;
}

/* Lock held. What may be recorded again, or NULL: made is then to be one if there may be more. */
static struct own_event *begin_record(struct stream *stream, bool *make)
{
    struct own_event *event = NULL;
    order_settle(stream);
    *make = stream->outstanding < OWN_EVENTS_MAX;
    if (*make)
        event = take_spare(stream);
    *make = *make && !event;
    return event;
}

typedef CUresult recorder(struct pool *pool, const struct own_event *event, CUstream handle);

static CUresult record_on_stream(struct pool *pool, const struct own_event *event, CUstream handle)
{
    return pool->driver->cuEventRecord(event->event, handle);
}

/* The context is pinned. Under the fence lock, so that no capture begins meanwhile. */
static CUresult record_in_context(struct pool *pool, const struct own_event *event, CUstream unused)
{
    CUresult result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    (void)unused;
    pthread_mutex_lock(&pool->fence_lock);
    if (!streams_are_captured(pool))
        result = pool->driver->cuCtxRecordEvent(event->context->handle, event->event);
    pthread_mutex_unlock(&pool->fence_lock);
    return result;
}

static struct own_event *record_by(struct pool *pool, struct stream *stream, CUstream handle,
                                   uint64_t stamp, recorder *record)
{
    bool make;
    struct own_event *discarded = NULL;
    stream_lock_take(&stream->lock);
    struct context *context = stream->context;
    struct own_event *event = begin_record(stream, &make);
    order_take_discarded(stream, &discarded);
    stream_lock_give(&stream->lock);
    order_destroy_events(pool, discarded);
    enter_driver();
    if (make)
        event = make_event(pool, context);
    bool recorded = event && record(pool, event, handle) == CUDA_SUCCESS;
    leave_driver();
    if (!event)
        return NULL;
    stream_lock_take(&stream->lock);
    event->stamp = stamp;
    event->users = 1;
    event->over = false;
    if (recorded) {
        publish(stream, event);
    } else {
        event->over = true;
        order_drop_user(stream, event);
    }
    stream_lock_give(&stream->lock);
    return recorded ? event : NULL;
}

struct own_event *order_record(struct pool *pool, struct stream_ref ref, CUstream handle,
                               uint64_t stamp)
{
    return record_by(pool, ref.stream, handle, stamp, record_on_stream);
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

/* Nobody ever waits for the event, so it may be recorded again while it is outstanding. */
bool order_join(struct pool *pool, struct stream_ref ref, CUstream handle)
{
    struct stream *stream = ref.stream;
    stream_lock_take(&stream->lock);
    struct context *context = stream->context;
    struct own_event *event = use_marker(stream);
    stream_lock_give(&stream->lock);
    bool make = !event;
    enter_driver();
    if (make)
        event = make_event(pool, context);
    bool recorded = event && record_on_stream(pool, event, handle) == CUDA_SUCCESS;
    leave_driver();
    if (!event)
        return false;
    stream_lock_take(&stream->lock);
    drop_marker(stream, event, make);
    stream_lock_give(&stream->lock);
    return recorded;
}

/* Lock held. */
static bool lacks_event(const struct stream *stream)
{
    const struct block *last = stream->pending.last;
    return last && (!stream->newest || stream->newest->stamp < last->epoch);
}

void order_record_the_rest(struct pool *pool)
{
    struct streams *streams = pool->streams;
    if (!pool->driver->cuCtxRecordEvent)
        return;
    for (unsigned i = 0; i < stream_count(streams); i++) {
        struct stream *stream = stream_at(streams, i);
        stream_lock_take(&stream->lock);
        order_settle(stream);
        bool lacks = lacks_event(stream);
        uint64_t stamp = atomic_load_explicit(&stream->stamp, memory_order_relaxed);
        struct context *context = stream->context;
        uint64_t generation = stream->generation;
        stream_lock_give(&stream->lock);
        if (!lacks || !context_pin(context, generation))
            continue;
        struct own_event *event = record_by(pool, stream, NULL, stamp, record_in_context);
        if (event) {
            stream_lock_take(&stream->lock);
            order_drop_user(stream, event);
            stream_lock_give(&stream->lock);
        }
        context_unpin(context);
    }
}

/* Where its context has died, the work has died with it, and whoever buries it says so. */
static bool ask_driver(struct pool *pool, const struct own_event *event)
{
    if (!context_pin(event->context, event->generation))
        return false;
    enter_driver();
    struct relaxed_mode mode = relaxed_mode_begin(pool);
    CUresult result = pool->driver->cuEventQuery(event->event);
    relaxed_mode_end(pool, mode);
    leave_driver();
    context_unpin(event->context);
    return result == CUDA_SUCCESS || MUTATED(stream_query_ignored);
}

bool order_query(struct pool *pool, struct stream *stream, uint64_t stamp)
{
    stream_lock_take(&stream->lock);
    struct own_event *event = stream->oldest;
    while (event && event->stamp < stamp)
        event = event->next;
    uint64_t covered = event ? event->stamp : 0;
    if (event)
        event->users++;
    stream_lock_give(&stream->lock);
    if (!event)
        return order_done(stream) >= stamp;
    bool over = ask_driver(pool, event);
    stream_lock_take(&stream->lock);
    if (over)
        order_complete(stream, covered);
    order_drop_user(stream, event);
    order_settle(stream);
    stream_lock_give(&stream->lock);
    return over;
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
    return &pool->streams->events[mix(event) >> 60];
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
    if (found && found->recording && --found->recording == 0 && !found->contested &&
        !found->unseen && found->version == version && mark && mark->stream)
        found->valid = set_clock(found, mark);
    pthread_mutex_unlock(&shard->lock);
}

void order_event_lost(struct pool *pool, CUevent event)
{
    struct event_shard *shard = shard_of(pool, event);
    pthread_mutex_lock(&shard->lock);
    struct program_event *found = event ? add_event(shard, event) : NULL;
    if (found) {
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

static bool events_are_lost(const struct pool *pool)
{
    return atomic_load_explicit(&pool->streams->events_are_lost, memory_order_relaxed);
}

void order_event_look(struct pool *pool, CUevent event, struct event_look *look)
{
    struct event_shard *shard = shard_of(pool, event);
    look->version = 0;
    if (events_are_lost(pool))
        return;
    pthread_mutex_lock(&shard->lock);
    const struct program_event *found = find_event(shard, event);
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
        clock_is_over(pool->streams, &look->clock, STREAMS_ORDERED);
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
    stream_lock_take(&ref.stream->lock);
    for (unsigned i = 0; i < STREAMS_ORDERED && stream_is(ref); i++)
        if (look->clock.after[i] > ref.stream->known.after[i])
            ref.stream->known.after[i] = look->clock.after[i];
    stream_lock_give(&ref.stream->lock);
}

void order_lose_events(struct pool *pool)
{
    atomic_store_explicit(&pool->streams->events_are_lost, true, memory_order_relaxed);
}
