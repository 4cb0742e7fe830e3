/*
 * What a free puts into its stream: an operation where others order the stream, and now and then an
 * event of the pool's own. stream_order.h says why there are operations.
 *
 * An event that is recorded in a free comes after that free, and after no later work. So a block
 * that is pending up to its stamp may go to the driver behind it, before the work has completed.
 * Where the driver has no memory, it gives such memory out at once, ordered after the event. It is
 * also asked about where memory is short: another stream's work keeps a fence from completing, but
 * not this event. A free records one where more than its stream's share would
 * otherwise be pending with none after it (stream_order.c).
 *
 * An operation is a record of an event and a wait for that event, both in the stream. A record
 * alone is not enough. In a stream without work of its own, the record comes after what others
 * order before it, and whoever waits for the event finds that. But cuStreamQuery and
 * cuStreamSynchronize do not see the record and say that the stream is idle. (This is measured.
 * They see it only on the legacy stream, when that waits for blocking streams.)
 *
 * If an event is due anyway, the operation uses that one. Otherwise one event is recorded over and
 * over that nobody asks about: the marker.
 *
 * A context's fences are recycled in a similar way (core/contexts/fence_list.h). But a stream's
 * record that serves another context next must hold none, and these events are given to the driver
 * rather than asked about. So the two share no list.
 */
#ifndef CUDAPOOL_CORE_STREAM_EVENTS_H
#define CUDAPOOL_CORE_STREAM_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "stream.h"

struct pool;

/* The most events that are outstanding on a stream. */
#define STREAM_EVENTS_MAX 64u

/* ---- outstanding events; the caller holds the stream's lock ---- */

/* Takes the first event with this stamp or a later one whose frees are not known to be done.
 * stream_events_put returns it. NULL: there is none. */
struct stream_event *stream_events_take(struct stream *stream, uint64_t stamp);
void stream_events_put(struct stream *stream, struct stream_event *event);

/* Whether there is any event, perhaps one that another thread has taken. */
bool stream_events_may_tell(struct stream *stream);

/* The stamp of the newest event; 0: there is none. */
uint64_t stream_events_newest(struct stream *stream);

/* stream_events_drop_all discards all events of the stream. stream_events_take_discarded moves
 * discarded events to the front of *chain. stream_events_destroy destroys a chain, with no lock
 * held. Events whose context has died are only freed. */
void stream_events_drop_all(struct stream *stream);
void stream_events_take_discarded(struct stream *stream, struct stream_event **chain);
void stream_events_destroy(struct pool *pool, struct stream_event *chain);

/* ---- asking; no lock is held ---- */

/* Asks the driver about the first event with this stamp or a later one, and returns its answer. All
 * work before the stream's frees up to that event's stamp has completed where that is CUDA_SUCCESS.
 * CUDA_ERROR_INVALID_HANDLE: there is no such event. CUDA_ERROR_NOT_READY also where another thread
 * has taken one. */
CUresult stream_events_ask(struct pool *pool, struct stream *stream, uint64_t stamp);

/* Asks about all events of the stream: first about the newest. If it has completed, all have. */
void stream_events_ask_all(struct pool *pool, struct stream *stream);

/* ---- recording, in a free; no lock is held ---- */

/* Records an event, and publishes it with this stamp, whose epoch is closed. handle: what the
 * program called the stream. operation: the record is an operation, too. False: no event can be
 * had. */
bool stream_event_record(struct pool *pool, struct stream_ref ref, CUstream handle, uint64_t stamp,
                         bool operation);

/* Puts an operation into the stream: records its marker. False: that was not possible. */
bool stream_mark(struct pool *pool, struct stream_ref ref, CUstream handle);

/* stream_mark in three steps. stream_use_marker and stream_drop_marker are called with the lock
 * held. stream_use_marker returns the marker and makes the caller a user of it; NULL: there is none
 * yet. */
struct stream_event *stream_use_marker(struct stream *stream);
bool stream_mark_by(struct pool *pool, struct stream_event *marker, CUstream handle);
void stream_drop_marker(struct stream *stream, struct stream_event *marker);

/* ---- what is done ----
 *
 * Which frees on a stream are done, and what of its blocks is clean because of that. stream_order.h
 * says how it becomes known.
 *
 * Locking: the caller holds the stream's lock.
 */

/* All work before the frees stamped up to here has completed: makes their blocks clean. */
void stream_done_raise(struct stream *stream, uint64_t stamp);

/* The same, with what is known of the stream's context. */
void stream_done_apply(struct stream *stream);

/* The newest stamp of what is pending or spare; 0 where that is done and no part waits. A part that
 * waits for an event has no stamp, so 0 does not mean that no part waits. */
uint64_t stream_newest_unclean(const struct stream *stream);

#endif
