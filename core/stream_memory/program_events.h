/*
 * The program's events, followed by handle.
 *
 * What an event stands for is noted before the driver records it and published after; whoever waits
 * for it looks before and after the driver's call, and learns nothing if it was recorded anew in
 * between. Recordings that cannot be seen (graphs that record events, events of other processes)
 * end the following of events for good.
 *
 * Locking: an event by the lock of its shard of the table, which is taken alone and not held across
 * a driver call. No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_PROGRAM_EVENTS_H
#define CUDAPOOL_CORE_PROGRAM_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "stream_clock.h"
#include "streams.h"

/* For a new pool. False where memory is short. */
bool program_events_init(struct streams *streams);

/* Around the driver's record of an event: what it comes after, or NULL where that is not known or
 * the record failed. */
uint64_t program_event_begin(struct pool *pool, CUevent event);
void program_event_recorded(struct pool *pool, CUevent event, uint64_t version,
                            const struct order_mark *mark);
void program_event_destroyed(struct pool *pool, CUevent event);

/* So are all that were in this context. */
void program_events_context_died(struct pool *pool, const struct context *context);

/* Events that are remembered. */
size_t program_events_count(struct pool *pool);

/* Somebody records this event where we do not see it: it is not believed until it is destroyed. */
void program_event_lost(struct pool *pool, CUevent event);

/* What the event stands for now. */
void program_event_look(struct pool *pool, CUevent event, struct event_look *look);

/* The driver has answered that the event is over, or has put a stream behind it: so is all that it
 * stood for, if it still stands for the same. */
void program_event_is_over(struct pool *pool, CUevent event, const struct event_look *look);
void program_event_waited(struct pool *pool, CUevent event, const struct event_look *look,
                          CUstream handle);

/* Somebody may record events where we do not see it. */
void program_events_lose(struct pool *pool);

#endif
