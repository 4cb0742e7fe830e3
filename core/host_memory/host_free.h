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

#include "host_heap.h"

/* cuMemFreeHost of a recorded block, in a thread where the driver would free it. */
CUresult host_free(struct pool *pool, struct block *block, CUdeviceptr address);

/* The same by the driver, which answers. */
CUresult host_free_by_driver(struct pool *pool, struct block *block, CUdeviceptr address);

#endif
