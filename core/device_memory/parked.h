/*
 * Blocks that graphs own, as the heap sees them.
 *
 * Whenever a graph is launched, it uses the addresses that its capture has seen. So a block that
 * was allocated or freed during a capture is owned by the capture's graph. While the program holds
 * an owned block, the mark BLOCK_OWNED keeps its free away from the fast path. Once the program has
 * freed the block, it is parked (BLOCK_KEPT). A parked block stays in the table, so that queries do
 * not take it for the driver's memory. It is in no list and no cache, so nobody gets it. Only
 * core/graph_memory knows which graphs own a block, and until when.
 *
 *   live --heap_own--> live, owned --heap_park--> parked --heap_unpark--> pending
 *     ^                   |     ^                    |
 *     '----heap_disown----'     '--heap_take_parked--'
 *
 * No driver call is made here. Callers do not hold the heap's lock; these functions take it.
 */
#ifndef CUDAPOOL_CORE_PARKED_H
#define CUDAPOOL_CORE_PARKED_H

#include <stdbool.h>

#include "heap.h"

/* Marks the live block at this address as owned. False where it is not live there. */
bool heap_own(struct block *block, CUdeviceptr address);

/* Removes the owned mark. If the block is still live there, it is like any other from now on. */
void heap_disown(struct block *block, CUdeviceptr address);

/* Parks a block that the program frees while graphs use it: nobody gets it until heap_unpark. False
 * where it is not live (any more), as in a second free. */
bool heap_park(struct block *block, CUdeviceptr address);

/* Hands the parked block to the program again, still owned, for a request of this many bytes:
 * graphs use the block in turns. False where there is no such parked block (any more), or where
 * others than the process's streams may reach it. */
bool heap_take_parked(struct block *block, CUdeviceptr address, size_t bytes);

/* The size of a block that is made for a request of this many bytes. */
uint64_t heap_size_of_block(const struct context *context, size_t bytes);

/* Makes a parked block that no graph uses any more pending, as if it was freed just now. Its reuse
 * is therefore ordered after a fence that is recorded later. False where there is no such parked
 * block (any more), or where others than the process's streams may reach it. A block that others
 * may reach stays parked until its context ends. Only a wait for the whole context, as in the
 * driver's own free, would make it safe to return. The program's free of it has long returned. */
bool heap_unpark(struct pool *pool, struct block *block, CUdeviceptr address);

/* Whether the heap's records say that the block at this address is free, so that it can be handed
 * out now or later. */
bool heap_would_hand_out(struct block *block, CUdeviceptr address);

#endif
