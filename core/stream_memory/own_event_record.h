/*
 * Recording events of the pool's own, and putting operations into streams: stream_order.h says
 * where that is right. No lock is held where a function does not say otherwise.
 */
#ifndef CUDAPOOL_CORE_OWN_EVENT_RECORD_H
#define CUDAPOOL_CORE_OWN_EVENT_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "stream.h"

struct context;
struct pool;

/* ---- in frees ---- */

/* Records an event in a free with this stamp, which has been taken, on the stream by
 * the handle that the program used; marks: as an operation that others' work comes before, as
 * own_event_mark's. NULL where none can be had. Used by the caller until it calls own_event_drop.
 */
struct own_event *own_event_record(struct pool *pool, struct stream_ref ref, CUstream handle,
                                   uint64_t stamp, bool marks);

/* The same as the stream is destroyed, when later work than the free may be there: only ever to be
 * asked about. */
struct own_event *own_event_record_at_end(struct pool *pool, struct stream_ref ref, CUstream handle,
                                          uint64_t stamp);

/* The same over all of the context's work, which is pinned: only ever to be asked about. */
struct own_event *own_event_record_context(struct pool *pool, struct stream *stream,
                                           uint64_t stamp);

/* The marker in a free with this stamp: puts an operation into the stream that nobody
 * will ask about. False where that was not possible. */
bool own_event_mark(struct pool *pool, struct stream_ref ref, CUstream handle, uint64_t stamp);

/* The same by the stream's marker, which the caller uses: all but that it tells the stream. */
bool own_event_mark_by(struct pool *pool, struct own_event *marker, CUstream handle);

/* ---- before captures ---- */

/* Before a capture begins, while the context's work can still be told from later
 * work: what is pending without an event gets one, over all of the context's work, that is only
 * ever asked about. From then on, until own_events_capture_has_come, no free that puts an operation
 * into its stream leaves anything pending without an event. */
void own_events_capture_comes(struct pool *pool);
void own_events_capture_has_come(struct pool *pool);

/* Whether that is so now. A stream's lock is held. */
bool own_events_capture_is_coming(const struct pool *pool);

/* ---- where they are missing ---- */

/* Where memory is short. What is pending without an event gets one where that holds
 * nobody up. It stands for later work of its stream, too, and is only ever asked about. */
void own_events_record_missing(struct pool *pool, const struct context *context);

/* The same over all of the context's work, for streams that cannot be named, or must not, since
 * nobody of the program's calls. quiet: only where nothing was freed since the last such call. For
 * the housekeeper alone. */
void own_events_record_for_device(struct pool *pool, const struct device *device, bool quiet);

/* The same for one stream, so that it can be waited for: over all of its context's work where the
 * stream can't be named any more, or not in this thread. */
void own_events_record_to_wait(struct pool *pool, struct stream *stream);

#endif
