/*
 * Releasing memory to the driver: for caps, the reserve ratio, idle blocks, the hard limit and out
 * of memory.
 *
 * Only clean blocks are released. The pool calls cuMemFreeAsync on a stream of its own and
 * synchronises that stream. This does not wait for the context's work, with two exceptions. If the
 * program itself has raised a barrier over the context, only a caller that needs memory waits, and
 * not for long. After a barrier of the pool's own, callers wait for a second at most.
 *
 * Where the driver has no cuMemFreeAsync, the pool calls cuMemFree, which waits for the context's
 * work. It does so only inside the program's own free or synchronise, and in an allocation that
 * would otherwise fail. Callers hold no lock.
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

/* Releases clean blocks of the context until this many bytes are released or none is left. The
 * settings choose which blocks come first. Returns the bytes released. */
uint64_t release_clean(struct pool *pool, struct context *context, uint64_t bytes,
                       enum eviction reason, enum release_place place);

/* What a slow path sees of the heap at one look, under the heap's lock. It is advice: other threads
 * change the heap once the lock is released. */
struct situation {
    uint64_t now; /* nanoseconds of the monotonic clock */
    bool idle;    /* a look for idle blocks is due: a few times in the span that makes one idle */
    bool other;   /* there are blocks that are not kept, or there may be buckets over their cap */
    uint64_t requested; /* what the program holds, as it requested it; only before a miss */
};
struct situation release_look(const struct pool *pool, struct heap *heap);

/* Housekeeping on slow paths: releases blocks that are not kept, blocks over a cap, and blocks that
 * have been idle for long. */
void release_excess(struct pool *pool, struct context *context, const struct situation *situation,
                    enum release_place place);

/* The reserve that the settings allow the context once the program holds this many bytes more.
 * requested: what it holds now. */
uint64_t release_bound(const struct pool *pool, const struct context *context, uint64_t requested,
                       uint64_t bytes);

/* Releases blocks in the heap's lists that have been free for release_after_idle at now, at most
 * this many. Waits for none of the program's work. Returns the bytes released. */
uint64_t release_some_idle(struct pool *pool, struct context *context, uint64_t now,
                           unsigned blocks);

/* Called before a miss of this size: keeps the reserve within its ratio. */
void release_before_growth(struct pool *pool, struct context *context,
                           const struct situation *situation, uint64_t bytes);

/* Waits until what is pending in the context is clean, as far as it has fences. Stops when the
 * monotonic clock shows give_up_at nanoseconds, after some seconds at most. */
void release_wait_for_pending(struct pool *pool, struct context *context, uint64_t give_up_at);

/* Called after a miss in the context, which is current. Asks now and then how much memory is left,
 * and remembers when it is little. */
void release_look_at_memory(struct pool *pool, struct context *context);

/* Device memory's functions of struct kind (kind.h), which says what each does: release_idle,
 * watch, driver_has_taken, memory_is_short, release and wait_for_the_rest, in this order. changes,
 * returnable and add_kept are in release_sums.h. */
uint64_t release_idle(struct pool *pool, struct device *device, uint64_t now);
bool release_watch(struct pool *pool);
uint64_t release_driver_has_taken(struct pool *pool, struct device *device);
void release_note_shortage(struct context *context);
uint64_t release_everywhere(struct pool *pool, struct device *device, uint64_t bytes,
                            enum release_place place);
bool release_wait_for_the_rest(struct pool *pool, struct device *device,
                               const struct reclaim *progress);

#endif
