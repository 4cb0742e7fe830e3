/*
 * What the program does with its memory pools: destroys and trims them, sets and reads attributes.
 * mempool.h says what it is to see. No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_MEMPOOL_CALLS_H
#define CUDAPOOL_CORE_MEMPOOL_CALLS_H

#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "streams.h"

/* The program is about to destroy the pool: its blocks go back, and what is freed from now on goes
 * to the driver. */
void mempool_destroying(struct pool *pool, CUmemoryPool handle);

/* Before the driver's own trim to so many bytes. */
void mempool_trimming(struct pool *pool, CUmemoryPool handle, uint64_t keep);

/* Before the program sets an attribute. After the driver has answered: corrects what it says; takes
 * note of what was set. */
void mempool_setting(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute);
void mempool_got(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute,
                 void *value);
void mempool_set(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute,
                 const void *value);

/* What the driver's pools of the device hold, beside what is kept free, since our blocks lie in
 * their chunks, or since a threshold is ours: bytes that would be the device's without us. And
 * giving the latter back, for all devices. */
uint64_t mempool_unused(struct pool *pool, const struct device *device);
void mempool_trim_ours(struct pool *pool);

/* What they have taken of the device in all, but for our blocks. */
uint64_t mempool_beside_blocks(struct pool *pool, const struct device *device);

#endif
