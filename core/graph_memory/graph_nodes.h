/*
 * Stream-ordered memory of captured streams, in place of memory nodes: `captures.memory_nodes` is
 * "pool".
 *
 * cuMemAllocAsync on a captured stream makes a node of the graph, which allocates whenever the
 * graph is launched. Here it gets a block at once: one that the same capture has given back where
 * the graph puts the new use behind the old one (capture_place.h), else a new one of the driver's.
 * The block is the graph's like everything that captures allocate, so that its address stays. What
 * is freed on a captured stream goes back to the pool of the capture that allocated it
 * (graph_pools.h), or is parked, if that is over.
 *
 * To the program an allocation that its capture has not freed comes to life whenever the graph is
 * launched, and may be freed each time. Here it lives on, and after a launch its free is no second
 * one. Which graph was launched counts where that is known (graph_objects.h).
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

/* cuMemAllocAsync, or of a memory pool that is named, where it is answered here. No lock held. */
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

/* cuMemFreeAsync of a block, where it is answered here. No lock held. */
bool graph_nodes_free_on_stream(struct pool *pool, struct block *block, CUdeviceptr address,
                                CUstream stream, CUresult *result);

static inline bool graph_nodes_free(struct pool *pool, struct block *block, CUdeviceptr address,
                                    CUstream stream, CUresult *result)
{
    return graph_nodes_are_served(pool) &&
           graph_nodes_free_on_stream(pool, block, address, stream, result);
}

/* cuMemFreeAsync, on a captured stream, of stream-ordered memory of before, which the caller has
 * claimed: whether the graph keeps it (graph_held.h). The driver has no node for that. No lock
 * held. */
bool graph_nodes_hold_captured(struct pool *pool, const struct graph_held *what, CUstream stream);

static inline bool graph_nodes_hold(struct pool *pool, const struct graph_held *what,
                                    CUstream stream)
{
    return graph_nodes_are_served(pool) && graph_nodes_hold_captured(pool, what, stream);
}

/* An executable is about to be launched. */
static inline void graph_nodes_note_launch(struct pool *pool, CUgraphExec executable)
{
    if (graph_nodes_are_served(pool))
        graph_executable_launched(pool, executable);
}

/* A kernel is launched that may begin before those before it have ended: from now on no block is
 * handed out twice in a capture, since who uses it next might be such a kernel. */
static inline void graph_nodes_note_early_launch(struct pool *pool)
{
    if (graph_nodes_are_served(pool))
        atomic_store_explicit(&graph_memory_of(pool)->starts_early, true, memory_order_relaxed);
}

#endif
