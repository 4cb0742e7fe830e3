/*
 * Blocks that change hands: taken from the program, given to the driver, forgotten. See
 * stream_block.h. No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_STREAM_HANDS_H
#define CUDAPOOL_CORE_STREAM_HANDS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/driver.h"
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

/* The driver's cuMemFree, after which it goes on counting the block as used. */
CUresult stream_block_free_plainly(const struct driver *driver, const struct stream_block *block);

/* The program is about to free a claimed block by cuMemFree: in what the program is told its bytes
 * stay, as the driver has it. They are returned; and where the free fails, it holds them again. */
uint64_t stream_block_begin_plain_free(struct pool *pool, struct stream_block *block,
                                       struct shelf **counted);
void stream_block_plain_free_failed(struct stream_block *block, struct shelf *counted,
                                    uint64_t asked);

/* A block that was taken off a shelf has gone back to the driver. */
void stream_block_gone(struct pool *pool, struct stream_block *block);

/* The driver has just given this address out, or someone frees it past the pool: forgets a live
 * block there. False where the block is free, and so nobody's to free. */
bool stream_block_let_go(struct pool *pool, CUdeviceptr address);
void stream_block_forget_address(struct pool *pool, CUdeviceptr address);

#endif
