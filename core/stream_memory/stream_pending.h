/*
 * Finds out which pending blocks have become clean: by queries, or by waiting for a limited time.
 * No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_STREAM_PENDING_H
#define CUDAPOOL_CORE_STREAM_PENDING_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "streams.h"

/* How long the end of a context waits for its pending blocks, at most. */
#define PATIENCE_NANOSECONDS (UINT64_C(10) * 1000 * 1000 * 1000)

/* ---- by asking ---- */

/* Asks the driver about all pending blocks of the device (NULL: all devices). Parts that are clean
 * return to their segments. */
void stream_pending_query(struct pool *pool, const struct device *device);

/* Asks about all pending blocks of the device by this query of own_event_query.h. Parts do not
 * return to their segments. */
void stream_pending_query_by(struct pool *pool, const struct device *device,
                             bool (*query)(struct pool *, struct stream *, uint64_t));

/* ---- by waiting ---- */

/* Waits until all blocks that were pending on the device have become clean. Stops early once there
 * is clean memory to release, or when the monotonic clock shows give_up_at. This may also wait for
 * work that was submitted after a free. */
void stream_pending_wait_until(struct pool *pool, const struct device *device, uint64_t give_up_at);

/* Whether anything is pending in the context. */
bool stream_pending_in_context(struct pool *pool, const struct context *context);

/* Asks about the pending blocks of the context. Returns whether events will tell when they are
 * clean. An event for which the driver reports an error does not count. */
bool stream_pending_has_events(struct pool *pool, const struct context *context);

/* Records an event after all of the context's work so far. The caller destroys the event. The fence
 * lock is taken, so that no capture begins meanwhile. */
bool stream_pending_record_context(struct pool *pool, struct context *context, CUevent *event);

/* A context that a thread waits for. The thread pins it only for single driver calls, because the
 * context's end, or a call that may be its end, waits for pins. A thread that itself ends the
 * context needs no pin. */
struct visit {
    struct context *context;
    uint64_t generation;
    bool ends; /* by the calling thread */
};

/* Waits until the event has completed, or without an event until the pool's own events have. Stops
 * early once clean memory can be released, or when the monotonic clock shows give_up_at. Returns
 * what the driver says of the event. */
CUresult stream_pending_wait(struct pool *pool, const struct visit *visit, const CUevent *event,
                             uint64_t give_up_at);

/* Destroys the event. If the context may be about to end, the event ends with it instead. */
void stream_pending_destroy_event(struct pool *pool, const struct visit *visit, CUevent event);

#endif
