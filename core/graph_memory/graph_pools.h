/*
 * The pools that captured streams allocate from (struct graph_pool): who has which, and what is
 * free in them.
 *
 * Everything is guarded by the lock of struct graph_memory, which every function is called with,
 * unless it says otherwise.
 */
#ifndef CUDAPOOL_CORE_GRAPH_POOLS_H
#define CUDAPOOL_CORE_GRAPH_POOLS_H

#include "graph_state.h"

/* The pool of a capture under way, made where there is none; NULL where memory is short. */
struct graph_pool *graph_pool_of(struct graph_owner *owner);

/* Whether the stream, or an earlier one with its handle, is to use a pool. No lock is held. */
bool graph_pool_is_used(struct graph_memory *memory, CUstream stream);

/* The stream with that handle has this number now: what another one was to use is not used any
 * more. No lock is held. */
void graph_pool_is_used_by(struct graph_memory *memory, CUstream stream, unsigned long long id);

/* The owner's capture has begun on such a stream. */
void graph_pool_begin(struct graph_owner *owner, CUstream stream);

/* The capture is over: what is its own serves nobody any more. */
void graph_pool_end(struct graph_owner *owner);

/* The block is of this pool's; it is no pool's any more. */
void graph_pool_join(struct graph_pool *pool, struct graph_block *block);
void graph_pool_leave(struct graph_block *block);

/* A captured stream has freed the block there: it is the first that may be had again. */
void graph_pool_put(struct graph_memory *memory, struct graph_block *block,
                    const struct capture_place *place);
void graph_pool_take(struct graph_block *block);

/* ---- pools with numbers, for the program; no lock is held ---- */

/* A new one; 0 where memory is short. */
uint64_t graph_pool_create(struct graph_memory *memory);

/* The next captures that begin on the stream use the pool; 0: each one of its own again. False
 * where there is no such pool, it is sealed, or memory is short. */
bool graph_pool_use(struct graph_memory *memory, uint64_t number, CUstream stream,
                    unsigned long long id);

/* Captures take nothing from it any more; those that begin have one of their own. */
bool graph_pool_seal(struct graph_memory *memory, uint64_t number);

/* What is free in it now is nobody's to have again. */
bool graph_pool_clear(struct graph_memory *memory, uint64_t number);

/* live: in the program's hands; cached: what a capture may have again; pending: what the program
 * has freed otherwise, and graphs keep. */
bool graph_pool_bytes(struct graph_memory *memory, uint64_t number, struct kept_bytes *bytes);

/* There is no such number any more. What graphs use stays theirs. */
bool graph_pool_destroy(struct graph_memory *memory, uint64_t number);

#endif
