/*
 * The owners of thread caches. A cache is made when a thread first needs one, and passes to another
 * thread after its owner has ended.
 *
 * thread_cache.h describes how the pool learns that a thread has ended, and what becomes of the
 * cache of a thread that ended unnoticed.
 */
#ifndef CUDAPOOL_CORE_CACHE_THREADS_H
#define CUDAPOOL_CORE_CACHE_THREADS_H

#include "core/base/threads.h"
#include "heap.h"
#include "thread_cache.h"

/* Called once when a pool is made. Finds out whether the closing of caches can make other
 * processors pass a memory barrier, and sets up the notice of the ends of threads. */
void thread_caches_prepare(struct pool *pool, const struct thread_functions *threads);

/* Called before a thread can have a cache: registers the thread for the notice of its end. Takes no
 * lock, but may allocate memory. */
void thread_cache_prepare_thread(const struct pool *pool);

/* Returns the calling thread's cache in this heap, or NULL. No lock needed. */
struct thread_cache *thread_cache_known(const struct heap *heap);

/* Heap lock held. Returns the calling thread's cache in the heap, awake, and makes it if there was
 * none. NULL if the thread can have none. */
struct thread_cache *thread_cache_of_this_thread(struct pool *pool, struct heap *heap);

#endif
