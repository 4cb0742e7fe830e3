/*
 * A free of pinned memory.
 *
 * The block is stamped and pending in a bin of the calling thread's shard. Not every free closes an
 * epoch: one for so many blocks, or bytes, serves the others as well, and one that is large has its
 * own. A free waits as long as the driver's would have where there is work that ends only if the
 * host acts, for a while after an allocation has waited in vain, and with host.free_synchronizes;
 * and beside other contexts' work, for which no allocation waits, until pending bytes are back
 * inside the growth budget.
 *
 * No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_HOST_FREE_H
#define CUDAPOOL_CORE_HOST_FREE_H

#include "core/contexts/epoch.h"
#include "host_heap.h"

/* What follows where host_put says that there may be more to do. Gives the shard's lock back. */
CUresult host_finish_free(struct pool *pool, struct host_shard *shard, struct host_bin *bin,
                          uint64_t stamp);

/* The same as host_put, and what follows, for the first free of an epoch. Likewise. */
CUresult host_free_in_new_epoch(struct pool *pool, struct host_shard *shard, struct host_bin *bin,
                                struct block *block, CUdeviceptr address, uint64_t stamp);

/* Puts a block that the calling thread has claimed into the bin, with a stamp that the shard's
 * threads have begun to free in; true: host_finish_free is to follow. The shard's lock is held, so
 * that stamps ascend in each list. */
static inline bool host_put(struct host_shard *shard, struct host_bin *bin, struct block *block,
                            CUdeviceptr address, uint64_t stamp)
{
    lock_must_be_held(&shard->lock);
    host_add_pending(shard, bin, block, address, stamp);
    shard->frees_left--;
    shard->bytes_left -= (int64_t)bin->bytes;
    return shard->frees_left <= 0 || shard->bytes_left <= 0;
}

/* The number to stamp a claimed block with. Why it may be read without the context's lock is told
 * in core/device_memory/thread_cache.h: whatever this thread has submitted was submitted before. */
static inline uint64_t host_stamp(const struct host_heap *heap)
{
    return epoch_current(&heap->context->epochs);
}

/* cuMemFreeHost of a recorded block, in a thread where the driver would free it. */
CUresult host_free(struct pool *pool, struct block *block, CUdeviceptr address);

#endif
