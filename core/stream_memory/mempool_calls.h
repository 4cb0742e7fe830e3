/*
 * What the pool does when the program destroys or trims a memory pool, or sets or reads its
 * attributes. mempool.h says what the program is to see. The callers hold no lock.
 */
#ifndef CUDAPOOL_CORE_MEMPOOL_CALLS_H
#define CUDAPOOL_CORE_MEMPOOL_CALLS_H

#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "streams.h"

/* The program is about to destroy the pool. Releases its free blocks to the driver. Blocks freed
 * from now on are released to the driver too. */
void mempool_destroying(struct pool *pool, CUmemoryPool handle);

/* Called before the driver trims its pool to keep bytes. Releases clean blocks to the driver if the
 * pool has reserved more. */
void mempool_trimming(struct pool *pool, CUmemoryPool handle, uint64_t keep);

/* mempool_setting: called before the program sets an attribute. mempool_got: corrects the value
 * that the driver has returned. mempool_set: records the value that the program has set. */
void mempool_setting(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute);
void mempool_got(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute,
                 void *value);
void mempool_set(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute,
                 const void *value);

/* mempool_unused: bytes that the driver's pools hold on the device and that it would release
 * without us. They are held because our blocks lie in their chunks, or because the threshold is
 * ours. Our free blocks are not counted. mempool_trim_ours: releases what pools hold because of a
 * threshold of ours, on all devices. */
uint64_t mempool_unused(struct pool *pool, const struct device *device);
void mempool_trim_ours(struct pool *pool);

/* The bytes that pools with a threshold of ours have reserved on the device, without our blocks. */
uint64_t mempool_beside_blocks(struct pool *pool, const struct device *device);

#endif
