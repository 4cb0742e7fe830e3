/*
 * Lets an allocation wait a short time, without the heap lock, for the fence of the pending blocks
 * in its thread's cache. Once the fence has completed, these blocks are clean and may serve the
 * allocation. thread_cache.h describes when and why a thread waits.
 */
#ifndef CUDAPOOL_CORE_CACHE_WAIT_H
#define CUDAPOOL_CORE_CACHE_WAIT_H

#include <stdbool.h>

#include "heap.h"
#include "thread_cache.h"

/* Called inside an allocation; the caller holds no lock. Waits a short time for the fence of the
 * pending blocks in the thread's cache. It waits only while the GPU keeps up, and if the fence is
 * recorded or another thread may record it. A lone thread with few pending blocks does not wait,
 * but queries the driver at most once. So does any thread while memory is to stay hot
 * (hot_memory.h), or once several contexts have existed. Returns whether the fence has completed.
 * Takes the heap lock only to query the driver, which one thread does for all. */
bool heap_await_fence(struct pool *pool, struct context *context, struct thread_cache *cache,
                      const struct cache_pending *pending);

/* Counts the time that this thread has waited as a wait for a block of the bin's size. No lock
 * needed. */
void heap_take_wait(const struct cache_bin *bin);

#endif
