/*
 * Frees of parts (stream_parts.h): in a stream's order, on streams that the pool does not serve,
 * and plain ones. The driver knows nothing of a part, so each has to end without it.
 *
 * No lock is held by the callers. The part is claimed; where a function says so it is the program's
 * again afterwards.
 */
#ifndef CUDAPOOL_CORE_STREAM_PART_FREE_H
#define CUDAPOOL_CORE_STREAM_PART_FREE_H

#include <stdbool.h>

#include "core/driver/cuda_abi.h"
#include "stream_block.h"
#include "streams.h"

/* On a stream that is served. False: it is not any more, or not now; the part is still claimed. */
bool stream_part_free_in_order(struct pool *pool, struct stream_block *part, struct stream_ref ref,
                               CUstream handle);

/* On any other: the part waits for an event behind the stream's work so far. Else, as the driver
 * would say, an error, and the part is the program's again. */
CUresult stream_part_free_apart(struct pool *pool, struct stream_block *part, CUstream handle);

/* Whether cuMemFree may be called now, as the driver says where captures may mind. An error as
 * above. */
CUresult stream_part_may_be_freed(struct pool *pool, struct stream_block *part);

/* Where nothing but the end of its context tells when the part is over. An error as above. */
CUresult stream_part_free_unknown(struct pool *pool, struct stream_block *part);

/* The context has died, and its work with it. */
void stream_part_free_of_dead(struct pool *pool, struct stream_block *part);

#endif
