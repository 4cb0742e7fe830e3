/*
 * How much the program uses of a memory pool: our blocks, summed over the shelves of all streams,
 * and what the driver has given it besides. The callers hold no lock.
 */
#ifndef CUDAPOOL_CORE_MEMPOOL_SUMS_H
#define CUDAPOOL_CORE_MEMPOOL_SUMS_H

#include <stdint.h>

#include "mempool.h"
#include "streams.h"

struct mempool_sum {
    uint64_t used; /* bytes that the program holds */
    uint64_t told; /* used, plus all bytes that its cuMemFree has ever freed, which the driver
                      still counts */
    uint64_t peak; /* the highest use on any one stream, plus the bytes freed by cuMemFree */
};

/* A snapshot: other threads allocate and free meanwhile. */
struct mempool_sum mempool_sum(struct pool *pool, const struct mempool *mempool);

/* Bytes that the driver counts as used and that are no blocks of ours, live or free, such as memory
 * allocated during captures. counted: the driver's last answer. The result is never too large. It
 * is exact if nothing is allocated or released for a moment; otherwise it may lack what is being
 * moved. */
uint64_t mempool_others(struct pool *pool, const struct mempool *mempool, uint64_t counted);

/* Enclose a driver call that allocates or frees blocks, until the pool has counted them. */
static inline void mempool_move_begin(struct streams *streams)
{
    atomic_fetch_add(&streams->moving, 1);
}

static inline void mempool_move_end(struct streams *streams)
{
    atomic_fetch_sub(&streams->moving, 1);
}

/* Memory was allocated from the pool: notes how much of it the program uses. */
void mempool_note_use(struct pool *pool, struct mempool *mempool);

/* Notes the highest use so far, before bytes in use are counted as freed by cuMemFree. True: the
 * caller then restarts the shelves' peaks. With many streams this is done only now and then. */
bool mempool_note_plain_free(struct pool *pool, struct mempool *mempool);

/* The record has no blocks, and serves another pool from now on. */
void mempool_begin(struct pool *pool, struct mempool *mempool);

/* Restarts the high-water marks at the present use. */
void mempool_start_high_again(struct pool *pool, struct mempool *mempool);

/* Restarts the shelves' own peaks alone. */
void mempool_start_shelves_again(struct pool *pool, const struct mempool *mempool);

#endif
