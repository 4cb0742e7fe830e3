/*
 * Freeing on a stream: what the free puts into it, and whether the block stays. stream_heap.h says
 * when it does. No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_STREAM_FREE_H
#define CUDAPOOL_CORE_STREAM_FREE_H

#include <stdbool.h>

#include "core/driver/cuda_abi.h"
#include "stream_block.h"
#include "streams.h"

/* cuMemFreeAsync of a claimed block. False: it is now in nobody's hands but the caller's, who lets
 * the driver free it and calls stream_block_left or stream_block_came_back. */
bool stream_free_in_order(struct pool *pool, struct stream_block *block, struct stream_ref ref,
                          CUstream handle);

/* cuMemFree of a claimed block, in its context, while no captures go on. The driver has seen
 * neither the last free in a stream's order nor the allocation since: where that free is not known
 * to be over, the block stays until all of the context's work is. False: the driver may have it; if
 * *behind is set, which the caller then uses, only behind that event. */
struct plain_free {
    struct stream *stream;
    struct own_event *behind;
};
bool stream_free_plainly(struct pool *pool, struct stream_block *block, struct plain_free *free);

#endif
