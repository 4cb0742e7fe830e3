/*
 * The driver's memory pools, as far as stream-ordered blocks come from them.
 *
 * Blocks belong to the pool that they came from, and a request is served from its own pool's blocks
 * only. The pool's reuse attributes bind us too; they are kept here as the program set them. What
 * the program reads back is what it would read without us: its own release threshold, and used
 * bytes without what is kept free.
 *
 * A record is made for each device's default pool and for each pool that the program creates in
 * device memory; allocations from others pass through. One whose pool is being destroyed is closed,
 * and its blocks go to the driver when they are freed. When the pool is gone, and nobody uses the
 * record any more, no block either, it serves the next pool that the program creates on the device,
 * and so do the shelves of all streams for it: pools that come and go leave nothing behind. Who
 * wants memory of a pool finds its record with the lock of a stream held, whose blocks of it are
 * then that pool's, or becomes a user of it and looks again whether it still is that pool's.
 *
 * Locking: the mempool lock (struct streams) guards the list and everything that says nothing else.
 * It is a leaf lock, not held across a driver call.
 */
#ifndef CUDAPOOL_CORE_MEMPOOL_H
#define CUDAPOOL_CORE_MEMPOOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/contexts/context.h"
#include "core/driver/cuda_abi.h"
#include "streams.h"

struct pool;

struct mempool {
    _Atomic(CUmemoryPool) handle; /* relaxed where not said otherwise */
    struct device *device;
    bool is_default;
    _Atomic bool closed;    /* the release store of false pairs with the acquire load in find_open.
                               Else relaxed, like the three below: they choose between safe ways */
    bool is_gone;           /* the driver has destroyed the pool */
    _Atomic uint64_t users; /* blocks, and allocations under way. Sequentially consistent where it
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

/* More pools than this are not served at a time. */
#define MEMPOOLS_MAX 1024u

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

/* The open pool with this handle, or NULL. */
struct mempool *mempool_find(struct pool *pool, CUmemoryPool handle);
struct mempool *mempool_find_known(struct pool *pool, CUmemoryPool handle);

/* The pool with this handle, or (NULL) the device's current one, and the caller a user of it; NULL
 * where that is not served. */
struct mempool *mempool_take(struct pool *pool, const CUmemoryPool *named, struct device *device);

static inline void mempool_use(struct mempool *mempool)
{
    atomic_fetch_add(&mempool->users, 1);
}

/* The release pairs with the look at the users before the record is another pool's. */
static inline void mempool_drop(struct mempool *mempool)
{
    atomic_fetch_sub_explicit(&mempool->users, 1, memory_order_release);
}

/* The program has created a pool in this device's memory; has chosen a current pool; is about to
 * destroy a pool, and perhaps did. */
void mempool_created(struct pool *pool, CUmemoryPool handle, CUdevice device);
void mempool_chosen(struct pool *pool);
void mempool_destroying(struct pool *pool, CUmemoryPool handle);
void mempool_destroyed(struct pool *pool, CUmemoryPool handle, bool is_gone);

/* Before the driver's own trim to so many bytes. */
void mempool_trimming(struct pool *pool, CUmemoryPool handle, uint64_t keep);

/* Before the program sets an attribute. After the driver has answered: corrects what it says; takes
 * note of what was set. */
void mempool_setting(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute);
void mempool_got(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute,
                 void *value);
void mempool_set(struct pool *pool, CUmemoryPool handle, CUmemPool_attribute attribute,
                 const void *value);

/* What the driver's pools of the device hold, beside what is kept free, since our blocks lie in
 * their chunks, or since a threshold is ours: bytes that would be the device's without us. And
 * giving the latter back, for all devices. */
uint64_t mempool_unused(struct pool *pool, const struct device *device);
void mempool_trim_ours(struct pool *pool);

/* Memory was taken from the pool: notes how much of it the program uses. */
void mempool_note_use(struct pool *pool, struct mempool *mempool);

#endif
