/*
 * The records of the memory pools that are known: finding one, making one, ending one. Also each
 * device's current pool, and the release threshold that the settings ask for. The callers hold no
 * lock.
 */
#ifndef CUDAPOOL_CORE_MEMPOOL_LIST_H
#define CUDAPOOL_CORE_MEMPOOL_LIST_H

#include <stdbool.h>

#include "core/driver/calls.h"
#include "core/driver/cuda_abi.h"
#include "mempool.h"
#include "mempool_ask.h"
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

#endif
