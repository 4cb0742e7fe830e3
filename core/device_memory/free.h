/*
 * The path of a free that takes the heap lock. All other frees take the fast path of
 * thread_cache.h. The block enters the thread's cache or the heap's lists, or the driver frees it.
 */
#ifndef CUDAPOOL_CORE_FREE_H
#define CUDAPOOL_CORE_FREE_H

#include <stdbool.h>

#include "driver_free.h"
#include "heap.h"

struct free_call {
    bool waitable;         /* the driver's own free would have waited for the context */
    heap_release *release; /* the program's driver call, for blocks that the driver frees */
    void *argument;
};

/* Frees a block for the program. No lock held. */
CUresult heap_free(struct pool *pool, struct block *block, CUdeviceptr address,
                   const struct free_call *call);

#endif
