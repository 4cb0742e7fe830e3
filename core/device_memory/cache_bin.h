/*
 * The bins of one thread cache: how much they may hold, and blocks on their way between a bin and
 * the heap's lists.
 *
 * Every function is called with the heap lock held, and either by the cache's thread or while the
 * heap's caches are closed (cache_set.h). A bin that is in use belongs to one bucket:
 *
 *   bucket->granted_to_caches = sum of bin->capacity over the bucket's bins
 *   bin->room + blocks in the bin = bin->capacity
 *   bucket->granted_to_caches <= 3/4 of the heap's blocks_per_bucket
 */
#ifndef CUDAPOOL_CORE_CACHE_BIN_H
#define CUDAPOOL_CORE_CACHE_BIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/numbers.h"
#include "heap.h"
#include "thread_cache.h"

/* How many of a bucket's free blocks all caches together may hold: the rest is for the heap's
 * lists.
 */
static inline uint64_t cache_blocks_of_bucket(const struct heap *heap)
{
    return heap->blocks_per_bucket - heap->blocks_per_bucket / 4;
}

/* The cache's bin for this bucket, made if there was none; NULL where it can have none, or the
 * bucket is shared. request: a size that it is to serve, or 0. */
struct cache_bin *thread_cache_bin(struct thread_cache *cache, struct bucket *bucket,
                                   size_t request);

/* The bin at this place if it belongs to a bucket, else NULL. */
struct cache_bin *cache_bin_in_use(struct thread_cache *cache, unsigned place);

/* Takes the newest clean block out of the bin, so that it is in no list; NULL where none is. */
struct block *thread_cache_pop(struct thread_cache *cache, struct cache_bin *bin);

/* How many clean blocks the bin wants now. */
unsigned thread_cache_wants(const struct thread_cache *cache, struct cache_bin *bin);

/* Counts a block that thread_cache_fill is to put there. */
void thread_cache_expect(struct thread_cache *cache, struct cache_bin *bin);

/* Puts an expected clean block that is in no list on top of the bin's other clean ones. */
void thread_cache_fill(struct cache_bin *bin, struct block *block);

/* Moves blocks to the heap's lists: all of the bin; the older half of a full one; or all but the
 * newest so many. Where more than those are pending, the segment that would be cut goes as a whole.
 */
void thread_cache_empty_bin(struct thread_cache *cache, struct cache_bin *bin);
void thread_cache_halve_bin(struct thread_cache *cache, struct cache_bin *bin);
void thread_cache_cut_bin(struct thread_cache *cache, struct cache_bin *bin, uint64_t stay);

/* Takes an empty bin away from its bucket; its counts stay. */
void cache_bin_retire(struct cache_bin *bin);

/* Moves all blocks of the cache to the heap's lists. */
void thread_cache_empty(struct thread_cache *cache);

/* What the cache may hold has changed, or it holds too much: gives the rest to the heap's lists. */
void thread_cache_fit(struct thread_cache *cache);

#endif
