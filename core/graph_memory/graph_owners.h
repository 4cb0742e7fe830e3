/*
 * The owners of what captures allocate and free: user objects on their graphs.
 */
#ifndef CUDAPOOL_CORE_GRAPH_OWNERS_H
#define CUDAPOOL_CORE_GRAPH_OWNERS_H

#include "graph_state.h"

/* For the table of kinds (kind.h); the fence lock is held. */
void graph_capture_began(struct pool *pool, const struct capture *capture, CUstream stream);
void graph_capture_ended(struct pool *pool, const struct capture *capture);

/* Gives back what the graphs that are gone have kept: what is freed becomes pending, with a fence
 * that is only ever asked about. On slow paths; no lock held but that of primary contexts. */
void graph_memory_take_up_gone(struct pool *pool);

static inline void graph_memory_take_up(struct pool *pool)
{
    struct graph_memory *memory = graph_memory_of(pool);
    if (__builtin_expect(memory != NULL, 0) &&
        (atomic_load_explicit(&memory->gone, memory_order_relaxed) ||
         atomic_load_explicit(&memory->unfenced, memory_order_relaxed)))
        graph_memory_take_up_gone(pool);
}

#endif
