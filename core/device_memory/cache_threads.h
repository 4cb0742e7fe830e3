/*
 * Whose a thread cache is: made when a thread first needs one, and another's when it has ended.
 *
 * How the end of a thread is told, and what becomes of a cache whose thread told nothing, is said
 * in thread_cache.h.
 */
#ifndef CUDAPOOL_CORE_CACHE_THREADS_H
#define CUDAPOOL_CORE_CACHE_THREADS_H

#include "core/base/threads.h"
#include "heap.h"
#include "thread_cache.h"

/* Once, when a pool is made: whether closing caches can make other processors pass a memory
 * barrier, and how the ends of threads are told. */
void thread_caches_prepare(struct pool *pool, const struct thread_functions *threads);

/* Before a thread can have a cache: its end is to be told. Takes no lock; it may allocate. */
void thread_cache_prepare_thread(const struct pool *pool);

/* The calling thread's cache in this heap, or NULL. No lock needed. */
struct thread_cache *thread_cache_known(const struct heap *heap);

/* Heap lock held. This thread's cache in the heap, made if there was none; NULL where it can have
 * none. */
struct thread_cache *thread_cache_of_this_thread(struct pool *pool, struct heap *heap);

#endif
