/*
 * Queries of the pool's own events, and waits for them. The caller holds no lock unless a function
 * says otherwise.
 */
#ifndef CUDAPOOL_CORE_OWN_EVENT_QUERY_H
#define CUDAPOOL_CORE_OWN_EVENT_QUERY_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "stream.h"

struct pool;

/* Queries the oldest outstanding event with this stamp or a later one, and returns the driver's
 * answer. If there is none: CUDA_SUCCESS if the work up to the stamp is known to have completed,
 * otherwise CUDA_ERROR_INVALID_HANDLE. */
CUresult own_events_ask(struct pool *pool, struct stream *stream, uint64_t stamp);

/* Like own_events_query, for callers that could just as well ask the driver for memory. An event
 * that was not complete is not queried again for some time. That time doubles with each such query.
 * It is never longer than the event has been queried so far, nor than a millisecond. */
bool own_events_query_sparingly(struct pool *pool, struct stream *stream, uint64_t stamp);

/* True: all work before the frees up to this stamp has completed. */
bool own_events_query(struct pool *pool, struct stream *stream, uint64_t stamp);

/* Repeats own_events_ask until the work has completed, the driver reports an error, or the context
 * is about to end. The context is pinned only during each driver call, because its end waits for
 * pins. */
CUresult own_events_synchronise(struct pool *pool, struct stream *stream, uint64_t stamp);

/* ---- which events there are ---- */

/* The caller holds the stream's lock. The highest stamp of an outstanding event; 0: there is none.
 */
uint64_t own_events_newest(const struct stream *stream);

/* The caller holds the stream's lock. The first outstanding event that was recorded inside a free
 * with this stamp or a later one; and the last event that was recorded inside any free. Work
 * ordered after such an event waits for no work submitted after that free. */
struct own_event *own_events_first_in_free(const struct stream *stream, uint64_t stamp);
struct own_event *own_events_last_in_free(const struct stream *stream);

#endif
