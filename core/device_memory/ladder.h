/*
 * The ladder: how an allocation finds its block.
 *
 * It takes the first of:
 *   1. a clean block of its bucket, or one cut out of a larger one (parts.h): no driver call;
 *   2. a pending block whose fence turns out to be over;
 *   3. a new block from the driver, while pending bytes are inside the growth budget;
 *   4. a pending block after the oldest fence that frees one: behind a context barrier (the device
 *      waits) while one thread uses the heap, else after a wait on the host; but not where the host
 *      may have to act before the fence is over, see host_work.h; before rung 3 where memory is to
 *      stay hot (policy_keeps_hot);
 *   5. the driver; if it is out of memory, see release.h.
 *
 * Rung 1 takes no lock where the thread's cache has such a block: see thread_cache.h. What decides
 * between the rungs is in policies.h.
 */
#ifndef CUDAPOOL_CORE_LADDER_H
#define CUDAPOOL_CORE_LADDER_H

#include <stddef.h>

#include "heap.h"

/* cuMemAlloc in this context, which is current. No lock held. */
CUresult heap_allocate(struct pool *pool, struct context *context, CUdeviceptr *address,
                       size_t bytes);

/* A block of the size's bucket that nobody has had before, straight from the driver: for graphs,
 * which may use nothing that was freed while they were captured. */
CUresult heap_allocate_anew(struct pool *pool, struct context *context, CUdeviceptr *address,
                            size_t bytes);

#endif
