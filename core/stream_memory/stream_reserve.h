/*
 * How much free stream-ordered memory stays cached: the caps on free bytes, the ratio of reserved
 * to used bytes, and how long blocks may be idle. No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_STREAM_RESERVE_H
#define CUDAPOOL_CORE_STREAM_RESERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "mempool.h"
#include "stream_block.h"
#include "streams.h"

/* Whether a block that is being freed on the stream may stay within the device's cap. Releases
 * other blocks first if that helps. */
bool stream_reserve_keeps(struct pool *pool, struct stream *stream,
                          const struct stream_block *block);

/* Called when the free of a part has made a segment of the stream a whole block again. Keeps the
 * device within its cap: releases other blocks, or this one in the stream's order. */
void stream_reserve_keep_inside_caps(struct pool *pool, struct stream_ref ref, CUstream handle);

/* release_idle and watch of struct kind, for stream-ordered memory. */
uint64_t stream_reserve_release_idle(struct pool *pool, struct device *device, uint64_t now);
bool stream_reserve_watch(struct pool *pool);

/* Called after every FREES_PER_LOOK frees on a stream, and after a free of many bytes, of which the
 * housekeeper is told. Looks for blocks that have been idle for too long. bytes: of the free. */
void stream_reserve_look(struct pool *pool, struct stream *stream, uint64_t bytes);

/* Whether another block of this size may be reserved without releasing anything for it. */
bool stream_reserve_has_room(const struct pool *pool, const struct context *context,
                             const struct mempool *mempool, uint64_t bytes);

/* Called before a miss of this size on the stream. Keeps the reserve within its ratio, or within
 * what the driver's memory pool would keep itself. It releases clean blocks, then the stream's own
 * pending blocks in its order, then other streams' pending blocks, each after an event. Small
 * blocks are released only if a few large ones are not enough. It releases no more than the excess
 * and waits for nothing. Returns whether anything had to be released. */
bool stream_reserve_before_growth(struct pool *pool, struct context *context,
                                  const struct mempool *mempool, uint64_t bytes,
                                  struct stream_ref ref, CUstream handle);

#endif
