/*
 * Giving memory back: caps, the reserve ratio, idle blocks, the hard limit and out of memory.
 *
 * Only clean blocks are given back, by cuMemFreeAsync on a stream of our own and synchronising that
 * stream. That does not wait for the context's work, unless the program has raised a barrier over
 * the context itself: then nobody waits, but for memory that is needed, and that not for long; or
 * the pool has: that is waited for, for a second. Where the driver has no cuMemFreeAsync it is
 * cuMemFree, which waits; then only inside the program's own free or synchronise, and in an
 * allocation only when it would otherwise fail. No lock is held by the callers.
 */
#ifndef CUDAPOOL_CORE_RELEASE_H
#define CUDAPOOL_CORE_RELEASE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "core/figures/stats.h"

struct context;
struct heap;
struct device;
struct pool;

enum release_place { RELEASE_IN_FREE, RELEASE_IN_ALLOCATION, RELEASE_OUT_OF_MEMORY };

/* Gives back clean blocks of the context until bytes are released or none is left; which ones
 * first is the settings' choice. Returns the bytes given back. */
uint64_t release_clean(struct pool *pool, struct context *context, uint64_t bytes,
                       enum eviction reason, enum release_place place);

/* Housekeeping on slow paths: blocks that are not kept, blocks over a cap, blocks idle for long. In
 * two steps for a caller who has the heap's lock anyway: held for the first one, not for the
 * second.
 */
void release_excess(struct pool *pool, struct context *context, enum release_place place);
struct release_excess {
    uint64_t now; /* nanoseconds of the monotonic clock */
    bool idle;    /* it is time to look for idle blocks: a few times in the span that makes one */
    bool other;   /* blocks that are not kept, or buckets over their cap */
};
struct release_excess release_look_for_excess(const struct pool *pool, struct heap *heap);
void release_found_excess(struct pool *pool, struct context *context,
                          const struct release_excess *excess, enum release_place place);

/* The reserve that the settings allow the context once it holds so many bytes more. requested: what
 * the program holds now. Heap lock held. */
uint64_t release_bound(const struct pool *pool, const struct context *context, uint64_t requested,
                       uint64_t bytes);

/* Before a miss of this size: keeps the reserve inside its ratio. */
void release_before_growth(struct pool *pool, struct context *context, uint64_t bytes);

/* Takes bytes into the device's reserved bytes, inside the hard limit, giving back what is cached
 * if need be. False past the limit. in_stream_order: as in struct reclaim. */
bool release_reserve(struct pool *pool, struct context *context, uint64_t bytes,
                     bool in_stream_order);

/* How long an allocation that would otherwise fail waits for work that the plain cuMemFree might
 * not have waited for, and anybody for another thread's record that nothing can go on without. */
#define LAST_RESORT_NANOSECONDS (UINT64_C(10) * 1000 * 1000 * 1000)

/* Out of memory, for any call: each time does the next thing that may give memory back, and false
 * says that nothing is left to try. After the last step it begins again, for some seconds at most,
 * if this thread has given something back that another may have taken, another thread is still
 * giving back, or others have allocated and freed meanwhile although there would be enough for the
 * request. device NULL: all devices, and that for a second at most, then once more when another
 * thread has given back. */
enum reclaim_step { RECLAIM_CLEAN, RECLAIM_FENCED, RECLAIM_DRIVER, RECLAIM_THE_REST, RECLAIM_DONE };
struct reclaim {
    enum reclaim_step step;
    uint64_t bytes;       /* to give back at first: as many as are wanted, 0 if that is not known */
    uint64_t wanted;      /* at least so many will do; 0 as above */
    bool within_limit;    /* the hard limit is in the way, not the driver */
    uint64_t released;    /* bytes, by the steps since the first */
    uint64_t started;     /* nanoseconds of the monotonic clock; 0: not yet */
    uint64_t seen;        /* of what other threads may change, as the first step began */
    bool in_stream_order; /* for an allocation in a stream's order: what streams have left pending
                             is asked about, but not waited for, as the driver does not */
};
bool release_for_retry(struct pool *pool, struct device *device, struct reclaim *progress);

/* Waits, for some seconds at most, until what is pending in the context is clean, as far as it has
 * fences. */
void release_wait_for_pending(struct pool *pool, struct context *context, uint64_t give_up_at);

/* Bytes that the process could still take of the context's device, inside its limit; what is cached
 * does not count. The driver is asked now and then. now: on the monotonic clock, in nanoseconds. No
 * lock held. */
uint64_t release_room(struct pool *pool, struct context *context, uint64_t now);

/* After a miss in the context, which is current: now and then asks how much memory is left, and
 * remembers when it is little. */
void release_look_at_memory(struct pool *pool, struct context *context);

/* No lock held. After a free in the context that cost more for want of memory: now and then asks
 * whether it still is short, which a program that has no misses would never learn. */
void release_look_again(struct pool *pool, struct context *context);

/* The stream of the context that blocks are given back on, made on first use; NULL where it can't
 * be. */
CUstream release_stream(struct pool *pool, struct context *context);

/* Another one, for memory behind work that is not over: it is never waited for. */
CUstream release_late_stream(struct pool *pool, struct context *context);

/* After blocks were given back on that stream, or one like it, of the context, which is current and
 * pinned: waits until they are the driver's, where that cannot take long. */
void release_wait(struct pool *pool, struct context *context, CUstream stream,
                  enum release_place place);

#endif
