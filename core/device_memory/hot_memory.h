/*
 * Hot memory: reuse of blocks that are still in the GPU's cache, while all of the program's work is
 * on one stream.
 *
 * An epoch is closed whenever a thread has freed device->hot_bytes and launched CACHE_HOT_LAUNCHES
 * times since the last one. An allocation of up to HOT_LARGEST * hot_bytes may find no clean block,
 * but a pending one with a fence. It then takes the newest such block, ordered after a barrier,
 * instead of a new block.
 *
 * The cost is one recorded fence for each hot_bytes freed, and at most one wait for an event for
 * each fence. One barrier serves all blocks that were freed before its fence. On one stream later
 * work runs after earlier work anyway, so the barrier delays no work there. It protects against
 * work on streams that the pool has not seen, and so makes reuse safe.
 *
 * This is a policy. Any thread may ask, under any lock.
 */
#ifndef CUDAPOOL_CORE_HOT_MEMORY_H
#define CUDAPOOL_CORE_HOT_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "heap.h"

/* Whether memory is to stay hot now. */
bool policy_keeps_hot(struct pool *pool, const struct heap *heap);

/* Whether blocks of this size are to be reused while hot, and barriers may be used. */
bool policy_reuses_hot(struct pool *pool, const struct heap *heap, uint64_t bytes);

/* The bytes that a thread may free before a fence is due to keep memory hot; 0: there is no such
 * limit. */
uint64_t policy_hot_fence_bytes(struct pool *pool, const struct heap *heap);

#endif
