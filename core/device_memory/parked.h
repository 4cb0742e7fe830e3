/*
 * Blocks that graphs own, as the heap sees them.
 *
 * A graph goes on using the addresses that its capture has seen, whenever it is launched. So a
 * block that was allocated or freed while a capture went on is owned by its graph: while the
 * program holds it, a mark (BLOCK_OWNED) keeps its free away from the fast path; once the program
 * has freed it, it is parked (BLOCK_KEPT): in the table, so that queries do not take it for the
 * driver's, and in no list and no cache, so that nobody gets it. Which graphs own a block, and
 * until when, is known by core/graph_memory alone.
 *
 *   live --heap_own--> live, owned --heap_park--> parked --heap_unpark--> pending
 *     ^                   |     ^                    |
 *     '----heap_disown----'     '--heap_take_parked--'
 *
 * No driver call is made here. Called without the heap's lock, which is taken inside.
 */
#ifndef CUDAPOOL_CORE_PARKED_H
#define CUDAPOOL_CORE_PARKED_H

#include <stdbool.h>

#include "heap.h"

/* Marks the live block at this address as owned. False where it is not live there. */
bool heap_own(struct block *block, CUdeviceptr address);

/* The block has no owner any more: if it still is a live one, it is like any other. */
void heap_disown(struct block *block, CUdeviceptr address);

/* The program frees a block that graphs use: nobody gets it until heap_unpark. False where it is
 * not live (any more), as of a second free. */
bool heap_park(struct block *block, CUdeviceptr address);

/* Graphs use it in turns: the parked block is the program's again, owned as before, for a request
 * of so many bytes. False where there is no such parked block (any more), and where others than the
 * process's streams may reach it. */
bool heap_take_parked(struct block *block, CUdeviceptr address, size_t bytes);

/* The bytes of a block that is made for such a request. */
uint64_t heap_size_of_block(const struct context *context, size_t bytes);

/* No graph uses the parked block any more: it is pending, as if freed just now. So it is reused
 * behind a fence that is recorded after this. False where there is no such parked block (any more),
 * and where others than the process's streams may reach it: then it stays as it is until its
 * context ends, since only a wait for the whole context, as in the driver's own free, would make it
 * safe to return, and the program's free of it is long over. */
bool heap_unpark(struct pool *pool, struct block *block, CUdeviceptr address);

/* Whether the block with this address is free to be handed out, or will be, by the heap's books. */
bool heap_would_hand_out(struct block *block, CUdeviceptr address);

#endif
