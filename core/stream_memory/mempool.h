/*
 * The driver's memory pools, as far as stream-ordered blocks come from them.
 *
 * Blocks belong to the pool that they came from, and a request is served from its own pool's blocks
 * only. The pool's reuse attributes bind us too; they are kept here as the program set them. What
 * the program reads back is what it would read without us: its own release threshold, and used
 * bytes without what is kept free.
 *
 * A record is made for each device's default pool and for each pool that the program creates in
 * device memory; allocations from others pass through. Those of managed and host memory have
 * records with no device, which are never served: mempool_unserved.h says what for. One whose pool
 * is being destroyed is closed, and its blocks go to the driver when they are freed. When the pool
 * is gone, and nobody uses the record any more, no block either, it serves the next pool that the
 * program creates on the device, and so do the shelves of all streams for it: pools that come and
 * go leave nothing behind. Who wants memory of a pool finds its record with the lock of a stream
 * held, whose blocks of it are then that pool's, or becomes a user of it and looks again whether it
 * still is that pool's.
 *
 * mempool_list.h finds and lists them, mempool_sums.h sums their use up, and mempool_calls.h does
 * what the program's calls on them need.
 *
 * Locking: the mempool lock (struct streams) guards the list and everything that says nothing else.
 */
#ifndef CUDAPOOL_CORE_MEMPOOL_H
#define CUDAPOOL_CORE_MEMPOOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"

struct device;

struct mempool {
    _Atomic(CUmemoryPool) handle; /* relaxed where not said otherwise */
    struct device *device;        /* NULL: not served */
    bool is_default;
    _Atomic bool
        closed;      /* the release store of false pairs with the acquire load in mempool_is_open.
                        Else relaxed, like the three below: they choose between safe ways */
    bool is_gone;    /* the driver has destroyed the pool */
    bool is_managed; /* of those that are not served: else its memory is the machine's */
    _Atomic unsigned callers; /* see mempool_unserved.h */
    _Atomic uint64_t users;   /* blocks, and allocations under way. Sequentially consistent where it
                                 is raised, like the handle that is looked at then: either whoever
                                 wants the record for another pool sees the user, or the user that it
                                 is another's */
    _Atomic bool follow, opportunistic, internal;
    bool threshold_is_ours;
    bool program_sets_threshold; /* or has */
    bool program_was_overtaken;  /* by us: its value is to be set again */
    bool threshold_is_known;     /* the program's own */
    uint64_t threshold;
    _Atomic uint64_t kept; /* the threshold as it is: so many bytes the driver itself keeps.
                              Relaxed: it only says how much is worth keeping */
    _Atomic uint64_t
        used_high; /* bytes used by the program of our blocks, the most that was seen */
    _Atomic uint64_t counted_high; /* mempool_counted, at most. Relaxed, both: they are told */
    _Atomic uint64_t come, gone;   /* bytes of all blocks ever: see mempool_block_comes */
    _Atomic uint64_t gone_before;  /* gone, before the driver last began its own highest anew */
    _Atomic uint64_t stays; /* bytes of blocks that are gone, and that the driver counts all the
                               same: its cuMemFree has freed them */
    struct mempool *next;   /* written before it is listed */
};

/* Raises one of the highest that were seen. */
static inline void mempool_raise(_Atomic uint64_t *high, uint64_t value)
{
    uint64_t seen = atomic_load_explicit(high, memory_order_relaxed);
    while (seen < value && !atomic_compare_exchange_weak_explicit(
                               high, &seen, value, memory_order_relaxed, memory_order_relaxed))
        continue;
}

static inline bool mempool_is_open(const struct mempool *mempool)
{
    return !atomic_load_explicit(&mempool->closed, memory_order_acquire);
}

static inline CUmemoryPool mempool_handle(const struct mempool *mempool)
{
    return atomic_load_explicit(&mempool->handle, memory_order_relaxed);
}

static inline void mempool_use(struct mempool *mempool)
{
    atomic_fetch_add(&mempool->users, 1);
}

/* Bytes of the blocks that there are; and with those that the driver counts all the same. */
static inline uint64_t mempool_kept(const struct mempool *mempool)
{
    uint64_t gone = atomic_load(&mempool->gone);
    return atomic_load(&mempool->come) - gone;
}

static inline uint64_t mempool_counted(const struct mempool *mempool)
{
    uint64_t kept = mempool_kept(mempool);
    return kept + atomic_load(&mempool->stays);
}

/* The driver is about to be asked for a block of ours; it has refused it, or has had it back, or
 * the block is not ours after all. So at every moment
 *
 *   bytes of our blocks that the driver counts as used <= mempool_counted
 *
 * whichever list a block is on, and on its way there and back. */
static inline void mempool_block_comes(struct mempool *mempool, uint64_t bytes)
{
    atomic_fetch_add(&mempool->come, bytes);
    mempool_raise(&mempool->counted_high, mempool_counted(mempool));
}

static inline void mempool_block_is_gone(struct mempool *mempool, uint64_t bytes)
{
    atomic_fetch_add(&mempool->gone, bytes);
}

/* The release pairs with the look at the users before the record is another pool's. */
static inline void mempool_drop(struct mempool *mempool)
{
    atomic_fetch_sub_explicit(&mempool->users, 1, memory_order_release);
}

#endif
