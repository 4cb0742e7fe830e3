/*
 * The ladder: how an allocation finds its block.
 *
 * An allocation takes the first of these:
 *   1. A clean block of its bucket, or one cut out of a larger block (parts.h). This makes no
 *      driver call.
 *   2. A pending block whose fence turns out to have completed.
 *   3. A new block from the driver, while pending bytes are within the growth budget.
 *   4. A pending block, ordered after the oldest fence that makes one clean. While one thread uses
 *      the heap, the device waits, in a context barrier; otherwise the host waits. Nobody waits for
 *      a fence that may need the host to act first (host_work.h). Where memory is to stay hot
 *      (policy_keeps_hot), this rung comes before rung 3.
 *   5. A new block from the driver. release.h says what happens if the driver is out of memory.
 *
 * Rung 1 takes no lock where the thread's cache has such a block (thread_cache.h). policies.h holds
 * the decisions between the rungs.
 */
#ifndef CUDAPOOL_CORE_LADDER_H
#define CUDAPOOL_CORE_LADDER_H

#include <stddef.h>

#include "heap.h"

/* Answers cuMemAlloc in this context, which is current. No lock held. */
CUresult heap_allocate(struct pool *pool, struct context *context, CUdeviceptr *address,
                       size_t bytes);

/* Allocates a block of the size's bucket that nobody has had before, straight from the driver.
 * Graphs need such blocks: they may use nothing that was freed while they were captured. */
CUresult heap_allocate_anew(struct pool *pool, struct context *context, CUdeviceptr *address,
                            size_t bytes);

#endif
