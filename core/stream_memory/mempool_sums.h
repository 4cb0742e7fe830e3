/*
 * What the program uses of a memory pool, summed over the shelves of all streams. No lock is held
 * by the callers.
 */
#ifndef CUDAPOOL_CORE_MEMPOOL_SUMS_H
#define CUDAPOOL_CORE_MEMPOOL_SUMS_H

#include <stdint.h>

#include "mempool.h"
#include "streams.h"

struct mempool_sum {
    uint64_t kept, used, peak; /* bytes: all blocks; those that the program holds; the most that it
                                  held on one stream */
};

/* Of the moment: threads go on meanwhile. */
struct mempool_sum mempool_sum(struct pool *pool, const struct mempool *mempool);

/* Memory was taken from the pool: notes how much of it the program uses. */
void mempool_note_use(struct pool *pool, struct mempool *mempool);

/* The highest that was seen begins anew with what there is now. */
void mempool_start_high_again(struct pool *pool, struct mempool *mempool);

/* The same of the shelves' own peaks alone. */
void mempool_start_shelves_again(struct pool *pool, const struct mempool *mempool);

/* Raises one of the highest that were seen. */
void mempool_raise(_Atomic uint64_t *high, uint64_t value);

#endif
