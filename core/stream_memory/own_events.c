#include "own_events.h"

#include <stdlib.h>

#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"
#include "stream_shelf.h"

void own_events_complete(struct stream *stream, uint64_t stamp)
{
    uint64_t done = stream_done(stream);
    while (done < stamp &&
           !atomic_compare_exchange_weak_explicit(&stream->done, &done, stamp, memory_order_relaxed,
                                                  memory_order_relaxed))
        continue;
}

void own_events_raise_marked(struct stream *stream, uint64_t stamp)
{
    lock_must_be_held(&stream->lock);
    if (stream->marked < stamp)
        stream->marked = stamp;
}

static void put_spare(struct stream *stream, struct own_event *event)
{
    event->next = stream->spare;
    stream->spare = event;
}

static void retire_oldest(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    struct own_event *event = stream->oldest;
    stream->oldest = event->next;
    if (!stream->oldest)
        stream->newest = NULL;
    counter_subtract(&stream->outstanding, 1);
    event->over = true;
    if (event->users == 0)
        put_spare(stream, event);
}

void own_event_drop(struct stream *stream, struct own_event *event)
{
    lock_must_be_held(&stream->lock);
    event->users--;
    if (event->users == 0 && event->over)
        put_spare(stream, event);
}

void own_events_apply_done(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    uint64_t done = stream_done(stream);
    while (stream->pending.first && counter_get(&stream->pending.first->epoch) <= done)
        shelf_make_clean(stream, stream_block_of(stream->pending.first));
    while (stream->oldest && stream->oldest->stamp <= done)
        retire_oldest(stream);
}

/* ---- discarded events ---- */

void own_event_discard(struct stream *stream, struct own_event *event)
{
    lock_must_be_held(&stream->lock);
    event->next = stream->discarded;
    stream->discarded = event;
}

void own_events_take_discarded(struct stream *stream, struct own_event **chain)
{
    lock_must_be_held(&stream->lock);
    while (stream->discarded) {
        struct own_event *event = stream->discarded;
        stream->discarded = event->next;
        event->next = *chain;
        *chain = event;
    }
}

void own_events_destroy(struct pool *pool, struct own_event *events)
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

void own_events_drop_all(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    if (stream->marker && stream->marker->users == 0)
        own_event_discard(stream, stream->marker);
    stream->marker = NULL;
    while (stream->oldest)
        retire_oldest(stream);
    while (stream->spare) {
        struct own_event *event = stream->spare;
        stream->spare = event->next;
        own_event_discard(stream, event);
    }
}

/* ---- recorded events ---- */

/* Discards the spare events of another context. */
static struct own_event *take_spare(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    struct own_event *event;
    while ((event = stream->spare) != NULL) {
        stream->spare = event->next;
        if (event->context == stream->context && event->generation == stream->generation)
            return event;
        own_event_discard(stream, event);
    }
    return NULL;
}

struct own_event *own_events_begin(struct stream *stream, bool *make)
{
    lock_must_be_held(&stream->lock);
    struct own_event *event = NULL;
    own_events_apply_done(stream);
    *make = counter_get(&stream->outstanding) < OWN_EVENTS_MAX;
    if (*make)
        event = take_spare(stream);
    *make = *make && !event;
    return event;
}

/* Other threads may have published later events meanwhile. */
void own_events_publish(struct stream *stream, struct own_event *event)
{
    lock_must_be_held(&stream->lock);
    shelf_cover(stream, event->stamp);
    struct own_event **link = &stream->oldest;
    while (*link && (*link)->stamp < event->stamp)
        link = &(*link)->next;
    event->next = *link;
    *link = event;
    if (!event->next)
        stream->newest = event;
    counter_add(&stream->outstanding, 1);
}

/* ---- the marker ---- */

struct own_event *own_events_use_marker(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    if (stream->marker)
        stream->marker->users++;
    return stream->marker;
}

void own_events_drop_marker(struct stream *stream, struct own_event *event, bool made)
{
    lock_must_be_held(&stream->lock);
    if (!made)
        event->users--;
    if (made && !stream->marker)
        stream->marker = event;
    else if (event != stream->marker && event->users == 0)
        own_event_discard(stream, event);
}

void own_events_have_new_owner(struct stream *stream)
{
    lock_must_be_held(&stream->lock);
    stream->marked = 0;
}

/* ---- requests for events ---- */

/* After a stream found no block with an event, so many frees on the searched stream that can record
 * one do. */
#define REQUESTED_FREES 32u

void own_events_request(struct stream *stream)
{
    atomic_store_explicit(&stream->events_requested, REQUESTED_FREES, memory_order_relaxed);
}

void own_events_release_request(struct stream *stream)
{
    unsigned wanted = atomic_load_explicit(&stream->events_requested, memory_order_relaxed);
    if (wanted)
        atomic_store_explicit(&stream->events_requested, wanted - 1, memory_order_relaxed);
}
