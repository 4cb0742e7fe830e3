#include "program_events.h"

#include <stdlib.h>
#include <string.h>

#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "stream_find.h"
#include "stream_order.h"

/* ---- a table in shards, open addressing with linear probing ---- */

#define SHARDS 16u

struct program_event {
    CUevent event; /* NULL: the slot is free */
    uint64_t version;
    unsigned recording; /* threads between program_event_begin and program_event_recorded */
    bool contested;     /* several threads recorded it at a time, so nobody knows which record was
                           the last */
    bool unseen;        /* it is recorded where the pool cannot see it, and is never valid again */
    bool valid;
    struct context *context; /* that the event dies with; NULL: not known yet */
    struct order_clock *clock;
};

struct event_shard {
    pthread_mutex_t lock;
    struct program_event *events;
    size_t slots, used; /* slots: a power of two, or 0 */
    uint64_t versions;  /* given out so far */
};

bool program_events_init(struct streams *streams)
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

/* The event's slot, or the free slot where it belongs. The shard has slots. */
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

/* Moves later entries up, so that every probe sequence stays unbroken. */
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

/* ---- recording and ending ---- */

uint64_t program_event_begin(struct pool *pool, CUevent event)
{
    struct event_shard *shard = shard_of(pool, event);
    uint64_t version = 0;
    if (!event)
        return 0;
    lock_take(&shard->lock, LOCK_EVENTS);
    struct program_event *found = add_event(shard, event);
    if (found) {
        found->valid = false;
        found->contested = found->recording++ != 0;
        version = found->version = ++shard->versions;
    }
    lock_give(&shard->lock);
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

void program_event_recorded(struct pool *pool, CUevent event, uint64_t version,
                            const struct order_mark *mark)
{
    struct event_shard *shard = shard_of(pool, event);
    if (!version)
        return;
    lock_take(&shard->lock, LOCK_EVENTS);
    struct program_event *found = find_event(shard, event);
    if (found && found->recording && --found->recording == 0) {
        found->valid = !found->contested && !found->unseen && found->version == version && mark &&
                       mark->stream && set_clock(found, mark);
        /* An event that is not valid need not be in the table. */
        if (!found->valid && !found->unseen)
            remove_event(shard, found);
    }
    lock_give(&shard->lock);
}

void program_event_lost(struct pool *pool, CUevent event)
{
    struct event_shard *shard = shard_of(pool, event);
    CUcontext current = NULL;
    pool->driver->cuCtxGetCurrent(&current);
    struct context *context = current ? context_find(pool, current) : NULL;
    lock_take(&shard->lock, LOCK_EVENTS);
    struct program_event *found = event ? add_event(shard, event) : NULL;
    if (found) {
        if (!found->context)
            found->context = context;
        found->unseen = true;
        found->valid = false;
        found->version = ++shard->versions;
    }
    lock_give(&shard->lock);
    /* Without memory for this the event would be trusted later, so none is from now on. */
    if (event && !found)
        program_events_lose(pool);
}

void program_event_destroyed(struct pool *pool, CUevent event)
{
    struct event_shard *shard = shard_of(pool, event);
    lock_take(&shard->lock, LOCK_EVENTS);
    struct program_event *found = find_event(shard, event);
    if (found)
        remove_event(shard, found);
    lock_give(&shard->lock);
}

static unsigned count_events_of(const struct event_shard *shard, const struct context *context)
{
    unsigned count = 0;
    for (size_t i = 0; i < shard->slots; i++)
        count += shard->events[i].event && shard->events[i].context == context;
    return count;
}

/* Moves the other contexts' events to a new table. If there is no memory for one, all events stay
 * where they are, and those of this context are not valid. */
static void keep_others(struct event_shard *shard, const struct context *context)
{
    lock_must_be_held(&shard->lock);
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
    lock_take(&shard->lock, LOCK_EVENTS);
    if (count_events_of(shard, context))
        keep_others(shard, context);
    lock_give(&shard->lock);
}

size_t program_events_count(struct pool *pool)
{
    size_t count = 0;
    for (unsigned i = 0; i < SHARDS; i++) {
        struct event_shard *shard = &streams_of(pool)->events[i];
        lock_take(&shard->lock, LOCK_EVENTS);
        count += shard->used;
        lock_give(&shard->lock);
    }
    return count;
}

void program_events_context_died(struct pool *pool, const struct context *context)
{
    for (unsigned i = 0; i < SHARDS; i++)
        forget_events(&streams_of(pool)->events[i], context);
}

/* ---- waiting ---- */

static bool events_are_lost(const struct pool *pool)
{
    return atomic_load_explicit(&streams_of(pool)->events_are_lost, memory_order_relaxed);
}

void program_event_look(struct pool *pool, CUevent event, struct event_look *look)
{
    struct event_shard *shard = shard_of(pool, event);
    look->version = 0;
    look->context = NULL;
    if (events_are_lost(pool))
        return;
    lock_take(&shard->lock, LOCK_EVENTS);
    const struct program_event *found = find_event(shard, event);
    if (found)
        look->context = found->context;
    if (found && found->valid) {
        look->version = found->version;
        look->clock = *found->clock;
    }
    lock_give(&shard->lock);
}

static bool still_stands(struct pool *pool, CUevent event, const struct event_look *look)
{
    struct event_shard *shard = shard_of(pool, event);
    if (!look->version || events_are_lost(pool))
        return false;
    lock_take(&shard->lock, LOCK_EVENTS);
    const struct program_event *found = find_event(shard, event);
    bool same = found && found->valid && found->version == look->version;
    lock_give(&shard->lock);
    return same;
}

void program_event_is_over(struct pool *pool, CUevent event, const struct event_look *look)
{
    if (still_stands(pool, event, look))
        order_clock_is_over(streams_of(pool), &look->clock, STREAMS_ORDERED);
}

static bool says_anything(const struct order_clock *clock)
{
    for (unsigned i = 0; i < STREAMS_ORDERED; i++)
        if (clock->after[i])
            return true;
    return false;
}

void program_event_waited(struct pool *pool, CUevent event, const struct event_look *look,
                          CUstream handle)
{
    if (!says_anything(&look->clock) || !still_stands(pool, event, look))
        return;
    struct stream_ref ref = stream_find(pool, handle, true);
    if (!ref.stream)
        return;
    lock_take(&ref.stream->lock, LOCK_STREAM);
    for (unsigned i = 0; i < STREAMS_ORDERED && stream_is(ref); i++)
        stream_learn(ref.stream, i, look->clock.after[i]);
    lock_give(&ref.stream->lock);
}

void program_events_lose(struct pool *pool)
{
    atomic_store_explicit(&streams_of(pool)->events_are_lost, true, memory_order_relaxed);
}
