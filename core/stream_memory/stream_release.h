/*
 * Giving stream-ordered memory back: known to be over, in a stream's own order, or behind an event.
 *
 * What is known to be over is given back by cuMemFreeAsync on the context's own stream for that
 * (return_stream.h), which orders nothing of the program's behind anything. What is not known to be
 * over stays, except where the order is there already: on the very stream, inside the program's own
 * allocation or free on it. So no allocation of the driver's is ever put behind work that the
 * program submitted after the free. No lock is held by the callers.
 *
 * Device memory chooses what to give back from one heap under one lock (release.h there). Here it
 * lies in many streams, each under a lock of its own, and may go behind an event: so the two have
 * in common only where it goes, and how it is counted.
 */
#ifndef CUDAPOOL_CORE_STREAM_RELEASE_H
#define CUDAPOOL_CORE_STREAM_RELEASE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/contexts/return_stream.h"
#include "core/driver/cuda_abi.h"
#include "stream_choice.h"
#include "streams.h"

/* ---- what is known to be over ---- */

/* Gives back what is known to be over on the device (NULL: all) until so many bytes are; returns
 * how many were. */
uint64_t stream_release_clean(struct pool *pool, const struct device *device, uint64_t bytes,
                              enum eviction reason, enum release_place place);

/* The same of what is chosen, in all contexts of the device; and in one. */
uint64_t stream_release_chosen(struct pool *pool, const struct device *device, struct choice choice,
                               uint64_t bytes, enum eviction reason, enum release_place place);
uint64_t stream_release_in(struct pool *pool, struct context *context, struct choice choice,
                           uint64_t wanted, enum eviction reason, enum release_place place);

/* The same in the choice's context, which is pinned or ending; after: behind this event of ours, or
 * NULL. */
uint64_t stream_give_back(const struct choice *choice, uint64_t wanted, enum eviction reason,
                          const struct own_event *after, enum release_place place);

/* The same of these blocks, chained and away like those of a choice; NULL: of none. None of them
 * comes back: of what it was used for other streams may know alone. */
void stream_release_chain(struct pool *pool, struct context *context, struct block *chain,
                          enum eviction reason, const struct own_event *after);

/* ---- in a stream's own order ---- */

/* Out of memory, in an allocation on this stream: hands the stream's pending blocks to the driver
 * in the stream's own order, unless others order it: then an operation in it could hold somebody
 * up. The bytes. */
uint64_t stream_release_in_order(struct pool *pool, struct stream_ref ref, CUstream handle);

/* The same of so many bytes, for this reason. */
uint64_t stream_release_in_order_up_to(struct pool *pool, struct stream_ref ref, CUstream handle,
                                       uint64_t bytes, enum eviction reason);

/* The same of all, where the context is ending, and the stream's work with it. */
void stream_release_at_the_end(struct pool *pool, struct stream_ref ref, CUstream handle);

/* ---- behind events of ours ---- */

/* Gives one address back behind an event of ours, inside the driver. */
bool stream_release_one_behind(struct pool *pool, const struct own_event *event,
                               CUdeviceptr address);

/* Of any stream of the context, which is pinned, that has at least so much pending: until so many
 * bytes are on their way. */
uint64_t stream_release_behind_events(struct pool *pool, struct context *context, uint64_t bytes,
                                      uint64_t at_least);

/* The same where others order the stream: behind events of ours, on a stream of ours, whence the
 * driver may have its ways to give them out at once. The stamp up to which they were pending, for a
 * wait until they are back: for so long as anybody waits who is out of memory. */
uint64_t stream_release_behind(struct pool *pool, struct stream_ref ref, struct context *context,
                               uint64_t *stamp);
bool stream_release_wait_behind(struct pool *pool, struct stream *stream, uint64_t stamp);

/* ---- devices ---- */

/* For walks through contexts, which take a device that they might change. */
static inline struct device *changeable(const struct device *device)
{
    return (struct device *)(uintptr_t)device;
}

#endif
