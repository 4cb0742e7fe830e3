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

/* The address stands for nothing of this any more. */
void graph_block_forget(struct graph_memory *memory, struct graph_block *block);
void graph_blocks_forget_context(struct graph_memory *memory, struct context *context);

/* The graphs of this owner are gone, which is freed. The bytes that became pending by that. */
uint64_t graph_owner_finish(struct pool *pool, struct graph_owner *owner);

/* Looks at each block of the owner whether it is where nobody can get it from; counts those that
 * are not. */
void graph_blocks_check(struct graph_owner *owner);

#endif
