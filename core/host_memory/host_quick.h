/*
 * The quick path of pinned memory: a hit in the calling thread's shard, and a free into that shard,
 * when nothing else has to be done. Each takes one short lock and makes no driver call.
 *
 * The functions here detect whatever makes a call more than that, do nothing, and leave the call to
 * host_allocate.h and host_free.h. These cases are: heap->closed (the context is ending, the driver
 * answers in it, there is work that only the host ends, frees must wait or release memory). Further
 * cases are marked blocks, blocks that another shard's threads freed last, and the housekeeper's
 * absence. Captures and handles that have a new owner are not looked at here. The callers check
 * them by one word of the registry.
 *
 * The calling thread has found the shard in thread_state: it belongs to the current context.
 * Callers hold no lock.
 */
#ifndef CUDAPOOL_CORE_HOST_QUICK_H
#define CUDAPOOL_CORE_HOST_QUICK_H

#include "host_free.h"

/* Takes a clean block for a request of this sort: flags of cuMemHostAlloc, or HOST_SORT_PLAIN.
 * False: there is none, or the request is not for the quick path. */
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

/* Claims a live block of the shard, for host_put. The shard's lock is held then. NULL: nothing was
 * done, and the lock is not held. */
static inline struct host_bin *host_claim_quickly(const struct pool *pool, struct host_shard *shard,
                                                  struct block *block, CUdeviceptr address)
{
    struct host_bin *bin = host_bin_of(block);
    if (__builtin_expect(bin->shard != shard || !host_try_lock(shard), 0))
        return NULL;
    /* These are read with the lock held. A thread that ends the context takes the lock after
     * setting closed, and so does the housekeeper after it has announced its end. */
    bool claimed = !host_is_closed(shard->heap, UINT32_MAX) &&
                   !housekeeping_is_watched(&pool->housekeeping) &&
                   block_claim_at_once(block, address, BLOCK_LEAVING);
    /* The block may have been freed and handed out again since, from another bin. */
    if (__builtin_expect(claimed && host_bin_of(block) == bin, 1))
        return bin;
    if (claimed)
        block_set(block, address, BLOCK_LIVE);
    host_unlock(shard);
    return NULL;
}

#endif
