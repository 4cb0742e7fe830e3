/*
 * The quick path of pinned memory: a hit in the calling thread's shard, and a free into it, where
 * nothing else is to be done. Each is one short lock, and calls nothing of the driver's.
 *
 * Whatever makes a call more than that is found here and left to host_allocate.h and host_free.h,
 * with nothing done: captures and handles that mean something else by now (the callers look at
 * them, by one word of the registry), the end of the context or its being the driver's
 * (heap->closed), work that only the host ends, frees that are to wait, blocks that are marked or
 * that another shard's threads have freed last, and the housekeeper's absence.
 *
 * The calling thread has found the shard in thread_state: it is of the context that is current. No
 * lock is held.
 */
#ifndef CUDAPOOL_CORE_HOST_QUICK_H
#define CUDAPOOL_CORE_HOST_QUICK_H

#include "host_free.h"

/* A clean block for a request of that sort, flags of cuMemHostAlloc or HOST_SORT_PLAIN. False:
 * there is none, or it is not for the quick path. */
__attribute__((always_inline)) static inline bool
host_take_quickly(const struct host_memory *memory, struct host_shard *shard, size_t bytes,
                  unsigned sort, CUdeviceptr *address)
{
    if (__builtin_expect(memory->machine.nodes > 1, 0))
        sort |= machine_node(&memory->machine) * HOST_SORT_NODE;
    if (!host_try_lock(shard))
        return false;
    const struct host_heap *heap = shard->heap;
    struct host_bin *bin = shard->by_request[host_place(bytes, sort)];
    uint64_t live = host_live_with(shard, bytes);
    bool fits = host_is_noted(shard, live) && size_span_has(&bin->requests, bytes) &&
                bin->sort == sort &&
                !host_is_closed(heap, HOST_CLOSED_ENDING | HOST_CLOSED_UNUSABLE);
    struct block *block = fits ? host_unused_block(bin, host_clean_epoch(heap)) : NULL;
    if (__builtin_expect(block != NULL, 1))
        *address = host_hand_out(shard, bin, block, bytes, live);
    host_unlock(shard);
    return block != NULL;
}

/* Claims a live block of the shard's, for host_put; the shard's lock is held then. NULL: nothing
 * was done. */
static inline struct host_bin *host_claim_quickly(const struct pool *pool, struct host_shard *shard,
                                                  struct block *block, CUdeviceptr address)
{
    struct host_bin *bin = host_bin_of(block);
    if (__builtin_expect(bin->shard != shard || !host_try_lock(shard), 0))
        return NULL;
    /* With the lock: who has the context end, or ends as the housekeeper, takes it afterwards. */
    bool claimed = !host_is_closed(shard->heap, UINT32_MAX) &&
                   !housekeeping_is_watched(&pool->housekeeping) &&
                   block_claim_at_once(block, address, BLOCK_LEAVING);
    /* In a life that has begun since, it may be another bin's. */
    if (__builtin_expect(claimed && host_bin_of(block) == bin, 1))
        return bin;
    if (claimed)
        block_set(block, address, BLOCK_LIVE);
    host_unlock(shard);
    return NULL;
}

#endif
