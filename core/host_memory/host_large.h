/*
 * Large blocks made without cuMemHostAlloc: a mapping with huge pages, touched by several threads,
 * and registered with the driver. From 2 MiB on this is two to seven times as fast as
 * cuMemHostAlloc.
 *
 * Callers hold no lock, except that host_large_unmap may be called with one. The threads
 * (own_thread.h) no longer touch the memory when the call returns.
 */
#ifndef CUDAPOOL_CORE_HOST_LARGE_H
#define CUDAPOOL_CORE_HOST_LARGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"

struct pool;

/* Whether such a block is made in this way: the settings want it, and the driver can register
 * memory. */
bool host_large_serves(const struct pool *pool, uint64_t bytes, unsigned flags);

/* Makes a block. Returns the driver's answer to the registration, or CUDA_ERROR_OUT_OF_MEMORY where
 * the mapping failed. flags: of cuMemHostAlloc. */
CUresult host_large_make(struct pool *pool, void **address, uint64_t bytes, unsigned flags);

/* Unregisters and unmaps a block. Waits for the context's work, as cuMemFreeHost does. */
CUresult host_large_give_back(struct pool *pool, void *address, uint64_t bytes);

/* Unmaps a block whose context has ended, and with it the registration. */
void host_large_unmap(CUdeviceptr address, uint64_t bytes);

#endif
