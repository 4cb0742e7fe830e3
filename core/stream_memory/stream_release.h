/*
 * Releases stream-ordered memory to the driver: clean blocks, pending blocks in their own stream's
 * order, and pending blocks ordered after an event.
 *
 * Clean blocks are released by cuMemFreeAsync on a stream of the pool's own for each context
 * (return_stream.h). It orders none of the program's work after anything. Pending blocks stay,
 * except where the order exists already: on the very stream of the free, inside the program's own
 * allocation or free there. So the driver never orders an allocation after work that the program
 * submitted after the free. No lock is held by the callers.
 *
 * Device memory chooses what to release from one heap under one lock (release.h there).
 * Stream-ordered memory lies in many streams, each with a lock of its own, and may be released
 * after an event. So the two share only the place that they release to, and the counting.
 */
#ifndef CUDAPOOL_CORE_STREAM_RELEASE_H
#define CUDAPOOL_CORE_STREAM_RELEASE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/contexts/return_stream.h"
#include "core/driver/cuda_abi.h"
#include "stream_choice.h"
#include "streams.h"

/* ---- clean blocks ---- */

/* Releases clean blocks of the device (NULL: all devices) until so many bytes are released. Returns
 * the bytes released. */
uint64_t stream_release_clean(struct pool *pool, const struct device *device, uint64_t bytes,
                              enum eviction reason, enum release_place place);

/* Release blocks of this choice in all contexts of the device, or in one context. Return the bytes
 * released. */
uint64_t stream_release_chosen(struct pool *pool, const struct device *device, struct choice choice,
                               uint64_t bytes, enum eviction reason, enum release_place place);
uint64_t stream_release_in(struct pool *pool, struct context *context, struct choice choice,
                           uint64_t wanted, enum eviction reason, enum release_place place);

/* Releases blocks of the choice in its context, which is pinned or ending. after: an event of the
 * pool's own that the release is ordered after, or NULL. Returns the bytes released. */
uint64_t stream_give_back(const struct choice *choice, uint64_t wanted, enum eviction reason,
                          const CUevent *after, enum release_place place);

/* Releases these blocks, which are chained and detached like those of a choice; NULL: there are
 * none. after: as in stream_give_back. A block that the driver refuses is forgotten, not returned
 * to its shelf, because no stamp tells when its work has completed. */
void stream_release_chain(struct pool *pool, struct context *context, struct block *chain,
                          enum eviction reason, const CUevent *after);

/* ---- in a stream's own order ---- */

/* In an allocation on this stream: releases up to so many bytes of the stream's pending blocks in
 * the stream's own order. If others order the stream it releases nothing, because an operation in
 * the stream could hold others up. Returns the bytes released. */
uint64_t stream_release_in_order(struct pool *pool, struct stream_ref ref, CUstream handle,
                                 uint64_t bytes, enum eviction reason);

/* Releases all pending blocks of the stream in its own order, also where others order it: the
 * context is ending, and the stream's work with it. */
void stream_release_at_the_end(struct pool *pool, struct stream_ref ref, CUstream handle);

/* ---- after events that were recorded in frees ---- */

/* Releases one address, ordered after this event. Called within enter_driver and leave_driver. */
bool stream_release_one_behind(struct pool *pool, const struct fence_event *behind,
                               CUdeviceptr address);

/* Releases blocks of every stream of the context, which is pinned, that has at least this many
 * bytes pending. Each release is ordered after an event. Stops once so many bytes are released.
 * *missed, if not NULL: set where another thread has an event, to ask the driver about it. */
uint64_t stream_release_behind_events(struct pool *pool, struct context *context, uint64_t bytes,
                                      uint64_t at_least, bool *missed);

/* Does the same for all that is pending, where memory has run out. Waits up to 100 ms for an event
 * that another thread has. */
uint64_t stream_release_behind_every_event(struct pool *pool, struct context *context);

/* stream_release_behind releases the pending blocks of a stream that others order. The release is
 * ordered after events of the stream's frees, on a stream of the pool's own. The driver may have
 * ways to give out at once what is freed there. *stamp: the newest stamp that an event stands for.
 * stream_release_wait_behind waits until everything up to that stamp has completed, as long as a
 * thread that is out of memory may wait. True: it has. */
uint64_t stream_release_behind(struct pool *pool, struct stream_ref ref, struct context *context,
                               uint64_t *stamp);
bool stream_release_wait_behind(struct pool *pool, struct stream *stream, uint64_t stamp);

/* ---- devices ---- */

/* context_next takes a device that it could change. */
static inline struct device *changeable(const struct device *device)
{
    return (struct device *)(uintptr_t)device;
}

#endif
