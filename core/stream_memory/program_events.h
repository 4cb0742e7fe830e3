/*
 * What the program's events stand for, by their handles.
 *
 * Which work an event stands for is noted before the driver records it, and published afterwards.
 * Whoever waits for the event looks it up before and after the driver's call. The lookup counts for
 * nothing if the event was recorded again in between. Recordings that the pool cannot see (by
 * graphs, or of other processes' events) end this tracking for good.
 *
 * Locking: an event is guarded by the lock of its shard of the table. The callers hold no lock.
 */
#ifndef CUDAPOOL_CORE_PROGRAM_EVENTS_H
#define CUDAPOOL_CORE_PROGRAM_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "stream_clock.h"
#include "streams.h"

/* Called for a new pool. False: memory is short. */
bool program_events_init(struct streams *streams);

/* Enclose the driver's record of an event. begin returns a version, to be passed to recorded. mark:
 * what the event is ordered after; NULL: that is not known, or the record failed. */
uint64_t program_event_begin(struct pool *pool, CUevent event);
void program_event_recorded(struct pool *pool, CUevent event, uint64_t version,
                            const struct order_mark *mark);
void program_event_destroyed(struct pool *pool, CUevent event);

/* All events of this context are destroyed. */
void program_events_context_died(struct pool *pool, const struct context *context);

/* How many events are in the table. */
size_t program_events_count(struct pool *pool);

/* The event may be recorded where the pool cannot see it. What it stands for is not trusted until
 * it is destroyed. */
void program_event_lost(struct pool *pool, CUevent event);

/* Returns what the event stands for now. */
void program_event_look(struct pool *pool, CUevent event, struct event_look *look);

/* The driver has answered that the event has completed, or has made a stream wait for it. If the
 * event still stands for what was looked up, that work has completed, or comes before the stream's
 * later work. */
void program_event_is_over(struct pool *pool, CUevent event, const struct event_look *look);
void program_event_waited(struct pool *pool, CUevent event, const struct event_look *look,
                          CUstream handle);

/* Any event may be recorded where the pool cannot see it: none is trusted from now on. */
void program_events_lose(struct pool *pool);

#endif
