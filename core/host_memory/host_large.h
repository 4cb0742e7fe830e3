/*
 * Large blocks by hand: a mapping with huge pages, touched by several threads, and registered with
 * the driver. From 2 MiB on that is two to seven times as fast as cuMemHostAlloc.
 *
 * No lock is held by the callers, but for unmapping. The threads (own_thread.h) are done with the
 * memory when the call is back.
 */
#ifndef CUDAPOOL_CORE_HOST_LARGE_H
#define CUDAPOOL_CORE_HOST_LARGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"

struct pool;

/* Whether such a block is made so: the settings want it, and the driver can. */
bool host_large_serves(const struct pool *pool, uint64_t bytes, unsigned flags);

/* The driver's answer to the registration, or CUDA_ERROR_OUT_OF_MEMORY where there is no mapping.
 * flags: of cuMemHostAlloc. */
CUresult host_large_make(struct pool *pool, void **address, uint64_t bytes, unsigned flags);

/* Waits for the context's work, as cuMemFreeHost does. */
CUresult host_large_give_back(struct pool *pool, void *address, uint64_t bytes);

/* The context has ended, and the registration with it. */
void host_large_unmap(CUdeviceptr address, uint64_t bytes);

#endif
