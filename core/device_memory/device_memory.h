/*
 * Device memory (cuMemAlloc) as a kind of memory: what the rest of the core may call.
 *
 * An allocation that hits, and its free, take the fast path of thread_cache.h. They use none of the
 * files above that one in this list. The files of this directory call down the list, and never up:
 *
 *   ladder, free                       an allocation and a free that take the heap lock
 *   miss, free_fence, cache_wait       a new block, the fence that ends a free, a short wait
 *   policies                           when each of these acts; the table of heuristics
 *   place                              where the calling thread looks for blocks of a size
 *   release, driver_free, lost, parked releasing memory to the driver; blocks that leave the pool
 *                                      in other ways, or that graphs own
 *   cache_threads, cache_set           the owners of caches; all caches of a heap together
 *   cache_bin, sums                    the bins of one cache; sums over lists and caches
 *   thread_cache                       the fast path
 *   heap, bucket, keep, parts          the state, its lists, its buckets; ghosts and trials; blocks
 *                                      that are cut out of larger ones
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
#include "heap_miss.h"
#include "ladder.h"
#include "parked.h"
#include "sums.h"
#include "thread_cache.h"

/* Device memory in the table of kinds (kind.h). It is the first entry, see heap_of. */
extern const struct kind device_memory;

#endif
