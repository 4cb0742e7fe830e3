/*
 * The pool's own events on a stream: the outstanding ones by ascending stamp, the spare ones, and
 * what has completed because of them. stream_order.h says what they are for.
 *
 * A context's fences are recycled in a similar way (core/contexts/fence_list.h). But only one
 * thread at a time records a fence, which is then the newest, and fences stay with their context.
 * Here threads publish events in any order, and a stream's record that serves another context next
 * must hold none. So the two share no list.
 *
 * The stream's lock guards its events. Functions say whether they are called with it held.
 */
#ifndef CUDAPOOL_CORE_OWN_EVENTS_H
#define CUDAPOOL_CORE_OWN_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "stream.h"
#include "streams.h"

/* The most own events that are outstanding on a stream. */
#define OWN_EVENTS_MAX 64u

/* ---- what has completed ---- */

/* All work before the frees stamped up to this has completed. Any thread, no lock needed. */
void own_events_complete(struct stream *stream, uint64_t stamp);

/* The caller holds the stream's lock. Makes pending blocks with a stamp <= done clean, and retires
 * the events with such stamps. */
void own_events_apply_done(struct stream *stream);

/* ---- outstanding events; the caller holds the stream's lock ---- */

/* Returns a spare event to record again, or NULL. *make: there is none, but the caller may make
 * one. */
struct own_event *own_events_begin(struct stream *stream, bool *make);

/* The event is recorded, and outstanding from now on. Blocks pending up to its stamp can be
 * queried. */
void own_events_publish(struct stream *stream, struct own_event *event);

/* The stream has an operation ordered after the free with this stamp. */
void own_events_raise_marked(struct stream *stream, uint64_t stamp);

/* The caller no longer uses the event. Once nobody uses it and event->over is set, it is spare. */
void own_event_drop(struct stream *stream, struct own_event *event);

/* Nobody uses the event, nor will. It is destroyed after the lock is released. */
void own_event_discard(struct stream *stream, struct own_event *event);

/* own_events_drop_all: discards all events of the stream. own_events_take_discarded: moves the
 * discarded events to the front of *chain, with the lock held. own_events_destroy: destroys a
 * chain, with no lock held. Events whose context has died are only freed. */
void own_events_drop_all(struct stream *stream);
void own_events_take_discarded(struct stream *stream, struct own_event **chain);
void own_events_destroy(struct pool *pool, struct own_event *chain);

/* ---- the marker ---- */

/* The caller holds the stream's lock. Returns the marker and makes the caller a user of it. NULL:
 * there is none yet. */
struct own_event *own_events_use_marker(struct stream *stream);

/* The caller holds the stream's lock, and no longer uses the marker. made: the caller has made it,
 * and is not counted as a user. */
void own_events_drop_marker(struct stream *stream, struct own_event *event, bool made);

/* The caller holds the stream's lock. The record serves another stream from now on. */
void own_events_have_new_owner(struct stream *stream);

/* ---- requests for events; no lock is needed ---- */

/* own_events_request: another stream looked for a block with an event and found none, so the next
 * frees record one each. own_events_release_request: one of them has. Concurrent calls may lose
 * each other's changes. */
void own_events_request(struct stream *stream);
void own_events_release_request(struct stream *stream);

#endif
