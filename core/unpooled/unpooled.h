/*
 * Memory of a device that the program takes by calls which the pool does not serve: physical memory
 * (cuMemCreate, physical.h), arrays and managed memory (owned.h), and what the driver reserves for
 * nodes of graphs that allocate. The driver keeps it all. The pool counts it, for limits and for
 * the report. Memory of others that the program has opened is in the report alone.
 *
 * Bytes are reserved before the driver call that takes them (device_reserved), and unreserved after
 * the call that frees them. So at any moment a limit holds for the sum of the pool's blocks and of
 * this memory. Memory of graphs is the exception: it is reserved after the launch that took it.
 * Where neither a limit is set nor a report wanted, nothing is counted.
 *
 * Functions come in pairs around a driver call of the program's. The first one finds what the call
 * is about, since another thread may have the same handle or address as soon as the driver has
 * freed it. The second one is told whether the call has succeeded. Where nothing is counted, the
 * first one returns NULL, and the second one does nothing.
 *
 * The unpooled lock guards all records. It is a leaf, and is not held across driver calls. A record
 * that finds no host memory is left out: then the memory is not counted.
 */
#ifndef CUDAPOOL_CORE_UNPOOLED_H
#define CUDAPOOL_CORE_UNPOOLED_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/contexts/kind.h"
#include "core/contexts/pool_state.h"
#include "core/figures/stats.h"

struct owned;

struct unpooled_memory {
    pthread_mutex_t lock;
    /* Trees of tsearch: of struct physical by handle, of struct mapping by address, and of struct
     * owned by key. */
    void *physical, *mappings, *owned_by_key;
    struct owned *owned; /* all of them */
};

/* Bytes that are counted. device NULL: none. */
struct unpooled {
    struct device *device;
    enum unpooled_kind kind;
    bool given; /* by the driver */
    uint64_t bytes;
};

static inline struct unpooled_memory *unpooled_of(const struct pool *pool)
{
    return pool->of_kind[KIND_UNPOOLED];
}

/* Whether unpooled memory of the device is counted. device may be NULL. */
bool unpooled_is_counted(struct pool *pool, struct device *device);

/* Prepares for a call of the program's that takes bytes of the device. False past a limit, although
 * the pool has released what it could: the call must not be made, and is out of memory. No lock may
 * be held. */
bool unpooled_take(struct pool *pool, struct device *device, enum unpooled_kind kind,
                   uint64_t bytes, struct unpooled *taken);

/* The driver has given the memory. */
void unpooled_given(struct unpooled *taken);

/* Counts what the driver has reserved for graphs, after a call that may have changed that. A launch
 * is never refused, since nobody knows before it what it takes. No lock may be held. */
void unpooled_follow_graphs(struct pool *pool);

/* The driver has the memory again, or has not given it. Sets *taken to none. */
void unpooled_return(struct unpooled *taken);

#endif
