/*
 * Blocks that change hands: taken from the program, given to the driver, forgotten. See
 * stream_block.h. No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_STREAM_HANDS_H
#define CUDAPOOL_CORE_STREAM_HANDS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "stream_block.h"
#include "streams.h"

/* Takes a block out of the program's hands: true for one thread, and only while the program holds
 * it at this address. */
bool stream_block_claim(struct stream_block *block, CUdeviceptr address);

/* A claimed block leaves the counts of the shelf that it was handed out from, in whose name it
 * stays; and comes back to them, still claimed. */
void stream_block_leave_shelf(struct stream_block *block);
void stream_block_return_to_shelf(struct stream_block *block);

/* A claimed block leaves the table, for the driver to free it; then it was freed, or it was not and
 * is the program's again. nanoseconds: what the driver's free has taken. */
void stream_block_leave(struct pool *pool, struct stream_block *block);
void stream_block_left(struct pool *pool, struct stream_block *block, uint64_t nanoseconds);
void stream_block_came_back(struct pool *pool, struct stream_block *block);

/* A block that was taken off a shelf has gone back to the driver. */
void stream_block_gone(struct pool *pool, struct stream_block *block);

/* The driver has just given this address out, or someone frees it past the pool: forgets a live
 * block there. False where the block is free, and so nobody's to free. */
bool stream_block_let_go(struct pool *pool, CUdeviceptr address);
void stream_block_forget_address(struct pool *pool, CUdeviceptr address);

#endif
