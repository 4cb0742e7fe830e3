/*
 * A short wait inside an allocation, without the heap's lock, for the fence of what the thread has
 * in its cache. When and why is told in thread_cache.h.
 */
#ifndef CUDAPOOL_CORE_CACHE_WAIT_H
#define CUDAPOOL_CORE_CACHE_WAIT_H

#include <stdbool.h>

#include "heap.h"
#include "thread_cache.h"

/* Inside an allocation: waits a moment for the fence of what a thread has in its cache, where it is
 * about to be over, or other threads are there to record it; whether it is over. No lock held, and
 * none taken but to ask the driver, which one thread at a time does. */
bool heap_await_fence(struct pool *pool, struct context *context, struct thread_cache *cache,
                      const struct cache_pending *pending);

/* Counts what this thread has waited for a block of the bin's size. No lock needed. */
void heap_take_wait(const struct cache_bin *bin);

#endif
