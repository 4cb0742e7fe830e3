/*
 * The bins of one thread cache: how many blocks each bin may hold, and how blocks move between a
 * bin and the heap's lists.
 *
 * The caller holds the heap lock. The caller is also either the cache's thread, or has closed the
 * heap's caches (cache_set.h). Each bin in use belongs to one bucket:
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

/* The most free blocks of a bucket that all caches together may hold. The rest is reserved for the
 * heap's lists. */
static inline uint64_t cache_blocks_of_bucket(const struct heap *heap)
{
    return heap->blocks_per_bucket - heap->blocks_per_bucket / 4;
}

/* Returns the cache's bin for this bucket, and makes it if there was none. NULL if the bin would
 * hold too few blocks, the bucket is shared, or memory is short. request: a request size that finds
 * this bin from now on; 0: none. */
struct cache_bin *thread_cache_bin(struct thread_cache *cache, struct bucket *bucket,
                                   size_t request);

/* Returns the bin at this place, or NULL if it belongs to no bucket. */
struct cache_bin *cache_bin_in_use(struct thread_cache *cache, unsigned place);

/* Takes the newest clean block out of the bin. The block is then in no list. NULL if no block is
 * clean. */
struct block *thread_cache_pop(struct thread_cache *cache, struct cache_bin *bin);

/* Returns how many clean blocks a refill of the bin should bring now. */
unsigned thread_cache_wants(const struct thread_cache *cache, struct cache_bin *bin);

/* Counts a block that the caller is about to add with thread_cache_fill. */
void thread_cache_expect(struct thread_cache *cache, struct cache_bin *bin);

/* Puts a clean block that is in no list, and that thread_cache_expect has counted, on top of the
 * bin's clean blocks. */
void thread_cache_fill(struct cache_bin *bin, struct block *block);

/* Move blocks to the heap's lists: all blocks of the bin; the older half of a full bin; or all but
 * the newest `stay` blocks. A segment of pending blocks always moves as a whole. So fewer than
 * `stay` blocks may remain if more than `stay` are pending. */
void thread_cache_empty_bin(struct thread_cache *cache, struct cache_bin *bin);
void thread_cache_halve_bin(struct thread_cache *cache, struct cache_bin *bin);
void thread_cache_cut_bin(struct thread_cache *cache, struct cache_bin *bin, uint64_t stay);

/* Takes an empty bin away from its bucket. The bin's counters stay. */
void cache_bin_retire(struct cache_bin *bin);

/* Moves all blocks of the cache to the heap's lists. */
void thread_cache_empty(struct thread_cache *cache);

/* Applies the cache's present limits after they have changed, or after the cache has grown past
 * them. Blocks beyond the limits move to the heap's lists. */
void thread_cache_fit(struct thread_cache *cache);

#endif
