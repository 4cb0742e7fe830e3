/*
 * Freeing on a stream: what the free puts into the stream, and whether the block is cached.
 * stream_heap.h says when. The callers hold no lock.
 */
#ifndef CUDAPOOL_CORE_STREAM_FREE_H
#define CUDAPOOL_CORE_STREAM_FREE_H

#include <stdbool.h>

#include "core/driver/cuda_abi.h"
#include "stream_block.h"
#include "stream_release.h"
#include "streams.h"

/* cuMemFreeAsync of a claimed block. False: the block belongs to the caller alone. The caller lets
 * the driver free it and then calls stream_block_freed or stream_block_free_failed. */
bool stream_free_in_order(struct pool *pool, struct stream_block *block, struct stream_ref ref,
                          CUstream handle);

/* cuMemFreeAsync of a block that this shelf counts, on a stream that others order, if nothing but
 * the marker is needed after the free. The caller holds the stream's lock, and the function
 * releases it. False: nothing was done. */
bool stream_free_with_marker(struct pool *pool, struct shelf *shelf, struct stream_block *block,
                             CUdeviceptr address, CUstream handle);

/* cuMemFree of a claimed block, in its context, while no captures are under way. The driver has
 * seen neither the block's last free in a stream's order nor the allocation since. Unless that free
 * is known to have completed, the block stays until all of the context's work has. False: the
 * driver may free it. If behind->event is set, it may do so only ordered after that event, which
 * the call that frees it destroys. */
bool stream_free_plainly(struct pool *pool, struct stream_block *block, struct fence_event *behind);

/* Like stream_free_plainly, but the program has waited for nothing: any work of the context may
 * still use the block. False: the driver may free it ordered after the event behind->event, and not
 * without one. */
bool stream_free_behind_all(struct pool *pool, struct stream_block *block,
                            struct fence_event *behind);

/* Lets the driver free a claimed block by calling release. */
typedef CUresult stream_release(struct pool *pool, const struct stream_block *block,
                                const void *argument);
CUresult stream_free_by_driver(struct pool *pool, struct stream_block *block,
                               stream_release *release, const void *argument);

/* Lets the driver free a claimed block by cuMemFree, or ordered after the event of
 * stream_free_plainly, which is destroyed. */
CUresult stream_free_by_plain_call(struct pool *pool, struct stream_block *block,
                                   const struct fence_event *behind);

/* Ends a free that nobody has waited for. A thread has claimed the block earlier, while it had this
 * generation. No capture is under way. The block stays until all of its context's work has
 * completed, or is released to the driver ordered after that work. False: no event for that can be
 * had now. */
bool stream_free_late(struct pool *pool, CUdeviceptr address, uint64_t generation);

#endif
