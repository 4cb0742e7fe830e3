/*
 * Queries of the driver about its memory pools. The callers hold no lock.
 */
#ifndef CUDAPOOL_CORE_MEMPOOL_ASK_H
#define CUDAPOOL_CORE_MEMPOOL_ASK_H

#include <stdbool.h>

#include "core/driver/calls.h"
#include "core/driver/cuda_abi.h"

struct pool;

/* Enclose driver calls of our own. A capture of the calling thread may forbid such calls to the
 * program; between these two they are allowed. */
struct relaxed_mode mempool_call_begin(const struct pool *pool);
void mempool_call_end(const struct pool *pool, struct relaxed_mode mode);

/* Reads an attribute. False: the driver does not answer. */
bool mempool_ask(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute,
                 void *value);

#endif
