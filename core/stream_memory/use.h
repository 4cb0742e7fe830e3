/*
 * Uses of stream-ordered blocks on several streams, for programs that announce them.
 *
 * A block's first use is its allocation, a write on the stream of the allocation. A read waits for
 * the last write. A write, and the free, wait for the last write and for all reads since. The
 * device does the waiting: the stream of the later use waits for an event recorded in the earlier
 * use's stream. A use on the same stream waits for nothing.
 *
 * A use is announced before its work is submitted. It lasts until the next announced use or the
 * free, and only then is an event recorded. If the earlier stream is gone, or is another thread's
 * own, the event stands for all of the context's work. While a capture has the earlier stream, or
 * forbids waiting for the context, no event can stand for the use. Then the later use is refused,
 * and so is the free.
 *
 * The caller names the allocation by its generation. If the block was freed since, or its address
 * was given out again, the call is refused, and nothing changes.
 *
 * Locking: the use lock (struct streams) guards every block's uses.
 */
#ifndef CUDAPOOL_CORE_USE_H
#define CUDAPOOL_CORE_USE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "streams.h"

/* Returns the generation of the allocation that begins at this address; 0 if the pool has none
 * there. */
uint64_t use_generation(struct pool *pool, CUdeviceptr address);

/* Announces a read or a write of the block on the stream. Returns CUDA_ERROR_INVALID_VALUE for a
 * stale generation or an unknown pointer. Returns CUDA_ERROR_INVALID_HANDLE for a handle that is no
 * stream, or a stream of another device. Returns CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED for a stream
 * that is captured. Otherwise returns what the driver says of the waits. */
CUresult use_record(struct pool *pool, CUdeviceptr address, uint64_t generation, CUstream handle,
                    bool write);

/* The claimed block is being freed on the stream. Makes the stream wait for all announced uses,
 * then forgets them. After an error they are not forgotten. */
CUresult use_end(struct pool *pool, struct stream_block *block, CUstream handle);

/* Forgets the block's announced uses. */
void use_forget(struct pool *pool, struct stream_block *block);

#endif
