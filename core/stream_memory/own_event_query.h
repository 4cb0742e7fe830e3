/*
 * Asking about events of the pool's own, and waiting for them. No lock is held where a function
 * does not say otherwise.
 */
#ifndef CUDAPOOL_CORE_OWN_EVENT_QUERY_H
#define CUDAPOOL_CORE_OWN_EVENT_QUERY_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "own_events.h"

/* No lock held. Asks about the oldest outstanding event that covers the stamp: what the driver
 * says, or CUDA_ERROR_INVALID_HANDLE where there is none and it is not known to be over. */
CUresult own_events_ask(struct pool *pool, struct stream *stream, uint64_t stamp);

/* The same where the answer saves something, but the driver is a good one, too: an event that was
 * not over when it was last asked about is not asked about again before some time has passed, the
 * longer the more often that was in vain; no longer than it has been asked about, nor than a
 * millisecond. True: it is over. */
bool own_events_query_sparingly(struct pool *pool, struct stream *stream, uint64_t stamp);

/* True: it is over. */
bool own_events_query(struct pool *pool, struct stream *stream, uint64_t stamp);

/* The same until it is over, or the driver finds something wrong, or the context is about to end.
 * The context is pinned only while the driver is asked: its end waits for pins. */
CUresult own_events_synchronise(struct pool *pool, struct stream *stream, uint64_t stamp);

/* ---- which ones there are ---- */

/* Stream's lock held. The stamp up to which outstanding events can be asked about; 0: none is. */
uint64_t own_events_newest(const struct stream *stream);

/* Stream's lock held. The first outstanding event that was recorded in a free with that stamp or a
 * later one; or the last such event. What is put behind it waits for no work of after that free. */
struct own_event *own_events_first_in_free(const struct stream *stream, uint64_t stamp);
struct own_event *own_events_last_in_free(const struct stream *stream);

/* ---- waiting in a stream ---- */

/* No lock held; the caller uses the event. Makes the stream that handle means here wait for it. */
bool own_event_wait(struct pool *pool, CUstream handle, const struct own_event *event);

#endif
