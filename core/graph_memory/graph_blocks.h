/*
 * Which graphs own which blocks.
 *
 * An owner stands for the graph of one capture, with its clones and executables, and has a link to
 * each block of its own; a block counts the links that lead to it. When the last one goes, so does
 * the record: a block that the program has freed by then becomes pending, another one is the
 * program's alone from then on.
 *
 *   block->links = links to it in the lists of all owners (and those that there was no memory for,
 *                  which never go: such a block stays until its context ends). An owned block that
 *                  has no record has such links, too: one stands for them in a record made later
 *
 * Everything is guarded by the lock of struct graph_memory, which every function is called with.
 */
#ifndef CUDAPOOL_CORE_GRAPH_BLOCKS_H
#define CUDAPOOL_CORE_GRAPH_BLOCKS_H

#include "graph_state.h"

/* NULL where there is none. */
struct graph_block *graph_blocks_find(const struct graph_blocks *blocks, CUdeviceptr address);

/* The record of this address, made where there is none of this life of the block; NULL where memory
 * is short. */
struct graph_block *graph_blocks_add(struct graph_memory *memory, CUdeviceptr address,
                                     struct block *block);

/* The owner owns the block from now on. */
void graph_block_link(struct graph_block *block, struct graph_owner *owner);

/* The program has freed it, and it is parked. */
void graph_block_parked(struct graph_memory *memory, struct graph_block *block);

/* A captured stream has it again. */
void graph_block_unparked(struct graph_memory *memory, struct graph_block *block);

/* The address stands for nothing of this any more. */
void graph_block_forget(struct graph_memory *memory, struct graph_block *block);
void graph_blocks_forget_context(struct graph_memory *memory, struct context *context);

/* The graphs of this owner are gone, which is freed. The bytes that became pending by that. */
uint64_t graph_owner_finish(struct pool *pool, struct graph_owner *owner);

/* Its capture, which goes on, will leave no graph: it owns nothing any more, but for what captured
 * streams have allocated, which stays until the capture ends. */
uint64_t graph_owner_spoil(struct pool *pool, struct graph_owner *owner);

/* ---- lives, to the program, of blocks that captured streams have allocated ---- */

/* Of graphs that are nobody's in particular, so far. */
static inline uint64_t graph_launches(const struct graph_memory *memory)
{
    return atomic_load_explicit(&memory->launches, memory_order_relaxed);
}

/* A number that differs once the block may have come to life by a launch: of its maker's graph, or
 * of one that may be a copy of that. */
uint64_t graph_block_launches(const struct graph_memory *memory, const struct graph_block *block);

/* The owner's capture has allocated the block, which it owns. */
void graph_block_made(struct graph_block *block, struct graph_owner *owner);

static inline bool graph_block_was_freed_by_its_capture(const struct graph_block *block)
{
    return block->freer != 0 && block->freer == block->maker;
}

/* Whether the parked block is the program's to use, since its graph was launched. */
bool graph_block_is_live_again(const struct graph_memory *memory, const struct graph_block *block);

/* The program frees the parked block in no graph: CUDA_ERROR_INVALID_VALUE where it is not live. */
CUresult graph_block_free_again(struct graph_memory *memory, struct graph_block *block);

/* The same of an address, with no lock held; false where there is no such parked block. */
bool graph_blocks_free_again(struct graph_memory *memory, CUdeviceptr address, CUresult *result);
bool graph_blocks_are_live_again(struct graph_memory *memory, CUdeviceptr address);

/* ---- */

/* Looks at each block of the owner whether it is where nobody can get it from; counts those that
 * are not. */
void graph_blocks_check(struct graph_owner *owner);

#endif
