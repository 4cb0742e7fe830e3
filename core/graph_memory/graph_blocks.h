/*
 * Which graphs own which blocks.
 *
 * An owner stands for the graph of one capture, with its clones and executables. It has a link to
 * each block that it owns, and a block counts the links to it. When a block loses its last link,
 * its record is freed. If the program has freed the block by then, the block becomes pending.
 * Otherwise the block belongs to the program alone from then on.
 *
 *   block->links = links to the block in the lists of all owners
 *                  + links for which memory was short
 *
 * A link for which memory was short is never removed: its block stays until its context ends. An
 * owned block without a record has such links as well. They count as one in a record made later.
 *
 * Locking: the lock of struct graph_memory guards everything here. Every function is called with
 * it, unless it says otherwise.
 */
#ifndef CUDAPOOL_CORE_GRAPH_BLOCKS_H
#define CUDAPOOL_CORE_GRAPH_BLOCKS_H

#include "graph_state.h"

/* NULL: there is no record for this address. */
struct graph_block *graph_blocks_find(const struct graph_blocks *blocks, CUdeviceptr address);

/* The record of this address. It is made if there is none for the block's present life. NULL where
 * memory is short. */
struct graph_block *graph_blocks_add(struct graph_memory *memory, CUdeviceptr address,
                                     struct block *block);

/* Makes the owner one of the block's owners. */
void graph_block_link(struct graph_block *block, struct graph_owner *owner);

/* Notes that the program has freed the block and that the heap has parked it. */
void graph_block_parked(struct graph_memory *memory, struct graph_block *block);

/* Notes that the block is live again. */
void graph_block_unparked(struct graph_memory *memory, struct graph_block *block);

/* Forgets the record: the address no longer stands for this block. For forget_context: of all
 * blocks of the context. */
void graph_block_forget(struct graph_memory *memory, struct graph_block *block);
void graph_blocks_forget_context(struct graph_memory *memory, struct context *context);

/* Ends all links of an owner whose graphs are gone, and frees the owner. Returns the bytes that
 * became pending by that. */
uint64_t graph_owner_finish(struct pool *pool, struct graph_owner *owner);

/* For an owner whose capture is under way but will leave no graph: ends its links. Links to blocks
 * that captured streams have allocated stay until the capture ends. Returns the bytes that became
 * pending by that. */
uint64_t graph_owner_spoil(struct pool *pool, struct graph_owner *owner);

/* ---- lives, as the program sees them, of blocks that captured streams have allocated ---- */

/* Launches so far of executables without a known owner. */
static inline uint64_t graph_launches(const struct graph_memory *memory)
{
    return atomic_load_explicit(&memory->launches, memory_order_relaxed);
}

/* A number that changes when a launch may have brought the block to life: a launch of its maker's
 * graph, or of a graph that may be a copy of it. */
uint64_t graph_block_launches(const struct graph_memory *memory, const struct graph_block *block);

/* Notes that the owner's capture has allocated the block. The owner already has a link to it,
 * unless memory was short. */
void graph_block_made(struct graph_block *block, struct graph_owner *owner);

static inline bool graph_block_was_freed_by_its_capture(const struct graph_block *block)
{
    return block->freer != 0 && block->freer == block->maker;
}

/* Whether the parked block is live to the program, because its graph was launched after the free.
 */
bool graph_block_is_live_again(const struct graph_memory *memory, const struct graph_block *block);

/* The program frees the parked block outside of captures. CUDA_ERROR_INVALID_VALUE if it is not
 * live. */
CUresult graph_block_free_again(struct graph_memory *memory, struct graph_block *block);

/* graph_block_free_again and graph_block_is_live_again for an address. The lock is not held.
 * graph_blocks_free_again: false if there is no such parked block. */
bool graph_blocks_free_again(struct graph_memory *memory, CUdeviceptr address, CUresult *result);
bool graph_blocks_are_live_again(struct graph_memory *memory, CUdeviceptr address);

/* ---- checks ---- */

/* Checks that the heap would hand out none of the owner's blocks, and counts those that it would.
 */
void graph_blocks_check(struct graph_owner *owner);

#endif
