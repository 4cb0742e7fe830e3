/*
 * Device memory (cuMemAlloc) as a kind of memory: what the rest of the core may ask of it.
 *
 * An allocation that hits, and its free, take the fast path of thread_cache.h, and go through none
 * of the files above it. Files of this directory call down this list, and never up:
 *
 *   ladder, free                       an allocation and a free that take the heap's lock
 *   miss, free_fence, cache_wait       a new block, the fence that ends a free, a short wait
 *   policies                           when all these do what; the table of heuristics
 *   place                              where the calling thread looks for blocks of a size
 *   release, driver_free, lost, parked giving memory back; blocks that the pool lets go, or keeps
 *   cache_threads, cache_set           whose caches are; all caches of a heap together
 *   cache_bin, sums                    one cache's bins; what lists and caches hold together
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
#include "lost.h"
#include "parked.h"
#include "sums.h"
#include "thread_cache.h"

/* The kind, for the table of kinds (kind.h): the first one, see heap_of. */
extern const struct kind device_memory;

#endif
