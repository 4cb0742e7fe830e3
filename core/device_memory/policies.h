/*
 * Policies: questions that conditions of several owners answer together. They look and decide, and
 * call no driver. Two also act on what they find: policy_watch_rounding closes or opens the caches,
 * and heap_note_vain_wait empties them.
 *
 * Where the heuristics of device memory are; docs/design.md says under these names what each is for
 * and which measurement shows it.
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
 * Frees that wait, memory missed policy_pending_is_missed, policy_nothing_is_missed
 * Frees that wait, after a wait  heap_note_vain_wait
 * in vain
 */
#ifndef CUDAPOOL_CORE_POLICIES_H
#define CUDAPOOL_CORE_POLICIES_H

#include <stdbool.h>
#include <stdint.h>

#include "heap.h"
#include "hot_memory.h"
#include "place.h"
#include "thread_cache.h"

/* ---- a new block, or one that is pending; heap lock held ---- */

/* Whether a new block keeps the reserve inside its ratio and displaces no other, and what is
 * pending inside the growth budget. */
bool policy_may_grow(struct pool *pool, struct context *context, const struct bucket *bucket);

/* Whether the thread is to take a new block rather than that it waits for one at this place. */
bool policy_prefers_growth(struct pool *pool, struct context *context, const struct place *place);

/* Whether a thread that could wait for a block of its own may ask for a new one now. Of several
 * threads one does so at a time: each call takes the driver's lock, which others' launches want, so
 * that the calls of many, all at once, take each of them as long as all together. No lock needed.
 */
bool policy_growth_is_due(const struct heap *heap);

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
bool policy_other_caches_hold_bucket(struct pool *pool, struct context *context,
                                     const struct place *place, bool grows);

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

/* Whether the room is so large that so many bytes more that are pending, and what caches may hold,
 * make no difference. No lock needed. */
bool policy_nothing_is_missed(const struct context *context, uint64_t more, uint64_t room);

/* ---- what a miss or a wait has shown; heap lock held ---- */

/* Rounding has cost what it has cost: decides whether sizes are the driver's own from now on. */
void policy_watch_rounding(struct heap *heap, const struct device *device);

/* Whether so much is spare in pieces that do not serve blocks of so many bytes, which therefore
 * miss, that no more is asked for than such a block takes: else the program would miss what is
 * spare. */
bool policy_spares_too_much(const struct heap *heap, uint64_t bytes);

/* Bytes that could be kept as well as what the context holds. */
uint64_t policy_room_to_keep(const struct pool *pool, const struct context *context);

/* An allocation has waited for a second in which nothing became clean: the program does something
 * between its frees and its allocations that nobody has thought of. For ten seconds the context's
 * frees wait, as the plain ones do; the next time twice as long, up to ten minutes, and after each
 * such span without a vain wait half as long again. The lock may be released in between. */
void heap_note_vain_wait(struct pool *pool, struct context *context);

#endif
