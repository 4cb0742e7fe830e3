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

/* A free on a stream that the pool serves. False: the pool does not serve the stream any more, or
 * not now; the part is still claimed. */
bool stream_part_free_in_order(struct pool *pool, struct stream_block *part, struct stream_ref ref,
                               CUstream handle);

/* A free on any other stream: the part waits for an event recorded after the stream's work so far.
 * Otherwise returns the error that the driver would return, and the program holds the part
 * again. */
CUresult stream_part_free_apart(struct pool *pool, struct stream_block *part, CUstream handle);

/* Whether the driver allows cuMemFree now; a capture may forbid it. An error, as above, gives the
 * part back to the program. */
CUresult stream_part_may_be_freed(struct pool *pool, struct stream_block *part);

/* A free where only the end of the context tells that the part's work has completed. An error, as
 * above, gives the part back to the program. */
CUresult stream_part_free_unknown(struct pool *pool, struct stream_block *part);

/* A free of a part whose context has died, and the context's work with it. */
void stream_part_free_of_dead(struct pool *pool, struct stream_block *part);

#endif
