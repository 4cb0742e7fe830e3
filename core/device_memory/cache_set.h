/*
 * All caches of a heap's threads together: closing and emptying them, sharing a bucket, sleep.
 *
 * How caches are closed, and why that is enough, is told in thread_cache.h. Every function is
 * called with the heap lock held. Those that move blocks close the caches meanwhile, and wait for
 * threads that are inside, which is short.
 */
#ifndef CUDAPOOL_CORE_CACHE_SET_H
#define CUDAPOOL_CORE_CACHE_SET_H

#include <stdbool.h>
#include <stdint.h>

#include "heap.h"
#include "thread_cache.h"

/* Once, when a pool is made, without a lock: whether closing caches can make all processors that
 * run this process pass a memory barrier. */
bool thread_caches_prepare_closing(void);

/* The bits have just been set in heap->closed: returns when no thread is inside that has not seen
 * them. */
void thread_caches_wait(struct heap *heap);

/* Sets or clears the bits of heap->closed that follow from what the heap says of itself: after each
 * change of heap->ending, heap->finest_sizes, heap->keep or the marks of host work. */
void thread_caches_update_closed(struct heap *heap);

/* Moves the blocks of all caches to the heap's lists. */
void thread_caches_collect(struct heap *heap);

/* Moves all but so many of that many blocks to the heap's lists, of each bin its part: bins of
 * SIZE_CLASS_PAGE and more keep theirs, unless blocks are cut out of segments. */
void thread_caches_thin_out(struct heap *heap, uint64_t stay, uint64_t of);

/* Moves what caches have of one bucket, beyond their threads' fair parts; starved: for a thread
 * that has nothing to wait for. Where that is done again and again, the bucket is shared: caches
 * hold nothing of it for a while. */
void thread_caches_take(struct heap *heap, struct bucket *bucket, bool starved);

/* Shares the bucket at once: many wait for the GPU, and a list that all use needs fewer blocks than
 * a list for each. */
void thread_caches_share(struct heap *heap, struct bucket *bucket);

/* Called now and then: puts the caches of threads to sleep that have done nothing for long. They
 * are given back what they hold, and are not looked at any more until they use the slow path. but:
 * the calling thread's. now: nanoseconds of the monotonic clock. */
void thread_caches_let_sleep(struct heap *heap, const struct thread_cache *but, uint64_t now);

/* What threads have not touched for so many nanoseconds, bin by bin, goes to the heap's lists. now:
 * nanoseconds of the monotonic clock. When more will be idle so long; UINT64_MAX: caches hold
 * nothing. What a thread uses meanwhile is seen at the next call: times are at most as old as the
 * last one. */
uint64_t thread_caches_take_idle(struct heap *heap, uint64_t now, uint64_t idle);

/* The next free of each cache takes its slow path, unless it is the first in an epoch. Whether the
 * caches hold anything now. What comes into them later sees what the calling thread has stored
 * before. */
bool thread_caches_watch(struct heap *heap);

/* One cache alone, of this thread or of one that is not inside: lists it as one that may hold
 * something; and empties it, takes its bins and takes it off that list. */
void thread_cache_wake(struct thread_cache *cache);
void thread_cache_put_to_sleep(struct thread_cache *cache);

#endif
