/*
 * Serves stream-ordered allocations on captured streams from pools of blocks, in place of memory
 * nodes of the graph. The setting `captures.memory_nodes` = "pool" enables this.
 *
 * Without the setting, cuMemAllocAsync on a captured stream makes a node of the graph, which
 * allocates whenever the graph is launched. With the setting, the call gets a block at once. The
 * block is a free one of the capture's pool, if its new use is ordered after its old one
 * (capture_place.h). Otherwise it is a new block of the driver's. The graph owns the block, so its
 * memory stays at this address until the graph is gone. When a capture frees a block that it has
 * allocated, the block is free in the capture's pool (graph_pools.h). A block freed in any other
 * way is not reused until the graphs that own it are gone.
 *
 * Without the setting, each launch of the graph allocates again what its capture does not free. So
 * the program may free such memory once after each launch. Here the block stays allocated between
 * launches, and the pool accepts another free after another launch. If the pool knows the graph of
 * a launched executable, the launch counts for the blocks of that graph only (graph_objects.h).
 */
#ifndef CUDAPOOL_CORE_GRAPH_NODES_H
#define CUDAPOOL_CORE_GRAPH_NODES_H

#include "graph_objects.h"
#include "graph_state.h"

static inline bool graph_nodes_are_served(const struct pool *pool)
{
    const struct graph_memory *memory = graph_memory_of(pool);
    return memory && memory->serves_nodes;
}

/* Answers cuMemAllocAsync on a captured stream, or cuMemAllocFromPoolAsync if memory_pool is given.
 * Returns false if the driver must answer. The caller holds no lock. */
bool graph_nodes_allocate_captured(struct pool *pool, CUdeviceptr *address, size_t bytes,
                                   const CUmemoryPool *memory_pool, CUstream stream,
                                   CUresult *result);

static inline bool graph_nodes_allocate(struct pool *pool, CUdeviceptr *address, size_t bytes,
                                        const CUmemoryPool *memory_pool, CUstream stream,
                                        CUresult *result)
{
    return graph_nodes_are_served(pool) &&
           graph_nodes_allocate_captured(pool, address, bytes, memory_pool, stream, result);
}

/* Answers cuMemFreeAsync of a block that a captured stream has allocated. Returns false if the
 * caller must free the block in another way. The caller holds no lock. */
bool graph_nodes_free_on_stream(struct pool *pool, struct block *block, CUdeviceptr address,
                                CUstream stream, CUresult *result);

static inline bool graph_nodes_free(struct pool *pool, struct block *block, CUdeviceptr address,
                                    CUstream stream, CUresult *result)
{
    return graph_nodes_are_served(pool) &&
           graph_nodes_free_on_stream(pool, block, address, stream, result);
}

/* Answers cuMemFreeAsync on a captured stream, of stream-ordered memory that was allocated before
 * the capture. The driver has no graph node for such a free. The caller has claimed the memory.
 * Returns true if the owner of the capture's graph now holds it (graph_held.h). The caller holds no
 * lock. */
bool graph_nodes_hold_captured(struct pool *pool, const struct graph_held *what, CUstream stream);

static inline bool graph_nodes_hold(struct pool *pool, const struct graph_held *what,
                                    CUstream stream)
{
    return graph_nodes_are_served(pool) && graph_nodes_hold_captured(pool, what, stream);
}

/* Counts a launch of the executable. Called before the launch. */
static inline void graph_nodes_note_launch(struct pool *pool, CUgraphExec executable)
{
    if (graph_nodes_are_served(pool))
        graph_executable_launched(pool, executable);
}

/* Called before a kernel is launched that may start before earlier work on its stream has
 * completed. From then on no capture reuses a block: such a kernel might use the block before its
 * last user has finished. */
static inline void graph_nodes_note_early_launch(struct pool *pool)
{
    if (graph_nodes_are_served(pool))
        atomic_store_explicit(&graph_memory_of(pool)->starts_early, true, memory_order_relaxed);
}

#endif
