/*
 * The memory pools that are known: the list of their records, who becomes known and when, which one
 * is a device's current one, and the release threshold that the settings wish. No lock is held by
 * the callers.
 */
#ifndef CUDAPOOL_CORE_MEMPOOL_LIST_H
#define CUDAPOOL_CORE_MEMPOOL_LIST_H

#include <stdbool.h>

#include "core/driver/calls.h"
#include "core/driver/cuda_abi.h"
#include "mempool.h"
#include "mempool_ask.h"
#include "streams.h"

/* More pools than this are not served at a time. */
#define MEMPOOLS_MAX 1024u

/* The first of all records ever made; the list only grows, and is walked without a lock. */
struct mempool *mempool_first(const struct streams *streams);

/* ---- finding ---- */

/* The open pool with this handle, or NULL. */
struct mempool *mempool_find(struct pool *pool, CUmemoryPool handle);

/* The same where no driver call is wanted: a default pool that nobody has named yet is not found.
 */
struct mempool *mempool_find_known(struct pool *pool, CUmemoryPool handle);

/* A device's default pool, which is one and the same for good: the driver is asked once. NULL: it
 * has none. */
CUmemoryPool mempool_default_of(struct pool *pool, struct device *device);

/* The pool with this handle, or (NULL) the device's current one, and the caller a user of it; NULL
 * where that is not served. */
struct mempool *mempool_take(struct pool *pool, const CUmemoryPool *named, struct device *device);

/* What the driver says is the device's current pool; NULL where that is not served. */
struct mempool *mempool_ask_for_current(struct pool *pool, struct device *device);

/* The device's current pool; NULL where it is not served. May ask the driver. */
static inline struct mempool *mempool_current(struct pool *pool, struct device *device)
{
    /* Acquire: pairs with the release store where it is asked for; the record is filled. */
    struct mempool *current =
        atomic_load_explicit(&stream_device(device)->mempool, memory_order_acquire);
    return current ? current : mempool_ask_for_current(pool, device);
}

/* The same where no driver call is wanted. */
static inline struct mempool *mempool_known_current(const struct stream_device *device)
{
    return atomic_load_explicit(&device->mempool, memory_order_acquire);
}

/* ---- beginning and ending ---- */

/* The program has created a pool in this device's memory; has chosen a current pool; has perhaps
 * destroyed one, after mempool_destroying. */
void mempool_created(struct pool *pool, CUmemoryPool handle, CUdevice device);
void mempool_chosen(struct pool *pool);

/* A pool that is not served, and its release threshold as long as the program sets none. */
void mempool_know_unserved(struct pool *pool, CUmemoryPool handle, bool is_managed,
                           uint64_t threshold);
void mempool_destroyed(struct pool *pool, CUmemoryPool handle, bool is_gone);

/* Where the program's release threshold and ours were set at the same time, the program's is set
 * again. */
void mempool_put_programs_threshold(struct pool *pool, struct mempool *mempool);

#endif
