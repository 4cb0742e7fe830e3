/*
 * Pinned blocks that the driver frees: its call, the frees that it answers, and blocks that were
 * put aside.
 *
 * A block that the pool does not keep is freed by the driver, which waits for the context's work,
 * and keeps others out meanwhile. Without the pool that is what frees before have waited for, too.
 * Under it the program may have taken a lock since that this work needs. Then the block is put
 * aside and goes to the driver with what goes back next: in a later free, where memory is short, or
 * when the housekeeper finds that there is no work.
 *
 * No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_HOST_BY_DRIVER_H
#define CUDAPOOL_CORE_HOST_BY_DRIVER_H

#include "host_heap.h"

/* A block on its way to the driver; its record may be another's by the time that it gets there. */
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

/* Inside a free: waits, for a second at most, for what frees before it would have waited
 * for. True if that is over. */
bool host_frees_are_over(struct pool *pool, struct context *context);

/* The driver's call that frees a block. */
CUresult host_call_to_free(struct pool *pool, const struct host_leaving *leaving);

/* The driver frees a live block, and answers. */
CUresult host_free_by_driver(struct pool *pool, struct block *block, CUdeviceptr address);

/* The same later. generation: of the context. False if the block is not live there (any more). */
bool host_put_aside(struct host_heap *heap, struct block *block, CUdeviceptr address,
                    uint64_t generation);

/* Of the moment. */
static inline bool host_has_aside(const struct host_heap *heap)
{
    return atomic_load_explicit(&heap->aside, memory_order_relaxed) != NULL;
}

/* Where the driver may wait for what it has to: frees what was put aside. The bytes. */
uint64_t host_free_those_aside(struct pool *pool, struct host_heap *heap);

#endif
