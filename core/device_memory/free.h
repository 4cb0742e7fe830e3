/*
 * How a free travels that takes the heap's lock: into the thread's cache, into the heap's lists, or
 * to the driver.
 */
#ifndef CUDAPOOL_CORE_FREE_H
#define CUDAPOOL_CORE_FREE_H

#include <stdbool.h>

#include "driver_free.h"
#include "heap.h"

struct free_call {
    bool waitable;         /* the plain call would have waited for the context */
    heap_release *release; /* that call, where the block is the driver's to free */
    void *argument;
};

/* The program frees a block. No lock held. */
CUresult heap_free(struct pool *pool, struct block *block, CUdeviceptr address,
                   const struct free_call *call);

#endif
