/*
 * Stream-ordered blocks that change owner: claimed from the program, freed by the driver, or
 * forgotten. stream_block.h names the possible owners of a record. No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_STREAM_OWNER_H
#define CUDAPOOL_CORE_STREAM_OWNER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/driver.h"
#include "stream_block.h"
#include "streams.h"

/* Claims a block: the program no longer holds it, and only the calling thread may dispose of it.
 * True for one thread, and only while the program holds the block at this address. */
bool stream_block_claim(struct stream_block *block, CUdeviceptr address);

/* stream_block_leave_shelf takes a claimed block out of the counts of its shelf. The block's shelf
 * field stays. stream_block_return_to_shelf counts the block there again; it is still claimed. */
void stream_block_leave_shelf(struct stream_block *block);
void stream_block_return_to_shelf(struct stream_block *block);

/* stream_block_begin_free takes a claimed block out of the table, so that the driver can free it.
 * The caller then calls stream_block_freed if the driver has freed the block, and
 * stream_block_free_failed if it has not. In the latter case the program holds the block again.
 * nanoseconds: the duration of the driver's free. */
void stream_block_begin_free(struct pool *pool, struct stream_block *block);
void stream_block_freed(struct pool *pool, struct stream_block *block, uint64_t nanoseconds);
void stream_block_free_failed(struct pool *pool, struct stream_block *block);

/* Frees the block by the driver's cuMemFree. The driver goes on counting such a block as used, so
 * its bytes are added to mempool->stays. */
CUresult stream_block_free_plainly(const struct driver *driver, const struct stream_block *block);

/* Called before the program's cuMemFree of a claimed block is carried out. The driver goes on
 * reporting such bytes as used, so the block's requested bytes move from used_bytes to
 * plainly_freed. Returns these bytes, and their shelf in *counted. If the free fails,
 * stream_block_plain_free_failed moves them back. */
uint64_t stream_block_begin_plain_free(struct pool *pool, struct stream_block *block,
                                       struct shelf **counted);
void stream_block_plain_free_failed(struct stream_block *block, struct shelf *counted,
                                    uint64_t asked);

/* The driver has freed a block that had been taken off its shelf: subtracts its bytes from the
 * totals and recycles its record. */
void stream_block_recycle(struct pool *pool, struct stream_block *block);

/* stream_block_freed_outside: someone frees this address past the pool. Forgets a live block there.
 * False where the block is free, so that nobody may free it, and for a part, which the driver can't
 * free. stream_block_forget_address: the driver has just given the address out. Forgets whatever
 * the pool has there. */
bool stream_block_freed_outside(struct pool *pool, CUdeviceptr address);
void stream_block_forget_address(struct pool *pool, CUdeviceptr address);

#endif
