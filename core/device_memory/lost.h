/*
 * Blocks that the pool loses without giving them back: their context ends, someone frees them past
 * the pool, or the driver gives their address to another.
 *
 * No driver call is made here. Called without the heap's lock, which is taken inside.
 */
#ifndef CUDAPOOL_CORE_LOST_H
#define CUDAPOOL_CORE_LOST_H

#include <stdbool.h>

#include "heap.h"

/* Around the driver call that may end the context: meanwhile every allocation is the driver's to
 * answer, since a block may be gone already. */
void heap_set_ending(struct heap *heap, bool ending);

/* The context's memory is gone with it: forgets all blocks, keeps the counters. */
void heap_reset(struct pool *pool, struct context *context);

/* Someone frees this address past the pool: forgets a live block there. False where the block is
 * free, and so nobody's to free, or a part, of which the driver knows nothing. */
bool heap_let_go(struct pool *pool, CUdeviceptr address);

/* Forgets a record of this address, if there is one: the driver has just given the address out,
 * so whoever had it before was freed behind our back. */
void heap_forget_address(struct pool *pool, CUdeviceptr address);

#endif
