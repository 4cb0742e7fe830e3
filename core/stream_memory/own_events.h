/*
 * Events of the pool's own on a stream: those that are outstanding, by ascending stamp, those that
 * serve again, and what turns out to be over because of them. stream_order.h says what they are
 * for.
 *
 * A context's fences are recycled in a like way (core/contexts/fence_list.h), but of those one
 * thread at a time records one, which is then the newest, and they stay their context's. Here
 * threads publish in any order, and the next owner of a stream's record, in another context, must
 * find none: so the two have no list in common.
 *
 * A stream's lock guards its events. Functions say whether they are called with it held.
 */
#ifndef CUDAPOOL_CORE_OWN_EVENTS_H
#define CUDAPOOL_CORE_OWN_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "stream.h"
#include "streams.h"

/* No more events of our own than this are outstanding on a stream. */
#define OWN_EVENTS_MAX 64u

/* ---- what is over ---- */

/* Everything stamped up to here is over. Any thread, no lock needed. */
void own_events_complete(struct stream *stream, uint64_t stamp);

/* Stream's lock held. Makes clean what is over, and takes back the events that stood for it. */
void own_events_settle(struct stream *stream);

/* ---- outstanding ones; the stream's lock is held ---- */

/* What may be recorded again, or NULL: *make is then whether there may be one more. */
struct own_event *own_events_begin(struct stream *stream, bool *make);

/* It is recorded, and outstanding from now on: what is pending up to its stamp can be asked about.
 */
void own_events_publish(struct stream *stream, struct own_event *event);

/* An operation in the stream is behind the free with this stamp. */
void own_events_raise_marked(struct stream *stream, uint64_t stamp);

/* The caller uses it no more: it serves again where nobody does and it is over. */
void own_event_drop(struct stream *stream, struct own_event *event);

/* Nobody uses it any more, nor will: it is destroyed when the lock is given. */
void own_event_discard(struct stream *stream, struct own_event *event);

/* All its events are discarded. What is discarded is taken under the lock, put before the chain,
 * and destroyed without any lock; what died with its context is only forgotten. */
void own_events_drop_all(struct stream *stream);
void own_events_take_discarded(struct stream *stream, struct own_event **chain);
void own_events_destroy(struct pool *pool, struct own_event *chain);

/* ---- the marker ---- */

/* Stream's lock held. The marker, used by the caller, or NULL: there is none yet. */
struct own_event *own_events_use_marker(struct stream *stream);

/* Stream's lock held. The caller uses it no more; made: it is one that he has made. */
void own_events_drop_marker(struct stream *stream, struct own_event *event, bool made);

/* Stream's lock held. It is another stream's record from now on. */
void own_events_have_new_owner(struct stream *stream);

/* ---- wishes; no lock is needed ---- */

/* Another stream has looked in vain for a block with an event: the next frees record one; and one
 * of them has. Threads may lose each other's steps. */
void own_events_want(struct stream *stream);
void own_events_want_one_less(struct stream *stream);

#endif
