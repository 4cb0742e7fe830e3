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
    _Atomic uint64_t kept_high; /* bytes of our blocks, at most. Relaxed, both: they are told */
    struct mempool *next;       /* written before it is listed */
};

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

/* The release pairs with the look at the users before the record is another pool's. */
static inline void mempool_drop(struct mempool *mempool)
{
    atomic_fetch_sub_explicit(&mempool->users, 1, memory_order_release);
}

#endif
