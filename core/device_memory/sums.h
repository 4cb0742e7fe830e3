/*
 * Sums over what a heap has: what is free in its lists and in thread caches, and what the program
 * holds.
 *
 * Nothing here changes a block or a list. Where no lock is needed, a sum over several caches is of
 * no one moment: a block that changes hands meanwhile may be missed, and never counts twice in what
 * the program holds, which the reserve's bound follows. All numbers are bytes, unless said.
 *
 *   reserved = live + clean + pending       (blocks' bytes, in the heap's lists and in caches)
 *   requested <= live                       (as the program asked for it)
 */
#ifndef CUDAPOOL_CORE_SUMS_H
#define CUDAPOOL_CORE_SUMS_H

#include <stdbool.h>
#include <stdint.h>

#include "heap.h"
#include "thread_cache.h"

/* With more threads than so many, all caches are not looked through at each step of a slow path. */
#define SUMS_FEW_THREADS 2u

/* ... unless so much was handed out since, which might be missing in the peaks. */
#define SUMS_STEP (UINT64_C(32) << 20)

/* Who the other threads are does not change in so many epochs. */
#define SUMS_EPOCHS_OLD 2u

struct heap_bytes {
    uint64_t clean, pending; /* free, in the heap's lists and in thread caches; clean: and spare */
    uint64_t spare;     /* of clean: in segments of which something else is in use, or cached */
    uint64_t requested; /* what the program holds, as it asked for it */
};

/* Any thread, no lock needed: of one moment only with the heap's lock held and its caches closed.
 */
struct heap_bytes heap_bytes(const struct heap *heap);

/* The most that the program held at a time in the contexts that were this heap's, as it asked for
 * it. No lock needed. */
uint64_t heap_peak_requested(const struct heap *heap);

/* Heap lock held. The program holds so much, as it asked for it: raises the peaks of that and of
 * what is reserved. */
void heap_note_requested(struct heap *heap, uint64_t requested);

/* Heap lock held. What the last look through all caches has shown. Where there are more than a few
 * threads it is not repeated while it is at most so many epochs old; 0: what is pending must be of
 * now. Each look costs every thread a cache line or two. */
const struct recent_sums *heap_recent_sums(struct heap *heap, uint64_t epochs_old);

/* Heap lock held. What the heap has reserved and the program does not hold, but for what is spare.
 */
uint64_t heap_kept_bytes(struct heap *heap);

/* Heap lock held. Free blocks of the bucket, in the heap's lists and in thread caches; where those
 * may hold no more than there may be, what they may hold counts. */
uint64_t heap_free_blocks(const struct heap *heap, const struct bucket *bucket);

/* Heap lock held. The newest stamp of what may be pending; 0: nothing is. */
uint64_t heap_newest_pending(const struct heap *heap);

/* Heap lock held. Raises the peaks of the bucket and of what the program holds to what they are
 * now: peaks are those that a slow path has seen. */
void heap_raise_peaks(struct heap *heap, const struct bucket *bucket);

/* Heap lock held. Counts a block as the program's, in the slow path. */
void heap_count_live(struct heap *heap, struct block *block);

/* ---- of caches alone; no lock needed ---- */

struct cached_sums {
    uint64_t free_bytes;    /* clean and pending */
    uint64_t pending_bytes; /* of free_bytes */
    uint64_t pending_slots; /* bits: of the threads that have some */
    unsigned freeing;       /* threads that have freed something lately */
    uint64_t requested_out; /* what was asked for of blocks that caches have handed out, ever */
};
struct cached_sums thread_caches_sum(const struct heap *heap);

/* What was asked for of blocks that caches have handed out, ever; and of those that they have taken
 * back. The second is to be looked at after everything else that is summed up: a block that changes
 * hands meanwhile is then missed, and never counted twice. */
uint64_t thread_caches_requested_out(const struct heap *heap);
uint64_t thread_caches_requested_back(const struct heap *heap);

/* The number of blocks of one bucket, but for those of this cache (NULL: of all); clean: those
 * alone. */
uint64_t thread_caches_blocks(const struct heap *heap, const struct bucket *bucket,
                              const struct thread_cache *but, bool clean);

/* The newest stamp that may still be pending in a cache; 0: none is. */
uint64_t thread_caches_newest_stamp(const struct heap *heap);

/* What is pending in one cache. */
uint64_t thread_cache_pending(const struct thread_cache *cache);

/* For the report, beside threads that may be counting: what has become clean in bins without their
 * threads' looking counts as clean, and what the program holds now for the peak. */
void thread_caches_settle(struct heap *heap);

#endif
