/*
 * The place where a slow path looks for a block, or puts one. A place is a bucket and the calling
 * thread's bin for that bucket; the bin serves beside the heap's lists.
 *
 * Callers hold the heap lock, and no function releases it.
 */
#ifndef CUDAPOOL_CORE_PLACE_H
#define CUDAPOOL_CORE_PLACE_H

#include <stddef.h>
#include <stdint.h>

#include "heap.h"
#include "thread_cache.h"

/* One fence serves many frees. A fence is due after FENCE_EVERY_FREES frees without one, or after
 * device->fence_bytes freed bytes. So a block of fence_bytes or more has a fence of its own. Both
 * limits are doubled while one thread uses the heap, since no other thread waits for what it frees.
 * The number of frees is also doubled while the GPU keeps up, since nothing has to wait then. */
#define FENCE_EVERY_FREES 16u

struct place {
    struct bucket *bucket;
    struct thread_cache *cache; /* NULL: the thread has none */
    struct cache_bin *bin;      /* NULL: there is none, or it is closed and empty */
};

/* The calling thread's place for blocks of the bucket. heap_note_user has been called. If the heap
 * forbids caching now (heap->ending_or_finest), the bin's blocks move to the heap's lists. request:
 * see thread_cache_bin. */
struct place place_of_this_thread(struct pool *pool, struct heap *heap, struct bucket *bucket,
                                  size_t request);

/* The calling thread's place for a block that it frees. A full bin first moves its older half to
 * the heap's lists. */
struct place place_for_free(struct pool *pool, struct heap *heap, struct bucket *bucket);

/* The newest clean block, or NULL. A block in the thread's cache is preferred, and is taken out, so
 * that it is in no list. A block in the heap's lists stays there. */
struct block *place_newest_clean(const struct place *place);

/* The stamp of the oldest pending block; 0: none is pending. */
uint64_t place_oldest_stamp(const struct place *place);

/* Moves all blocks in the place's bin to the heap's lists. */
void place_empty_bin(const struct place *place);

/* Moves clean blocks to the thread's cache for its next allocations, the newest on top. */
void place_refill(struct heap *heap, const struct place *place);

/* Hands a free block to the program. The block is in the heap's lists, or was just cut or taken out
 * of a thread's cache. */
void place_hand_out(struct heap *heap, struct block *block, size_t bytes, enum hit hit);

/* Sets how much the cache's thread may free without a fence from now on. Moves what the cache may
 * no longer hold to the heap's lists. */
void place_refresh_cache(struct heap *heap, struct thread_cache *cache);

#endif
