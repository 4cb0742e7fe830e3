/*
 * The records of the memory pools that are known: finding one, making one, ending one. Also each
 * device's current pool, and the release threshold that the settings ask for. The callers hold no
 * lock.
 */
#ifndef CUDAPOOL_CORE_MEMPOOL_LIST_H
#define CUDAPOOL_CORE_MEMPOOL_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/calls.h"
#include "core/driver/cuda_abi.h"
#include "mempool.h"
#include "streams.h"

/* No more pools than this have records at a time. */
#define MEMPOOLS_MAX 1024u

/* The first of all records ever made. The list only grows, and is walked without a lock. */
struct mempool *mempool_first(const struct streams *streams);

/* ---- finding ---- */

/* The open pool with this handle, or NULL. */
struct mempool *mempool_find(struct pool *pool, CUmemoryPool handle);

/* Finds the pool without a driver call. A default pool that nobody has named yet is not found. */
struct mempool *mempool_find_known(struct pool *pool, CUmemoryPool handle);

/* The device's default pool, or NULL if it has none. It never changes, so the driver is asked once.
 */
CUmemoryPool mempool_default_of(struct pool *pool, struct device *device);

/* The pool with this handle, or the device's current pool (named is NULL). The caller becomes a
 * user of it. NULL: the pool is not served. */
struct mempool *mempool_take(struct pool *pool, const CUmemoryPool *named, struct device *device);

/* Asks the driver for the device's current pool. NULL: that pool is not served. */
struct mempool *mempool_ask_for_current(struct pool *pool, struct device *device);

/* The device's current pool; NULL: it is not served. May ask the driver. */
static inline struct mempool *mempool_current(struct pool *pool, struct device *device)
{
    /* Acquire: pairs with the release store in mempool_ask_for_current, so the record is filled in.
     */
    struct mempool *current =
        atomic_load_explicit(&stream_device(device)->mempool, memory_order_acquire);
    return current ? current : mempool_ask_for_current(pool, device);
}

/* The current pool if it is known without a driver call, otherwise NULL. */
static inline struct mempool *mempool_known_current(const struct stream_device *device)
{
    return atomic_load_explicit(&device->mempool, memory_order_acquire);
}

/* ---- beginning and ending ---- */

/* mempool_created: the program has created a pool in this device's memory. mempool_chosen: the
 * program has set a device's current pool. */
void mempool_created(struct pool *pool, CUmemoryPool handle, CUdevice device);
void mempool_chosen(struct pool *pool);

/* The driver has answered a call to destroy the pool, after mempool_destroying. is_gone: the pool
 * is destroyed. */
void mempool_destroyed(struct pool *pool, CUmemoryPool handle, bool is_gone);

/* If the program's release threshold and ours were set at the same time, sets the program's again.
 */
void mempool_restore_programs_threshold(struct pool *pool, struct mempool *mempool);

/* Sets a threshold that is ours to 0, since the device has got a limit. */
void mempool_drop_our_threshold(struct pool *pool, struct mempool *mempool);

/* ---- how much of a memory pool is in use ----
 *
 * How much the program uses of a memory pool: our blocks, summed over the shelves of all streams,
 * and what the driver has given it besides. The callers hold no lock.
 */

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
