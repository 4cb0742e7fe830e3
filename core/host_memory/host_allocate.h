/*
 * How an allocation of pinned memory finds its block. It takes the first block that one of these
 * steps finds:
 *
 *   1. a clean block of its key that a thread of its shard has freed: one lock, no driver call;
 *   2. a clean block that threads of other shards have freed;
 *   3. a pending block whose fence turns out to have completed;
 *   4. while pending bytes are below the growth budget: the oldest pending block, if its fence, or
 *      the one that another free is recording, completes in time. In time means about as long as
 *      a new block takes, or 0.1 s where the reserve ratio has no room for a new block.
 *      Past the budget: the oldest pending block after its fence, however long that takes. No
 *      allocation waits where the host may have to act before the fence completes (host_work.h).
 *      None waits longer than a second in which nothing becomes clean;
 *   5. a new block of the driver's (host_allocate.h).
 *
 * Callers hold no lock.
 */
#ifndef CUDAPOOL_CORE_HOST_ALLOCATE_H
#define CUDAPOOL_CORE_HOST_ALLOCATE_H

#include "host_heap.h"

struct host_request {
    void **address;
    size_t bytes;
    unsigned sort; /* flags of cuMemHostAlloc, or HOST_SORT_PLAIN */
};

/* The key of the blocks that may serve the request; 0: the pool caches no block for it. */
uint64_t host_key(struct pool *pool, const struct host_heap *heap,
                  const struct host_request *request);

/* Step 1 above. NULL if there is no such block. */
struct block *host_take_at_once(struct pool *pool, struct host_heap *heap, uint64_t key,
                                size_t bytes);

/* Steps 2 to 4 above. NULL if they find no block. */
struct block *host_take(struct pool *pool, struct host_heap *heap, uint64_t key, size_t bytes);

/* ---- misses ----
 *
 * New blocks of pinned memory, made by the driver. Callers hold no lock.
 */

/* Makes the driver's own call for exactly what the program asks for. The pool records nothing.
 * Where the driver is out of memory, cached memory is released and the call is made again. */
CUresult host_ask_driver(struct pool *pool, const struct host_request *request);

/* Makes a block of this key for the request. key 0: a block that the driver frees when the program
 * does. Its context is current. */
CUresult host_miss(struct pool *pool, struct host_heap *heap, uint64_t key,
                   const struct host_request *request);

#endif
