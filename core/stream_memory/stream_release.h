/*
 * Giving stream-ordered memory back: caps, the reserve ratio, idle blocks, out of memory.
 *
 * What is known to be over is given back by cuMemFreeAsync on the context's own stream for that
 * (release.h), which orders nothing of the program's behind anything. What is not known to be over
 * stays, except where the order is there already: on the very stream, inside the program's own
 * allocation or free on it. So no allocation of the driver's is ever put behind work that the
 * program submitted after the free. No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_STREAM_RELEASE_H
#define CUDAPOOL_CORE_STREAM_RELEASE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/device_memory/release.h"
#include "stream_heap.h"

/* Bytes of stream-ordered blocks, of one device or (NULL) all. */
struct stream_bytes {
    uint64_t live, cached, pending, requested; /* requested: of the live ones, as asked for, in the
                                                  driver's granules */
};
struct stream_bytes stream_release_sum(struct pool *pool, const struct device *device);

/* Whether the block, which is being freed on the stream, may stay inside the device's cap, others
 * having been given back if that helps. */
bool stream_release_room(struct pool *pool, struct stream *stream,
                         const struct stream_block *block);

/* Every so many frees: looks for blocks that were idle for long. */
void stream_release_look(struct pool *pool, struct stream *stream);

/* Whether another block of this size may be reserved with nothing given back for it. */
bool stream_release_has_room(struct pool *pool, const struct context *context,
                             const struct mempool *mempool, uint64_t bytes);

/* Gives one address back behind an event of ours, inside the driver. */
bool stream_release_one_behind(struct pool *pool, const struct own_event *event,
                               CUdeviceptr address);

/* Before a miss of this size on the stream: keeps the reserve inside its ratio, or what the
 * driver's memory pool would keep itself. What is over goes back, then what the stream itself left
 * pending, in its own order, then what others did, each behind an event of ours; no more than the
 * excess, and nothing is waited for. Whether anything had to go. */
bool stream_release_before_growth(struct pool *pool, struct context *context,
                                  const struct mempool *mempool, uint64_t bytes,
                                  struct stream_ref ref, CUstream handle);

/* Gives back what is known to be over on the device (NULL: all) until so many bytes are; returns
 * how many were. */
uint64_t stream_release_clean(struct pool *pool, const struct device *device, uint64_t bytes,
                              enum eviction reason, enum release_place place);

/* Asks about everything that is pending on the device (NULL: all). */
void stream_release_settle(struct pool *pool, const struct device *device);

/* The same with patience: until all that was pending is over, or it is this time on the monotonic
 * clock. Work that was submitted after a free may be waited for. */
void stream_release_settle_until(struct pool *pool, const struct device *device,
                                 uint64_t give_up_at);

/* That wait was in vain: so it is taken to be for so many nanoseconds. */
bool stream_release_is_vain(const struct device *device);
void stream_release_was_vain(const struct device *device, uint64_t nanoseconds);

/* Out of memory, in an allocation on this stream: hands the stream's pending blocks to the driver
 * in the stream's own order, unless others order it: then an operation in it could hold somebody
 * up. The bytes. */
uint64_t stream_release_in_order(struct pool *pool, struct stream_ref ref, CUstream handle);

/* The same where others order the stream: behind events of ours, on a stream of ours, whence the
 * driver may have its ways to give them out at once. The stamp up to which they were pending, for a
 * wait until they are back: for so long as anybody waits who is out of memory. */
uint64_t stream_release_behind(struct pool *pool, struct stream_ref ref, struct context *context,
                               uint64_t *stamp);
bool stream_release_wait_behind(struct pool *pool, struct stream *stream, uint64_t stamp);

/* Gives back blocks of the memory pool: those known to be over, or, where it is about to be
 * destroyed and nothing will be allocated from it any more, all. */
void stream_release_mempool(struct pool *pool, const struct mempool *mempool, uint64_t bytes,
                            bool all);

/* The context is about to end, and can still be asked about; then it is kept from others, and all
 * of its streams' blocks go back, after its work. */
void stream_release_before_end(struct pool *pool, struct context *context);
void stream_release_context(struct pool *pool, struct context *context);

/* It has ended: what could not be given back is forgotten. */
void stream_release_forget(struct pool *pool, struct context *context);

#endif
