/*
 * What the program uses of a memory pool: our blocks, summed over the shelves of all streams, and
 * what the driver has given it besides. No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_MEMPOOL_SUMS_H
#define CUDAPOOL_CORE_MEMPOOL_SUMS_H

#include <stdint.h>

#include "mempool.h"
#include "streams.h"

struct mempool_sum {
    uint64_t used; /* bytes that the program holds */
    uint64_t told; /* and that its cuMemFree has ever freed, which the driver goes on counting */
    uint64_t peak; /* and these with the most that it held on one stream */
};

/* Of the moment: threads go on meanwhile. */
struct mempool_sum mempool_sum(struct pool *pool, const struct mempool *mempool);

/* Bytes that the driver counts as used and that are no blocks of ours, free or not: what captures
 * kept from us, for instance. counted: what the driver has said last. Where nothing comes or goes
 * for a moment it is exact; beside threads whose every call does, it may leave out as much as is on
 * its way, and is never more. */
uint64_t mempool_others(struct pool *pool, const struct mempool *mempool, uint64_t counted);

/* Around a call by which the driver gives blocks or has them back, until these are counted. */
static inline void mempool_move_begin(struct streams *streams)
{
    atomic_fetch_add(&streams->moving, 1);
}

static inline void mempool_move_end(struct streams *streams)
{
    atomic_fetch_sub(&streams->moving, 1);
}

/* Memory was taken from the pool: notes how much of it the program uses. */
void mempool_note_use(struct pool *pool, struct mempool *mempool);

/* Before what is used is counted as freed plainly: notes the most so far. Whether the shelves'
 * peaks are to start again after it; of many streams only now and then. */
bool mempool_note_plain_free(struct pool *pool, struct mempool *mempool);

/* The record, of which there is no block, is another pool's from now on. */
void mempool_begin(struct pool *pool, struct mempool *mempool);

/* The highest that was seen begins anew with what there is now. */
void mempool_start_high_again(struct pool *pool, struct mempool *mempool);

/* The same of the shelves' own peaks alone. */
void mempool_start_shelves_again(struct pool *pool, const struct mempool *mempool);

#endif
