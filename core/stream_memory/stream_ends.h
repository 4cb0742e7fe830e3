/*
 * Memory pools and contexts that end: their free blocks are released to the driver, or forgotten.
 * The callers hold no lock, but for stream_ends_forget: it is called with the fence lock held.
 */
#ifndef CUDAPOOL_CORE_STREAM_ENDS_H
#define CUDAPOOL_CORE_STREAM_ENDS_H

#include <stdbool.h>
#include <stdint.h>

#include "mempool.h"
#include "streams.h"

/* Releases clean blocks of the memory pool, up to so many bytes. all: the pool is about to be
 * destroyed and nothing will be allocated from it any more, so all its free blocks are released. */
void stream_ends_mempool(struct pool *pool, const struct mempool *mempool, uint64_t bytes,
                         bool all);

/* The context is about to end, and can still be queried. This is the last moment for that while
 * captures are under way. */
void stream_ends_before(struct pool *pool, struct context *context);

/* The context is kept from other threads now, and about to end. Releases all blocks of its streams,
 * ordered after its work. */
void stream_ends_context(struct pool *pool, struct context *context);

/* The context has ended. Forgets what could not be released. */
void stream_ends_forget(struct pool *pool, struct context *context);

#endif
