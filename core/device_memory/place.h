/*
 * The place where a slow path looks for a block, or puts one: a bucket, and what the calling
 * thread's cache has of it beside the heap's lists.
 *
 * Every function is called with the heap lock held; none releases it.
 */
#ifndef CUDAPOOL_CORE_PLACE_H
#define CUDAPOOL_CORE_PLACE_H

#include <stddef.h>
#include <stdint.h>

#include "heap.h"
#include "thread_cache.h"

/* One fence serves many frees: at most so many go without, or device->fence_bytes. A block of so
 * many bytes has a fence of its own. Twice as much of either while one thread uses the heap: no
 * other waits for what it has freed; and while the GPU keeps up: then nothing has to wait. */
#define FENCE_EVERY_FREES 16u

struct place {
    struct bucket *bucket;
    struct thread_cache *cache; /* NULL: there is none */
    struct cache_bin *bin;      /* NULL: there is none, or it is closed and empty */
};

/* The calling thread's place for blocks of the bucket, known by heap_note_user. What it has cached
 * while the heap wants it otherwise goes to the heap's lists. request: as in thread_cache_bin. */
struct place place_of_this_thread(struct pool *pool, struct heap *heap, struct bucket *bucket,
                                  size_t request);

/* The calling thread's place for a block that it frees: a bin that was full has given its older
 * half to the heap's lists. */
struct place place_for_free(struct pool *pool, struct heap *heap, struct bucket *bucket);

/* The newest clean block, NULL where none is. One that the thread's cache has comes first, and is
 * in no list any more; one of the heap's lists stays there. */
struct block *place_newest_clean(const struct place *place);

/* The stamp of the oldest pending block; 0: none is pending. */
uint64_t place_oldest_stamp(const struct place *place);

/* Moves what the thread's cache has to the heap's lists. */
void place_empty_bin(const struct place *place);

/* Moves clean blocks to the thread's cache, for its next allocations: the newest on top. */
void place_refill(struct heap *heap, const struct place *place);

/* Gives a free block to the program. It is in the heap's lists, or was just taken out of a thread's
 * cache, or cut. */
void place_hand_out(struct heap *heap, struct block *block, size_t bytes, enum hit hit);

/* Says to the cache how much may go without a fence from now on, and has it give back what it may
 * hold no more. */
void place_refresh_cache(struct heap *heap, struct thread_cache *cache);

#endif
