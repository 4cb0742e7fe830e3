/*
 * Uses of a stream-ordered block, for programs that tell them.
 *
 * A block's first use is its allocation, a write on the stream that it was allocated on. A read
 * waits for the last write; a write, and the free, wait for the last write and all reads since.
 * Waits are the device's: the stream of the later use is put behind the earlier one's stream as of
 * now, by an event. A use by the same stream needs none.
 *
 * A use is told before its work is submitted, and reaches up to the next one that is told or the
 * free: an event is recorded only then. Where the earlier stream is gone, or is another thread's
 * own, the event stands for all of the context's work. While a capture has the earlier stream, or
 * forbids to wait for the context, nothing can stand for it: the use is refused, and so is the
 * free.
 *
 * Whoever tells a use says which allocation he means, by its generation: a block that was freed
 * since, or whose address has been given out again, is refused, and nothing is changed.
 *
 * Locking: the use lock (struct streams) guards every block's uses. A stream's lock may be taken
 * under it; it is not held across a driver call.
 */
#ifndef CUDAPOOL_CORE_USE_H
#define CUDAPOOL_CORE_USE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "streams.h"

/* The generation of the allocation that begins there; 0 where the pool has handed out none. */
uint64_t use_generation(struct pool *pool, CUdeviceptr address);

/* CUDA_ERROR_INVALID_VALUE for a stale generation or an unknown pointer, CUDA_ERROR_INVALID_HANDLE
 * for a stream that is none or is of another device, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED for one
 * that is captured; else what the driver says of the waits. */
CUresult use_record(struct pool *pool, CUdeviceptr address, uint64_t generation, CUstream handle,
                    bool write);

/* The claimed block is being freed on the stream: puts the stream behind what was told of, and
 * forgets that; unless it could not be. */
CUresult use_end(struct pool *pool, struct stream_block *block, CUstream handle);

/* Forgets what was told of the block. */
void use_forget(struct pool *pool, struct stream_block *block);

#endif
