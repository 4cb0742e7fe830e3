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

/* cuMemFreeAsync of a block that lies in that shelf, of a stream that others order, where nothing
 * has to be seen to but that the marker comes behind it. The stream's lock is held, and is given.
 * False: nothing was done. */
bool stream_free_with_marker(struct pool *pool, struct shelf *shelf, struct stream_block *block,
                             CUdeviceptr address, CUstream handle);

/* cuMemFree of a claimed block, in its context, while no captures go on. The driver has seen
 * neither the last free in a stream's order nor the allocation since: where that free is not known
 * to be over, the block stays until all of the context's work is. False: the driver may have it; if
 * *behind is set, which the caller then uses, only behind that event. */
struct plain_free {
    struct stream *stream;
    struct own_event *behind;
};
bool stream_free_plainly(struct pool *pool, struct stream_block *block, struct plain_free *free);

/* The same of a part (stream_part_free.h), in any case: until all of the context's work is over. An
 * error, as the driver would say: the part is the program's again. */
CUresult stream_free_part_plainly(struct pool *pool, struct stream_block *part);

/* The same where the program has waited for nothing: all that its context has to do may use the
 * block. False: the driver may have it behind the event, and not without one. */
bool stream_free_behind_all(struct pool *pool, struct stream_block *block, struct plain_free *free);

/* Lets the driver free a claimed block by this call. */
typedef CUresult stream_release(struct pool *pool, const struct stream_block *block,
                                const void *argument);
CUresult stream_free_by_driver(struct pool *pool, struct stream_block *block,
                               stream_release *release, const void *argument);

/* The same by cuMemFree, or behind the event of stream_free_plainly, which is used up. */
CUresult stream_free_by_plain_call(struct pool *pool, struct stream_block *block,
                                   const struct plain_free *free);

/* The free, which nobody has waited for, of what a thread has claimed long ago in the block's life
 * with this generation; no capture goes on. The block stays until all that its context has to do is
 * over, or goes to the driver behind that. False: there is no event to stand for that, now. */
bool stream_free_late(struct pool *pool, CUdeviceptr address, uint64_t generation);

#endif
