/*
 * The pools that captured streams allocate from (struct graph_pool): who uses which pool, and which
 * blocks are free in it.
 *
 * Locking: the lock of struct graph_memory guards everything here. Every function is called with
 * it, unless it says otherwise.
 */
#ifndef CUDAPOOL_CORE_GRAPH_POOLS_H
#define CUDAPOOL_CORE_GRAPH_POOLS_H

#include "graph_state.h"

/* The pool of a capture under way, made if there is none or it is sealed. NULL where memory is
 * short. */
struct graph_pool *graph_pool_of(struct graph_owner *owner);

/* Whether the program has set a pool for the stream, or for an earlier stream with this handle. No
 * lock is held. */
bool graph_pool_is_used(struct graph_memory *memory, CUstream stream);

/* The stream with this handle has the number id. If the pool was set for another stream with the
 * handle, forgets that. No lock is held. */
void graph_pool_is_used_by(struct graph_memory *memory, CUstream stream, unsigned long long id);

/* The owner's capture has begun on a stream for which a pool was set: it uses that pool. */
void graph_pool_begin(struct graph_owner *owner, CUstream stream);

/* The capture has ended. A pool of its own is sealed: it serves nobody any more. */
void graph_pool_end(struct graph_owner *owner);

/* graph_pool_join: makes the block one of this pool. graph_pool_leave: the block is in no pool any
 * more. */
void graph_pool_join(struct graph_pool *pool, struct graph_block *block);
void graph_pool_leave(struct graph_block *block);

/* graph_pool_put: a captured stream has freed the block at this place. It is the first candidate
 * for reuse. graph_pool_take: takes the block out of the free list, if it is there. */
void graph_pool_put(struct graph_memory *memory, struct graph_block *block,
                    const struct capture_place *place);
void graph_pool_take(struct graph_block *block);

/* ---- pools with numbers, for the program; no lock is held ---- */

/* Makes a pool. Returns its number; 0 where memory is short. */
uint64_t graph_pool_create(struct graph_memory *memory);

/* Captures that begin on the stream from now on use the pool. number 0: each has a pool of its own
 * again. False if there is no such pool, it is sealed, or memory is short. */
bool graph_pool_use(struct graph_memory *memory, uint64_t number, CUstream stream,
                    unsigned long long id);

/* Seals the pool: captures take nothing from it any more, and later ones have pools of their own.
 * False: there is no such pool. */
bool graph_pool_seal(struct graph_memory *memory, uint64_t number);

/* Makes what is free in the pool now unavailable for reuse. False: there is no such pool. */
bool graph_pool_clear(struct graph_memory *memory, uint64_t number);

/* live: in use by the program; cached: free for a capture to reuse; pending: freed by the program
 * otherwise, and kept for graphs. False: there is no such pool. */
bool graph_pool_bytes(struct graph_memory *memory, uint64_t number, struct kept_bytes *bytes);

/* Ends the number. Graphs keep what they use. False: there is no such pool. */
bool graph_pool_destroy(struct graph_memory *memory, uint64_t number);

#endif
