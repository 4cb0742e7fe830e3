/*
 * Frees of parts (stream_parts.h): in a stream's order, on streams that the pool does not serve,
 * and by cuMemFree. The driver knows nothing of a part, so the pool has to complete each of these
 * frees itself.
 *
 * No lock is held by the callers. The part is claimed. Where a function says so, the program holds
 * it again afterwards.
 */
#ifndef CUDAPOOL_CORE_STREAM_PART_FREE_H
#define CUDAPOOL_CORE_STREAM_PART_FREE_H

#include <stdbool.h>

#include "core/driver/cuda_abi.h"
#include "stream_block.h"
#include "streams.h"

/* A free on the stream of the part's segment, whose order is enough: the part is spare at once.
 * False: the stream is another one, its order is not enough, or the pool does not serve it now. The
 * part is still claimed. */
bool stream_part_free_in_order(struct pool *pool, struct stream_block *part, struct stream_ref ref,
                               CUstream handle);

/* A free on any other stream: the part waits for an event recorded after the stream's work so far.
 * Otherwise returns the error that the driver would return, and the program holds the part
 * again. */
CUresult stream_part_free_apart(struct pool *pool, struct stream_block *part, CUstream handle);

/* cuMemFree. The part waits for all work of its context so far. An error, as above, gives the part
 * back to the program: a capture forbids the call. */
CUresult stream_part_free_plainly(struct pool *pool, struct stream_block *part);

/* A free that no capture can forbid, since the program has made it before. The part waits for all
 * work of its context so far. */
void stream_part_free_late(struct pool *pool, struct stream_block *part);

#endif
