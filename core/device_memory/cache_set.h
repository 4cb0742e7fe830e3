/*
 * All thread caches of a heap together: closing and emptying them, sharing a bucket, and putting
 * idle caches to sleep.
 *
 * thread_cache.h describes how caches are closed and why that is enough. The caller holds the heap
 * lock, unless a comment says otherwise. Functions that move blocks close the caches meanwhile, and
 * wait for threads inside a cache, which takes a short time.
 */
#ifndef CUDAPOOL_CORE_CACHE_SET_H
#define CUDAPOOL_CORE_CACHE_SET_H

#include <stdbool.h>
#include <stdint.h>

#include "heap.h"
#include "thread_cache.h"

/* Called once when a pool is made, without a lock. Returns whether the closing of caches can make
 * all processors that run this process pass a memory barrier. */
bool thread_caches_prepare_closing(void);

/* Called after bits were set in heap->closed. Returns once no thread that has not seen those bits
 * is inside a cache. */
void thread_caches_wait(struct heap *heap);

/* Sets or clears the bits of heap->closed that follow from the heap's state. Called after each
 * change of heap->ending, heap->finest_sizes, heap->keep or the marks of host work (host_marks.h).
 */
void thread_caches_update_closed(struct heap *heap);

/* Moves the blocks of all caches to the heap's lists. */
void thread_caches_collect(struct heap *heap);

/* Shrinks each bin to `stay` / `of` of its blocks. The older blocks move to the heap's lists. Bins
 * of blocks of SIZE_CLASS_PAGE and more keep all blocks, unless blocks are cut out of segments. */
void thread_caches_thin_out(struct heap *heap, uint64_t stay, uint64_t of);

/* Moves the bucket's blocks out of the caches into the heap's lists, but leaves each thread its
 * fair part. starved: the calling thread has no pending block to wait for. If this happens often in
 * close succession, the bucket becomes shared: caches hold none of its blocks for a while. */
void thread_caches_take(struct heap *heap, struct bucket *bucket, bool starved);

/* Makes the bucket shared at once. Used when many threads wait for the GPU: one common list needs
 * fewer blocks than a list for each thread. */
void thread_caches_share(struct heap *heap, struct bucket *bucket);

/* Called now and then. Puts to sleep the caches of threads that have done nothing for CACHE_IDLE.
 * It empties each into the heap's lists, and takes it off the list of awake caches. A cache wakes
 * when its thread uses the slow path. but: the calling thread's cache, which stays awake. now:
 * nanoseconds of the monotonic clock. */
void thread_caches_let_sleep(struct heap *heap, const struct thread_cache *but, uint64_t now);

/* Empties each bin that its thread has not used for `idle` nanoseconds into the heap's lists. now:
 * nanoseconds of the monotonic clock. Returns when the next bin will be idle for so long;
 * UINT64_MAX: the caches hold nothing. Each call compares use counts with those of the last call,
 * so a use is dated by the call that first sees it. */
uint64_t thread_caches_take_idle(struct heap *heap, uint64_t now, uint64_t idle);

/* Makes the next free of each cache take its slow path, unless it is the first free in an epoch.
 * Returns whether the caches hold anything now. A thread that puts a block into its cache later
 * sees all earlier stores of the calling thread. */
bool thread_caches_watch(struct heap *heap);

/* Act on one cache, of the calling thread or of a thread that is not inside. wake lists the cache
 * as one that may hold blocks. put_to_sleep empties the cache, takes away its bins, and takes the
 * cache off that list. */
void thread_cache_wake(struct thread_cache *cache);
void thread_cache_put_to_sleep(struct thread_cache *cache);

#endif
