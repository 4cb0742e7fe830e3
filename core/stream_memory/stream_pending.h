/*
 * Finds out, for whole contexts and devices, which pending blocks have become clean: nothing can be
 * using them any more. It records fences, asks about them, or waits for a limited time. The callers
 * hold no lock.
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

/* Makes what has completed in the context clean, on all of its streams. NULL: in all contexts. */
void stream_pending_apply(struct pool *pool, const struct context *context);

/* Asks the driver about all fences and events of the device (NULL: all devices). A part is a block
 * that is cut out of a larger driver allocation, its segment. Clean parts return to their segments.
 */
void stream_pending_query(struct pool *pool, const struct device *device);

/* Asks once about the oldest fence of each of the device's contexts, for callers that could just as
 * well ask the driver for memory. Parts do not return to their segments. */
void stream_pending_query_once(struct pool *pool, const struct device *device);

/* The newest stamp of what is pending in the context; 0: nothing is. */
uint64_t stream_pending_newest(struct pool *pool, const struct context *context);

/* ---- fences ---- */

/* Sees to a fence for everything that is pending in the context, or on the device (NULL: on all
 * devices). */
void stream_pending_fence(struct pool *pool, struct context *context);
void stream_pending_fence_device(struct pool *pool, const struct device *device);

/* A capture is about to begin: no fence can be recorded during captures. Until
 * stream_pending_capture_has_come, a free that puts an operation into its stream is the driver's.
 */
void stream_pending_capture_comes(struct pool *pool);
void stream_pending_capture_has_come(struct pool *pool);

/* Whether a capture is about to begin or under way. The caller holds a stream's lock. */
bool stream_pending_capture_is_coming(const struct pool *pool);

/* ---- by waiting ---- */

/* Waits until all blocks that are pending on the device at the call have become clean. Stops early
 * once there is clean memory to release, or when the monotonic clock reaches give_up_at. The wait
 * may include work that was submitted after a free. */
void stream_pending_wait_until(struct pool *pool, const struct device *device, uint64_t give_up_at);

/* Waits until everything up to the stamp has completed in the context. Stops early once no fence
 * can show it, when the context may be ending, or when the monotonic clock reaches give_up_at. */
void stream_pending_wait_for(struct pool *pool, struct context *context, uint64_t stamp,
                             uint64_t give_up_at);

/* ---- one event for all of a context's work ---- */

/* Records an event after all of the context's work so far. The caller destroys the event. This
 * function takes the fence lock, so that no capture begins during the record. */
bool stream_pending_record_context(struct pool *pool, struct context *context, CUevent *event);

#endif
