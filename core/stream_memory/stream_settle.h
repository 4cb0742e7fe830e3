/*
 * What is pending and turns out to be over: by asking, or by waiting with patience. No lock is held
 * by the callers.
 */
#ifndef CUDAPOOL_CORE_STREAM_SETTLE_H
#define CUDAPOOL_CORE_STREAM_SETTLE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "streams.h"

/* How long the end of a context waits for what is pending, at most. */
#define PATIENCE_NANOSECONDS (UINT64_C(10) * 1000 * 1000 * 1000)

/* ---- by asking ---- */

/* Asks about everything that is pending on the device (NULL: all); parts that are over go home. */
void stream_settle(struct pool *pool, const struct device *device);

/* The same by this query, of own_event_query.h. */
void stream_settle_all(struct pool *pool, const struct device *device,
                       bool (*query)(struct pool *, struct stream *, uint64_t));

/* ---- by waiting ---- */

/* The same with patience: until all that was pending is over, or it is this time on the monotonic
 * clock. Work that was submitted after a free may be waited for. */
void stream_settle_until(struct pool *pool, const struct device *device, uint64_t give_up_at);

/* Whether anything is pending in the context. */
bool stream_settle_is_pending_in(struct pool *pool, const struct context *context);

/* Asks about what is pending there. Whether events of ours will tell when it is over; not those of
 * which the driver says that something is wrong. */
bool stream_settle_is_awaited(struct pool *pool, const struct context *context);

/* An event over all of the context's work so far, of our own; the caller destroys it. Under the
 * fence lock, so that no capture begins meanwhile. */
bool stream_settle_record_context(struct pool *pool, struct context *context, CUevent *event);

/* A context and who uses it: somebody who waits pins it only for single calls of the driver's,
 * since its end, or what only might be one, waits for pins. Whoever ends it himself needs none. */
struct visit {
    struct context *context;
    uint64_t generation;
    bool ends; /* by the calling thread */
};

/* Until the event is over, or, without one, our own are; or one of ours tells of memory that can go
 * back; or it is that time. What the driver says of the event. */
CUresult stream_settle_wait(struct pool *pool, const struct visit *visit, const CUevent *event,
                            uint64_t give_up_at);

/* Where the context may be about to end, the event ends with it. */
void stream_settle_destroy(struct pool *pool, const struct visit *visit, CUevent event);

#endif
