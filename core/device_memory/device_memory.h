/*
 * Device memory (cuMemAlloc) as a kind of memory: what the rest of the core may ask of it.
 *
 * An allocation that hits, and its free, take the fast path of thread_cache.h; everything else goes
 * through ladder.h, miss.h, free.h and driver_free.h. Files of this directory call down this list:
 *
 *   ladder, free, free_fence, driver_free, cache_wait, miss, lost     what calls do
 *   policies                                                         when they do what
 *   release                                                          giving memory back
 *   place, cache_threads, cache_set, cache_bin, sums, thread_cache   blocks that threads hold
 *   heap, bucket, keep                                               the state, its lists
 */
#ifndef CUDAPOOL_CORE_DEVICE_MEMORY_H
#define CUDAPOOL_CORE_DEVICE_MEMORY_H

#include "cache_set.h"
#include "cache_threads.h"
#include "cache_wait.h"
#include "driver_free.h"
#include "free.h"
#include "free_fence.h"
#include "heap.h"
#include "ladder.h"
#include "lost.h"
#include "miss.h"
#include "sums.h"
#include "thread_cache.h"

/* The kind, for the table of kinds (kind.h): the first one, see heap_of. */
extern const struct kind device_memory;

#endif
