/*
 * Policies: decisions that depend on the state of several owners. They look and decide, and make no
 * driver call. Four also act on what they find. policy_watch_rounding closes or opens the caches,
 * and heap_note_stalled_wait empties them. policy_waited_longer_than_a_miss sets the cache's
 * waited_ns. policy_frees_synchronise opens the caches once frees need not wait any more.
 *
 * This list says where each heuristic of device memory is. docs/design.md says under the same names
 * what each is for, and which measurement shows it.
 *
 * Growth budget                  policy_may_grow
 * Fair parts                     policy_is_ahead
 * Patience                       policy_waited_longer_than_a_miss, cache_wait.c
 * Growth in turns                policy_growth_is_due
 * Trade                          may_trade_unused_for_it
 * Taking from other caches       policy_other_caches_hold_bucket, thread_caches_take
 * Sharing of buckets             thread_caches_take, thread_caches_share
 * Refills                        thread_cache_wants
 * Sleep and retirement of caches cache_set.c, cache_threads.c
 * Device barriers                policy_barriers_may_be_used
 * Hot memory                     hot_memory.h, take_hot (ladder.c)
 * A fence for many frees         policy_fence_is_due, place_refresh_cache
 * One closer                     another_closes
 * Ghosts and trials              keep.h
 * Sizes of the driver's own      policy_watch_rounding
 * A block alone                  policy_spares_too_much
 * Frees that wait, memory missed policy_pending_is_missed, policy_memory_is_missed
 * Frees that wait, wait stalled  heap_note_stalled_wait
 */
#ifndef CUDAPOOL_CORE_POLICIES_H
#define CUDAPOOL_CORE_POLICIES_H

#include <stdbool.h>
#include <stdint.h>

#include "heap.h"
#include "hot_memory.h"
#include "place.h"
#include "thread_cache.h"

/* ---- a new block, or a pending one; heap lock held ---- */

/* Whether a new block is allowed. It must keep the reserve within its ratio and displace no other
 * block, and pending bytes must be within the growth budget. */
bool policy_may_grow(struct pool *pool, struct context *context, const struct bucket *bucket);

/* Whether a thread that could wait for a block may ask for a new one now. Of several threads, one
 * asks at a time. Each call takes the driver's lock, which other threads' launches need. If many
 * threads called at once, each call would take as long as all of them together. No lock needed. */
bool policy_growth_is_due(const struct heap *heap);

/* What a new block has cost lately: nanoseconds. No lock needed. */
int64_t policy_cost_of_growth(const struct heap *heap);

/* Whether this thread has waited for as long as a new block would have taken, and so takes one. */
bool policy_waited_longer_than_a_miss(struct pool *pool, struct context *context,
                                      const struct place *place);

/* Whether nobody has a free block of the bucket, as in a program that only allocates. Then there is
 * no fence to ask about. With more than SUMS_FEW_THREADS caches this is not looked up: false. */
bool policy_nobody_has_one(const struct heap *heap, const struct bucket *bucket);

/* Whether this place has pending blocks, and a fence makes them clean or soon will. */
bool policy_can_wait(const struct context *context, const struct place *place);

/* Whether other threads' caches hold blocks that this thread would otherwise ask the driver for.
 * Where the reserve may not grow, it would wait for them. Pending blocks count only where it has
 * nothing to wait for and may not grow freely. */
bool policy_other_caches_hold_bucket(struct pool *pool, struct context *context,
                                     const struct place *place);

/* Whether the device may wait, in a context barrier, instead of the host. Threads that allocate and
 * free without the lock are noticed by their frees. */
bool policy_barriers_may_be_used(struct pool *pool, struct heap *heap);

/* Whether this thread has more than its share of what is pending, and so must wait before it takes
 * more. */
bool policy_is_ahead(struct context *context, const struct thread_cache *cache);

/* ---- a free; heap lock held ---- */

/* Whether enough was freed since the last fence for the next one to be due. */
bool policy_fence_is_due(const struct context *context);

/* Whether frees wait for the GPU as the driver's do. Either the settings say so, or an allocation
 * has waited without success (heap_note_stalled_wait). */
bool policy_frees_synchronise(const struct pool *pool, struct heap *heap);

/* Whether the context has work that completes only if the host acts. Frees wait for such work. */
bool policy_has_host_work(const struct context *context);

/* Whether the driver must free this block, whatever other policies say. */
bool policy_is_the_drivers_to_free(struct pool *pool, const struct context *context,
                                   const struct block *block);

/* Whether a later allocation might need the pending bytes. Their work might need the host to act
 * first without the pool knowing, as with a kernel that another thread unblocks. Then that
 * allocation could not safely wait for them. room: bytes that are left. */
bool policy_pending_is_missed(struct context *context, uint64_t room);

/* Whether an allocation might need the pending bytes, if more bytes were pending and all caches
 * were full. No lock needed. */
bool policy_memory_is_missed(const struct context *context, uint64_t more, uint64_t room);

/* ---- what a miss or a wait has shown; heap lock held ---- */

/* Decides, by what rounding costs now, whether sizes are the driver's own (heap->finest_sizes) from
 * now on. */
void policy_watch_rounding(struct heap *heap, const struct device *device);

/* Whether too much is spare in pieces that can't serve blocks of this size, so that such blocks
 * miss. A miss then asks for no more than the block takes. Otherwise the program would lack the
 * spare bytes. */
bool policy_spares_too_much(const struct heap *heap, uint64_t bytes);

/* Bytes that could be cached in addition to what the context holds. */
uint64_t policy_room_to_keep(const struct pool *pool, const struct context *context);

/* Notes that an allocation has waited for a second in which nothing became clean. Something that
 * the program does between its frees and its allocations must be unknown to the pool. For ten
 * seconds the context's frees wait, as the plain ones do. The next time that span is twice as long,
 * up to ten minutes. It halves after each such span without another such wait. The lock may be
 * released in between. */
void heap_note_stalled_wait(struct pool *pool, struct context *context);

#endif
