/*
 * A free of pinned memory.
 *
 * A free stamps the block with the current epoch and puts it, pending, into a bin of the calling
 * thread's shard. Not every free closes an epoch: one does for a number of blocks or bytes, and a
 * large block closes its own.
 *
 * A free may wait as long as the driver's free would have. It does so with host.free_synchronizes
 * and beside work that ends only if the host acts. It also does so for a while after an allocation
 * has waited for a second without result. Allocations do not wait for other contexts' work. So
 * beside such work a free also waits until pending bytes are within the growth budget.
 *
 * Callers hold no lock.
 */
#ifndef CUDAPOOL_CORE_HOST_FREE_H
#define CUDAPOOL_CORE_HOST_FREE_H

#include "core/contexts/epoch.h"
#include "host_heap.h"

/* Completes a free for which host_put has returned true. Takes over the shard's lock, and releases
 * it. */
CUresult host_finish_free(struct pool *pool, struct host_shard *shard, struct host_bin *bin,
                          uint64_t stamp);

/* host_put for the first free of an epoch, and what follows it. Takes over the shard's lock, and
 * releases it. */
CUresult host_free_in_new_epoch(struct pool *pool, struct host_shard *shard, struct host_bin *bin,
                                struct block *block, CUdeviceptr address, uint64_t stamp);

/* Puts a block that the calling thread has claimed into the bin. stamp: an epoch for which the
 * shard has had host_begin_epoch. True: the caller must call host_finish_free. The shard's lock is
 * held, so that stamps ascend in each list. */
static inline bool host_put(struct host_shard *shard, struct host_bin *bin, struct block *block,
                            CUdeviceptr address, uint64_t stamp)
{
    lock_must_be_held(&shard->lock);
    host_add_pending(shard, bin, block, address, stamp);
    shard->frees_left--;
    shard->bytes_left -= (int64_t)bin->bytes;
    return shard->frees_left <= 0 || shard->bytes_left <= 0;
}

/* The epoch to stamp a claimed block with. core/device_memory/thread_cache.h says why it may be
 * read without the context's lock: this thread submitted all of its work before this load. */
static inline uint64_t host_stamp(const struct host_heap *heap)
{
    return epoch_current(&heap->context->epochs);
}

/* cuMemFreeHost of a block with a record. The calling thread is one in which the driver would free
 * it. */
CUresult host_free(struct pool *pool, struct block *block, CUdeviceptr address);

#endif
