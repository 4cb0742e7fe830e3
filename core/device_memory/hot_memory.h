/*
 * Hot memory: while all of the program's work is on one stream, an epoch is closed whenever a
 * thread has freed device->hot_bytes and launched CACHE_HOT_LAUNCHES times since the last one, and
 * an allocation of up to HOT_LARGEST times as much that finds no clean block, but a pending one
 * with a fence, takes the newest such block behind a barrier rather than a new one.
 *
 * What it costs: a record for hot_bytes freed, and for each record at most one wait for an event,
 * since a barrier serves all blocks that were freed before its fence. What it gives: what
 * circulates is what the GPU's cache still holds. On one stream later work comes after earlier work
 * anyway, so the barrier makes nobody wait who would not have waited; it is there for work on other
 * streams that was not seen, and keeps reuse safe whatever that is.
 *
 * A policy; any thread may ask, under any lock.
 */
#ifndef CUDAPOOL_CORE_HOT_MEMORY_H
#define CUDAPOOL_CORE_HOT_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "heap.h"

/* Whether memory is to stay hot now. */
bool policy_keeps_hot(struct pool *pool, const struct heap *heap);

/* The same for blocks of so many bytes, where barriers are open. */
bool policy_reuses_hot(struct pool *pool, const struct heap *heap, uint64_t bytes);

/* What a thread may free before a fence is due so; 0: that is not what decides. */
uint64_t policy_hot_fence_bytes(struct pool *pool, const struct heap *heap);

#endif
