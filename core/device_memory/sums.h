/*
 * Sums over a heap: what is free in its lists and in thread caches, and what the program holds.
 *
 * Nothing here changes a block or a list. A sum over several caches that is made without the lock
 * is no snapshot: it may miss a block that moves meanwhile. It never counts a block twice in what
 * the program holds, which the reserve's bound follows. All numbers are bytes, unless stated
 * otherwise.
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

/* With more threads than this, a slow path does not look through all caches at each step. */
#define SUMS_FEW_THREADS 2u

/* Once slow paths have handed out this many bytes since the last look, they look whatever the
 * number of threads. The peaks might miss these bytes otherwise. */
#define SUMS_STEP (UINT64_C(32) << 20)

/* A look this many epochs old still tells which other threads are active. */
#define SUMS_EPOCHS_OLD 2u

struct heap_bytes {
    /* Free memory in the heap's lists and in thread caches. clean includes spare. */
    uint64_t clean, pending;
    uint64_t spare; /* part of clean: in segments of which something else is in use, or cached */
    uint64_t requested; /* what the program holds, as it asked for it */
};

/* Any thread, no lock needed. The sums are a snapshot only with the heap's lock held and its caches
 * closed. */
struct heap_bytes heap_bytes(const struct heap *heap);

/* The most that the program held at once in any context that was this heap's, as it asked for it.
 * No lock needed. */
uint64_t heap_peak_requested(const struct heap *heap);

/* Heap lock held. Raises the peaks of what the program holds, as it asked for it (requested), and
 * of what is reserved. */
void heap_note_requested(struct heap *heap, uint64_t requested);

/* Heap lock held. What the last look through all caches has shown. With more than SUMS_FEW_THREADS
 * threads, a look up to epochs_old epochs old is good enough. 0: no epoch may have been closed or
 * become clean since, so that the pending bytes are current. Each look costs every thread a cache
 * line or two. */
const struct recent_sums *heap_recent_sums(struct heap *heap, uint64_t epochs_old);

/* Heap lock held. What the heap has reserved and the program does not hold, without spare bytes. */
uint64_t heap_kept_bytes(struct heap *heap);

/* Heap lock held. The number of the bucket's free blocks, in the heap's lists and in thread caches.
 * While free_blocks + granted_to_caches < blocks_per_bucket, that sum is returned as an upper
 * bound. */
uint64_t heap_free_blocks(const struct heap *heap, const struct bucket *bucket);

/* Heap lock held. The newest stamp of what may be pending; 0: nothing is. */
uint64_t heap_newest_pending(const struct heap *heap);

/* Heap lock held. Raises the peaks of the bucket and of what the program holds to their present
 * values. Peaks are what slow paths have seen. */
void heap_raise_peaks(struct heap *heap, const struct bucket *bucket);

/* Heap lock held. Counts a block that a slow path hands to the program. */
void heap_count_live(struct heap *heap, struct block *block);

/* ---- sums of caches alone; no lock needed ---- */

struct cached_sums {
    uint64_t free_bytes;    /* clean and pending */
    uint64_t pending_bytes; /* part of free_bytes */
    uint64_t pending_slots; /* bit mask: slots of the threads that have some pending */
    unsigned freeing;       /* number of threads that have freed something lately */
    uint64_t requested_out; /* requested bytes of all blocks that caches have ever handed out */
};
struct cached_sums thread_caches_sum(const struct heap *heap);

/* Requested bytes of all blocks that caches have ever handed out, and of those that they have taken
 * back. Read the second after everything else that is summed up. A block that moves meanwhile is
 * then missed, and never counted twice. */
uint64_t thread_caches_requested_out(const struct heap *heap);
uint64_t thread_caches_requested_back(const struct heap *heap);

/* The number of the bucket's blocks in all caches except but (NULL: in all). clean: counts clean
 * blocks only. */
uint64_t thread_caches_blocks(const struct heap *heap, const struct bucket *bucket,
                              const struct thread_cache *but, bool clean);

/* The newest stamp that may still be pending in a cache; 0: nothing is pending. */
uint64_t thread_caches_newest_stamp(const struct heap *heap);

/* Bytes that are pending in one cache. */
uint64_t thread_cache_pending(const struct thread_cache *cache);

/* Brings the figures up to date for the report, while threads may be counting. Blocks in bins that
 * have become clean without their thread looking count as clean. What the program holds now raises
 * the peak. */
void thread_caches_count_clean(struct heap *heap);

#endif
