/*
 * What the pool asks the driver of its memory pools. No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_MEMPOOL_ASK_H
#define CUDAPOOL_CORE_MEMPOOL_ASK_H

#include <stdbool.h>

#include "core/driver/calls.h"
#include "core/driver/cuda_abi.h"

struct pool;

/* Around calls of our own, which the program may not have been free to make: a capture of the
 * thread's may forbid them. */
struct relaxed_mode mempool_call_begin(const struct pool *pool);
void mempool_call_end(const struct pool *pool, struct relaxed_mode mode);

/* An attribute; false where the driver does not say. */
bool mempool_ask(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute,
                 void *value);

#endif
