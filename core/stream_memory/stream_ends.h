/*
 * Memory pools and contexts that end: what was free in them goes back, or is forgotten. No lock is
 * held by the callers.
 */
#ifndef CUDAPOOL_CORE_STREAM_ENDS_H
#define CUDAPOOL_CORE_STREAM_ENDS_H

#include <stdbool.h>
#include <stdint.h>

#include "mempool.h"
#include "streams.h"

/* Gives back blocks of the memory pool: those known to be over, or, where it is about to be
 * destroyed and nothing will be allocated from it any more, all. */
void stream_ends_mempool(struct pool *pool, const struct mempool *mempool, uint64_t bytes,
                         bool all);

/* The context is about to end, and can still be asked about; then it is kept from others, and all
 * of its streams' blocks go back, after its work. */
void stream_ends_before(struct pool *pool, struct context *context);
void stream_ends_context(struct pool *pool, struct context *context);

/* It has ended: what could not be given back is forgotten. */
void stream_ends_forget(struct pool *pool, struct context *context);

#endif
