/*
 * Frees of parts (stream_parts.h): in the order of the segment's stream, on other streams, and by
 * cuMemFree. The driver knows nothing of a part, so the pool has to complete each free itself.
 *
 * The callers hold no lock and have claimed the part. Where a function returns an error, the
 * program holds the part again.
 */
#ifndef CUDAPOOL_CORE_STREAM_PART_FREE_H
#define CUDAPOOL_CORE_STREAM_PART_FREE_H

#include <stdbool.h>

#include "core/driver/cuda_abi.h"
#include "stream_block.h"
#include "streams.h"

/* A free on a stream of the part's context. On the stream of its segment, whose order is enough,
 * the part is spare at once. Otherwise it waits for a fence of the context. False: the stream
 * changed meanwhile, or no fence can be had. The caller then still has the claimed part. */
bool stream_part_free_in_order(struct pool *pool, struct stream_block *part, struct stream_ref ref,
                               CUstream handle);

/* Frees a part for which stream_part_free_in_order has returned false. The part waits for an event
 * recorded after the stream's work so far. Without an event the thread waits for that work. Returns
 * the error that the driver would return; the program then holds the part again. */
CUresult stream_part_free_apart(struct pool *pool, struct stream_block *part, CUstream handle);

/* cuMemFree. The part waits for all work of its context so far. An error, as above, gives the part
 * back to the program: a capture forbids the call. */
CUresult stream_part_free_plainly(struct pool *pool, struct stream_block *part);

/* A free that no capture can forbid, since the program has made it before. The part waits for all
 * work of its context so far. */
void stream_part_free_late(struct pool *pool, struct stream_block *part);

#endif
