/*
 * Finds out which pending blocks have become clean, which means that nothing can be using them. It
 * queries the driver, or waits for a limited time. The callers hold no lock.
 */
#ifndef CUDAPOOL_CORE_STREAM_PENDING_H
#define CUDAPOOL_CORE_STREAM_PENDING_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "streams.h"

/* How long the end of a context waits for its pending blocks, at most. */
#define CONTEXT_END_WAIT_NANOSECONDS (UINT64_C(10) * 1000 * 1000 * 1000)

/* ---- by asking ---- */

/* Asks the driver about all pending blocks of the device (NULL: all devices). A part is a block
 * that is cut out of a larger driver allocation, its segment. Clean parts return to their
 * segments. */
void stream_pending_query(struct pool *pool, const struct device *device);

/* Asks about all pending blocks of the device. The argument query is a function of
 * own_event_query.h. Parts do not return to their segments. */
void stream_pending_query_by(struct pool *pool, const struct device *device,
                             bool (*query)(struct pool *, struct stream *, uint64_t));

/* ---- by waiting ---- */

/* Waits until all blocks that are pending on the device at the call have become clean. Stops early
 * once there is clean memory to release, or when the monotonic clock reaches give_up_at. The wait
 * may include work that was submitted after a free. */
void stream_pending_wait_until(struct pool *pool, const struct device *device, uint64_t give_up_at);

/* Whether anything is pending in the context. */
bool stream_pending_in_context(struct pool *pool, const struct context *context);

/* Asks about the pending blocks of the context. Returns whether events can show when these blocks
 * become clean. An event for which the driver reports an error does not count. */
bool stream_pending_has_events(struct pool *pool, const struct context *context);

/* Records an event after all of the context's work so far. The caller destroys the event. This
 * function takes the fence lock, so that no capture begins during the record. */
bool stream_pending_record_context(struct pool *pool, struct context *context, CUevent *event);

/* A context that a thread waits for. The thread pins the context only during single driver
 * calls. A longer pin would block the context's end, or a call that may be its end, because both
 * wait for pins. A thread that itself ends the context needs no pin. */
struct visit {
    struct context *context;
    uint64_t generation;
    bool ends; /* the calling thread ends the context */
};

/* Waits until the event has completed. If event is NULL, waits until the pool's own events have
 * completed. Stops early once clean memory can be released, or when the monotonic clock reaches
 * give_up_at. Returns what the driver says of the event. */
CUresult stream_pending_wait(struct pool *pool, const struct visit *visit, const CUevent *event,
                             uint64_t give_up_at);

/* Destroys the event, unless the context may be about to end. Then the context's end destroys the
 * event. */
void stream_pending_destroy_event(struct pool *pool, const struct visit *visit, CUevent event);

#endif
