/*
 * Pinned blocks that the driver frees: the driver's call, frees that the driver answers, and
 * deferred frees.
 *
 * The driver frees a block that the pool does not cache. Its cuMemFreeHost waits for the context's
 * work and holds the driver's lock meanwhile. Without the pool, earlier frees would already have
 * waited for that work. With the pool, they may not have, and the program may since have taken a
 * lock that the work needs. In that case the block is put on the heap's list of deferred blocks
 * (heap->aside). The next release of memory frees it: in a later free, where memory is short, or
 * when the housekeeper finds that the context has no work.
 *
 * Callers hold no lock.
 */
#ifndef CUDAPOOL_CORE_HOST_BY_DRIVER_H
#define CUDAPOOL_CORE_HOST_BY_DRIVER_H

#include "host_heap.h"

/* A block on its way to the driver. It is a copy, since the block's record may be reused for
 * another block before the driver is called. */
struct host_leaving {
    struct context *context;
    CUdeviceptr address;
    uint64_t bytes;
    uint8_t origin;
};

static inline struct host_leaving host_leaving(const struct block *block)
{
    return (struct host_leaving){host_heap_of_block(block)->context, block_address(block),
                                 block->bytes, host_origin_of(block)};
}

/* Inside a free: waits, for a second at most, for the work that earlier frees would have waited for
 * without the pool. True if that work has completed. */
bool host_frees_are_over(struct pool *pool, struct context *context);

/* Calls the driver's function that frees the block. */
CUresult host_call_to_free(struct pool *pool, const struct host_leaving *leaving);

/* The driver frees a live block. Returns its answer. */
CUresult host_free_by_driver(struct pool *pool, struct block *block, CUdeviceptr address);

/* Defers the free of a live block: a later release of memory makes the driver free it. generation:
 * of the context. False if the block is not, or no longer, live at this address. */
bool host_defer_free(struct host_heap *heap, struct block *block, CUdeviceptr address,
                     uint64_t generation);

/* Whether there are deferred blocks. Another thread may change the answer at any time. */
static inline bool host_has_deferred(const struct host_heap *heap)
{
    return atomic_load_explicit(&heap->aside, memory_order_relaxed) != NULL;
}

/* Frees the deferred blocks. To be called where the driver may wait for the context's work. Returns
 * the bytes freed. */
uint64_t host_free_deferred(struct pool *pool, struct host_heap *heap);

#endif
