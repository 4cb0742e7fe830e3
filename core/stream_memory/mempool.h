/*
 * The record of one of the driver's memory pools (CUmemoryPool) that stream-ordered blocks come
 * from.
 *
 * A block belongs to the memory pool that it was allocated from, and only serves requests for that
 * pool. The pool's reuse attributes restrict the reuse of blocks too; the record holds them as the
 * program set them. The program reads the attributes that it would read without us: its own release
 * threshold, and used bytes without our free blocks.
 *
 * Each device's default pool has a record, and so has each pool that the program creates in device
 * memory. Allocations from other pools, those of managed and of host memory among them, pass
 * through to the driver. The record of a pool that is being destroyed is closed, and its blocks are
 * released to the driver when they are freed. Once the pool is destroyed and the record has no
 * block or other user left, the record serves the next pool that the program creates on the device.
 * So do the shelves of all streams for it: pools that are created and destroyed leak nothing. A
 * thread may find a record with the lock of a stream held that has blocks of it: then the blocks
 * are that pool's. Otherwise the thread becomes a user of the record, and checks again that it
 * still is that pool's.
 *
 * mempool_list.h finds and lists the records, and sums up their use. mempool_calls.h does what the
 * program's calls on memory pools need.
 *
 * Locking: the mempool lock (struct streams) guards the list and every field for which nothing else
 * is said.
 */
#ifndef CUDAPOOL_CORE_MEMPOOL_H
#define CUDAPOOL_CORE_MEMPOOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/driver/calls.h"
#include "core/driver/cuda_abi.h"

struct device;

struct mempool {
    _Atomic(CUmemoryPool) handle; /* relaxed where nothing else is said */
    struct device *device;
    bool is_default;
    _Atomic bool closed;    /* the release store of false pairs with the acquire load in
                               mempool_is_open. Other accesses are relaxed, like those of
                               opportunistic and internal: they choose between safe ways */
    bool is_gone;           /* the driver has destroyed the pool */
    _Atomic unsigned asked; /* threads in mempool_unused that ask the driver about an open pool.
                               Raised under mempool_lock. The release pairs with the acquire load
                               in mempool_destroying, which waits for them */
    _Atomic uint64_t users; /* blocks, and allocations under way. Raised sequentially
                               consistently, like the handle that is loaded next. Either whoever
                               takes the record for another pool sees the user, or the user sees
                               that the record is another pool's */
    _Atomic bool opportunistic, internal;
    bool threshold_is_ours;
    bool program_sets_threshold; /* or has set it */
    bool must_restore_programs;  /* our call may have overwritten the program's value, which must
                                    be set again */
    bool threshold_is_known;     /* threshold is the program's own */
    uint64_t threshold;
    /* The present threshold: bytes that the driver itself keeps. Relaxed: it only tells how much is
     * worth caching. */
    _Atomic uint64_t release_threshold;
    _Atomic uint64_t used_high; /* the most bytes of our blocks that the program was seen to use */
    _Atomic uint64_t counted_high; /* the maximum of mempool_counted. Both are relaxed: they are
                                      only reported */
    _Atomic uint64_t come, gone;   /* bytes of all blocks that ever came from the driver, or left:
                                      see mempool_block_comes */
    _Atomic uint64_t gone_before;  /* gone, just before the driver last reset its own high-water
                                      mark */
    _Atomic uint64_t stays;        /* bytes of blocks that left by the driver's cuMemFree, which the
                                      driver still counts as used */
    struct mempool *next;          /* written before it is listed */
};

/* Raises *high to value if it is lower. */
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

/* mempool_kept: the bytes of the blocks that exist. mempool_counted: those, and the bytes that the
 * driver still counts after its cuMemFree. */
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

/* mempool_block_comes is called before the driver is asked for a block. mempool_block_is_gone is
 * called when the driver has refused it or has it back, or when the block turns out not to be ours.
 * So at every moment, wherever the block is,
 *
 *   bytes of our blocks that the driver counts as used <= mempool_counted */
static inline void mempool_block_comes(struct mempool *mempool, uint64_t bytes)
{
    atomic_fetch_add(&mempool->come, bytes);
    mempool_raise(&mempool->counted_high, mempool_counted(mempool));
}

static inline void mempool_block_is_gone(struct mempool *mempool, uint64_t bytes)
{
    atomic_fetch_add(&mempool->gone, bytes);
}

/* The release pairs with the load of users that precedes giving the record to another pool. */
static inline void mempool_drop(struct mempool *mempool)
{
    atomic_fetch_sub_explicit(&mempool->users, 1, memory_order_release);
}

/* ---- asking the driver ----
 *
 * Queries of the driver about its memory pools. The callers hold no lock.
 */

struct pool;

/* Enclose driver calls of our own. A capture of the calling thread may forbid such calls to the
 * program; between these two they are allowed. */
struct relaxed_mode mempool_call_begin(const struct pool *pool);
void mempool_call_end(const struct pool *pool, struct relaxed_mode mode);

/* Reads an attribute. False: the driver does not answer. */
bool mempool_ask(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute,
                 void *value);

#endif
