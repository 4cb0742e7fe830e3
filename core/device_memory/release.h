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

#include "core/contexts/return_stream.h"
#include "core/driver/cuda_abi.h"
#include "core/figures/stats.h"

struct context;
struct device;
struct heap;
struct pool;
struct reclaim;

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

/* Gives back so many of the blocks in the heap's lists, at most, that were free for
 * release_after_idle now, and waits for nothing of the program's. The bytes. */
uint64_t release_some_idle(struct pool *pool, struct context *context, uint64_t now,
                           unsigned blocks);

/* Before a miss of this size: keeps the reserve inside its ratio. */
void release_before_growth(struct pool *pool, struct context *context, uint64_t bytes);

/* Waits, for some seconds at most, until what is pending in the context is clean, as far as it has
 * fences. */
void release_wait_for_pending(struct pool *pool, struct context *context, uint64_t give_up_at);

/* After a miss in the context, which is current: now and then asks how much memory is left, and
 * remembers when it is little. */
void release_look_at_memory(struct pool *pool, struct context *context);

/* What struct kind says of the functions of like names (memory_is_short, give_back,
 * wait_for_the_rest, changes, returnable, make_room, trim, release_idle, watch,
 * driver_has_taken, add_kept), for device memory. */
uint64_t release_idle(struct pool *pool, struct device *device, uint64_t now);
bool release_watch(struct pool *pool);
uint64_t release_driver_has_taken(struct pool *pool, struct device *device);
void release_note_shortage(struct context *context);
uint64_t release_everywhere(struct pool *pool, struct device *device, uint64_t bytes);
bool release_wait_for_the_rest(struct pool *pool, struct device *device,
                               const struct reclaim *progress);
uint64_t release_to_make_room(struct pool *pool, struct device *device, uint64_t bytes);
uint64_t release_all_clean(struct pool *pool);

#endif
