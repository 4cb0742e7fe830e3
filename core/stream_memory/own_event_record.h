/*
 * Records events of the pool's own, and puts operations into streams. stream_order.h says where
 * that is allowed. The caller holds no lock unless a function says otherwise.
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

/* Records an event in a free on the stream. handle: what the program called the stream. stamp: the
 * free's, already taken. marks: the record is an operation that the work of other streams comes
 * before, as in own_event_mark. NULL: no event can be had. The caller is a user of the event until
 * it calls own_event_drop. */
struct own_event *own_event_record(struct pool *pool, struct stream_ref ref, CUstream handle,
                                   uint64_t stamp, bool marks);

/* Records an event while the stream is being destroyed. It may include work later than the free, so
 * it is only ever queried. */
struct own_event *own_event_record_at_end(struct pool *pool, struct stream_ref ref, CUstream handle,
                                          uint64_t stamp);

/* Records an event over all work of the stream's context, which is pinned. It is only ever queried.
 */
struct own_event *own_event_record_context(struct pool *pool, struct stream *stream,
                                           uint64_t stamp);

/* In a free with this stamp, puts an operation into the stream that nobody queries: a record of the
 * stream's marker. False: that was not possible. */
bool own_event_mark(struct pool *pool, struct stream_ref ref, CUstream handle, uint64_t stamp);

/* Does the same with a marker that the caller is a user of, but does not raise stream->marked. */
bool own_event_mark_by(struct pool *pool, struct own_event *marker, CUstream handle);

/* ---- before captures ---- */

/* Called before a capture begins, because no event can be recorded over a context's work during
 * captures. Each stream with pending blocks without an event gets one over all of its context's
 * work, which is only ever queried. Until own_events_capture_has_come, a free that puts an
 * operation into its stream leaves no block pending without an event. */
void own_events_capture_comes(struct pool *pool);
void own_events_capture_has_come(struct pool *pool);

/* Whether a capture is about to begin or under way. The caller holds a stream's lock. */
bool own_events_capture_is_coming(const struct pool *pool);

/* ---- where events are missing ---- */

/* Called when memory is short. Pending blocks without an event get one where recording it delays
 * nobody. The event may include later work of the stream, and is only ever queried. */
void own_events_record_missing(struct pool *pool, const struct context *context);

/* For the housekeeper alone. Pending blocks without an event get one over all of their context's
 * work. This serves streams that cannot be named, or must not be since the program makes no call.
 * quiet: only on streams where nothing was freed since the last such call. */
void own_events_record_for_device(struct pool *pool, const struct device *device, bool quiet);

/* Records an event on one stream, so that the stream's pending blocks can be waited for. The event
 * stands for all of the context's work if the stream cannot be named any more, or not in this
 * thread. */
void own_events_record_to_wait(struct pool *pool, struct stream *stream);

#endif
