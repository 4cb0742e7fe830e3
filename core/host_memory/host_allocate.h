/*
 * How an allocation of pinned memory finds its block.
 *
 * It takes the first of:
 *   1. a clean block of its key that a thread of its shard has freed: one lock, no driver call;
 *   2. one that threads of other shards have freed;
 *   3. a pending one whose fence turns out to be over;
 *   4. while pending bytes are inside the growth budget: the oldest pending one, if its fence, or
 *      that which another free is recording, is over within about the time that a new block takes,
 *      or within a tenth of a second where the reserve ratio has no room for one; past the budget,
 *      after that fence, however long it takes, but not where the host may have to act before it is
 *      over (host_work.h), and not for longer than a second in which nothing becomes clean;
 *   5. the driver (host_miss.h).
 *
 * No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_HOST_ALLOCATE_H
#define CUDAPOOL_CORE_HOST_ALLOCATE_H

#include "host_heap.h"

/* What the program asks for. */
struct host_request {
    void **address;
    size_t bytes;
    unsigned sort; /* flags of cuMemHostAlloc, or HOST_SORT_PLAIN */
};

/* The key of the blocks that may serve it; 0: none is kept for that. */
uint64_t host_key(struct pool *pool, const struct host_heap *heap,
                  const struct host_request *request);

/* Rung 1. NULL where there is none. */
struct block *host_take_at_once(struct pool *pool, struct host_heap *heap, uint64_t key,
                                size_t bytes);

/* Rungs 2 to 4. */
struct block *host_take(struct pool *pool, struct host_heap *heap, uint64_t key, size_t bytes);

#endif
