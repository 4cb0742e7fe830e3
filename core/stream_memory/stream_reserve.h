/*
 * How much free memory of streams is kept: the caps on what is free, the ratio of what is reserved
 * to what is used, and how long blocks lie idle. No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_STREAM_RESERVE_H
#define CUDAPOOL_CORE_STREAM_RESERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "mempool.h"
#include "stream_block.h"
#include "streams.h"

/* Whether the block, which is being freed on the stream, may stay inside the device's cap, others
 * having been given back if that helps. */
bool stream_reserve_keeps(struct pool *pool, struct stream *stream,
                          const struct stream_block *block);

/* The same after the stream has got back a segment that nothing is left of, in the free of a part:
 * others are given back; or this one is, in the stream's order. */
void stream_reserve_keep_inside_caps(struct pool *pool, struct stream_ref ref, CUstream handle);

/* What struct kind says of release_idle and watch, for stream-ordered memory. */
uint64_t stream_reserve_release_idle(struct pool *pool, struct device *device, uint64_t now);
bool stream_reserve_watch(struct pool *pool);

/* Every so many frees, and after one of many bytes, which are told to neighbours: looks for blocks
 * that were idle for long. bytes: of the free. */
void stream_reserve_look(struct pool *pool, struct stream *stream, uint64_t bytes);

/* Whether another block of this size may be reserved with nothing given back for it. */
bool stream_reserve_has_room(struct pool *pool, const struct context *context,
                             const struct mempool *mempool, uint64_t bytes);

/* Before a miss of this size on the stream: keeps the reserve inside its ratio, or what the
 * driver's memory pool would keep itself. What is over goes back, then what the stream itself left
 * pending, in its own order, then what others did, each behind an event of ours; small blocks only
 * where a few large ones are not enough; no more than the excess, and nothing is waited for.
 * Whether anything had to go. */
bool stream_reserve_before_growth(struct pool *pool, struct context *context,
                                  const struct mempool *mempool, uint64_t bytes,
                                  struct stream_ref ref, CUstream handle);

#endif
