/*
 * Policies: questions that conditions of several owners answer together. The functions here look
 * and decide. They move no block and call no driver; policy_watch_rounding, heap_note_vain_wait and
 * policy_frees_synchronise also note in the heap what they have decided.
 *
 * All heuristics of device memory: what each is for, where it is, and which measurement shows it.
 * "bench" is a section of make bench (tests/bench/NOTES.md), "gpu" a row of tests/gpu/RESULTS.md.
 *
 * Growth budget                 Freed blocks that the GPU still uses may add up to so much before
 *   policy_may_grow             an allocation waits: it keeps every stream's queue filled.
 *                               bench overlap; gpu overlap, with budget 0 beside it
 * Share of the budget           A thread that runs ahead of the others waits, since its long queue
 *   policy_is_ahead             would hold up every fence. bench overlap, 4 and 16 threads
 * Patience                      A thread waits for its own blocks for as long as a new one takes,
 *   cache_wait.c,               then takes a new one: so each gets as many as it needs.
 *   policy_waited_longer_...    bench pairs, 1 to 256 KiB and 4 KiB, 8 to 16 threads
 * Growth in turns               One thread at a time is in the driver for a block that somebody
 *   policy_growth_is_due        could do without, for a sixteenth of the time: all fences wait for
 *                               the driver meanwhile. bench pairs, 12 and 16 threads
 * Trade                         A device's unused sizes go for a wanted one past the reserve's
 *   may_trade_unused_for_it     bound. bench pairs, mixed sizes, 16 threads; no row of its own
 * Taking from other caches      Blocks that lie in threads' caches serve a thread that would wait
 *   policy_other_caches_...,    for the driver or in vain; each keeps its fair part.
 *   thread_caches_take          bench cross, and pairs, mixed sizes with kernels
 * Sharing of buckets            A size that threads take from each other all the time, or whose
 *   thread_caches_take, _share  budget a busy GPU has used up, is in no cache for a while.
 *                               bench pairs, mixed sizes on 16 streams; bench overlap, 16 threads
 * Refills                       A cache gets twice as many blocks each time, up to half of what it
 *   thread_cache_wants          may hold. bench pairs, mixed sizes; bench cross
 * Sleep and retirement          Caches of idle and ended threads hold nothing, and the others may
 *   cache_set.c,                hold the more. bench short_threads; "a lone thread just after 16
 *   cache_threads.c             threads" in tests/bench/NOTES.md
 * Device barriers               Where one thread uses the context, the device waits and the host
 *   policy_barriers_...         goes on. bench overlap, 1 thread; gpu overlap, 1 threads
 * Fewer fences                  A fence serves many frees: twice as many while one thread uses the
 *   policy_fence_is_due,        heap, half of a bin while the GPU keeps up.
 *   place_refresh_cache         bench calls; scripts/instructions_per_pair.sh
 * One closer                    Of threads whose fence is due at a time one closes the epoch; the
 *   another_closes              others rely on it for 30 microseconds. bench pairs, 8 to 16 threads
 * Ghosts and trials             On a nearly full device large blocks are kept only where that has
 *   keep.h                      been seen to pay. gpu fill_memory
 * Finest sizes                  Sizes are not rounded to buckets while rounding costs a program too
 *   policy_watch_rounding       much of the device. gpu fill_memory; no row of its own
 * Missed frees                  A free waits where little is left and a request might miss what is
 *   policy_pending_is_missed,   pending. gpu locks, "memory short"
 *   policy_nothing_is_missed
 * Frees that wait               After a wait in vain the context's frees wait for a while as the
 *   heap_note_vain_wait         driver's do. gpu locks, kernel
 */
#ifndef CUDAPOOL_CORE_POLICIES_H
#define CUDAPOOL_CORE_POLICIES_H

#include <stdbool.h>
#include <stdint.h>

#include "heap.h"
#include "place.h"
#include "thread_cache.h"

/* ---- a new block, or one that is pending; heap lock held ---- */

/* Whether a new block keeps the reserve inside its ratio and displaces no other, and what is
 * pending inside the growth budget. */
bool policy_may_grow(struct pool *pool, struct context *context, const struct bucket *bucket);

/* Whether the thread is to take a new block rather than that it waits for one at this place. */
bool policy_prefers_growth(struct pool *pool, struct context *context, const struct place *place);

/* Whether a new block may be asked for now. No lock needed. now: nanoseconds of the monotonic
 * clock. */
bool policy_growth_is_due(const struct heap *heap, uint64_t now);

/* What a new block has cost lately, in nanoseconds. No lock needed. */
int64_t policy_cost_of_growth(const struct heap *heap);

/* Whether this thread has waited for as long as a new block would have taken; then it takes one. */
bool policy_waited_longer_than_a_miss(struct pool *pool, struct context *context,
                                      const struct place *place);

/* Whether nobody has a free block of the bucket, as in a program that only allocates: there is
 * nothing to ask about. Of many threads' caches that is not looked up for each block. */
bool policy_nobody_has_one(const struct heap *heap, const struct bucket *bucket);

/* Whether there is something pending that a fence covers, or will soon. */
bool policy_can_wait(const struct context *context, const struct place *place);

/* Whether other threads' caches have what this one would have to ask the driver for, or, where the
 * reserve may not grow, to wait for: clean blocks, or any where it has nothing to wait for. */
bool policy_other_caches_hold_bucket(struct context *context, const struct place *place,
                                     bool grows);

/* Whether a wait may be the device's, behind a context barrier, instead of the host's. Threads that
 * take and free without the lock are seen by what they free. */
bool policy_barriers_may_be_used(struct pool *pool, struct heap *heap);

/* Whether this thread has more than its share of what is pending, and so waits before it takes
 * more. */
bool policy_is_ahead(struct context *context, const struct thread_cache *cache);

/* ---- a free; heap lock held ---- */

/* Whether so much was freed since the last fence that the next one is due. */
bool policy_fence_is_due(const struct context *context);

/* Whether frees wait for the GPU as the driver's do: the settings say so, or an allocation has
 * waited in vain. */
bool policy_frees_synchronise(const struct pool *pool, struct heap *heap);

/* Whether the context has work that ends only if the host acts: frees wait for it. */
bool policy_has_host_work(const struct context *context);

/* Whether the driver frees this block in any case. */
bool policy_is_the_drivers_to_free(struct pool *pool, const struct context *context,
                                   const struct block *block);

/* Whether the pool records no fence in this context any more. No lock needed. */
bool policy_is_without_fences(const struct context *context);

/* Whether what is left of a fence may be other contexts' work only, which the plain driver does not
 * wait for: that is asked about, and never waited for. No lock needed. */
bool policy_others_work_may_count(struct pool *pool);

/* Whether an allocation might miss what is pending, and the host have to act before that is over,
 * though nothing tells so (a kernel that another thread lets go). room: bytes that are left. */
bool policy_pending_is_missed(struct context *context, uint64_t room);

/* Whether the room is so large that what caches may hold makes no difference. No lock needed. */
bool policy_nothing_is_missed(const struct context *context, uint64_t room);

/* ---- what a miss or a wait has shown; heap lock held ---- */

/* Rounding has cost what it has cost: decides whether sizes are the driver's own from now on. */
void policy_watch_rounding(struct heap *heap, const struct device *device);

/* Bytes that could be kept as well as what the context holds. */
uint64_t policy_room_to_keep(const struct pool *pool, const struct context *context);

/* An allocation has waited for a second in which nothing became clean: the program does something
 * between its frees and its allocations that nobody has thought of. For ten seconds the context's
 * frees wait, as the plain ones do; the next time twice as long, up to ten minutes, and after each
 * such span without a vain wait half as long again. The lock may be released in between. */
void heap_note_vain_wait(struct pool *pool, struct context *context);

#endif
