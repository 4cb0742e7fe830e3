/*
 * The owners of what captures allocate and free: user objects on their graphs.
 */
#ifndef CUDAPOOL_CORE_GRAPH_OWNERS_H
#define CUDAPOOL_CORE_GRAPH_OWNERS_H

#include "graph_state.h"

/* For the table of kinds (kind.h). */
void graph_capture_is_coming(struct pool *pool, CUstream stream);
void graph_capture_began(struct pool *pool, const struct capture *capture, CUstream stream);
void graph_capture_ended(struct pool *pool, const struct capture *capture, CUgraph graph);

/* A capture under way whose graph may keep something; NULL: there is none. Lock held. */
static inline struct graph_owner *graph_owner_at_work(struct graph_owner *owner)
{
    while (owner && owner->spoilt)
        owner = owner->next;
    return owner;
}

/* Whether a capture is spoilt that nobody ends: it would keep all that the process frees. Of one
 * into a graph that the program has, the graph may be there still. No lock held but that of primary
 * contexts. */
void graph_owners_look_for_spoilt(struct pool *pool);

/* The driver's number of a stream. A stream that is captured is not asked: that would spoil the
 * capture. */
CUresult graph_stream_id(const struct pool *pool, CUstream stream, unsigned long long *id);

/* Gives back what the graphs that are gone have kept: what is freed becomes pending, with a fence
 * that is only ever asked about, and stream-ordered memory goes back to its kind. On slow paths; no
 * lock held but that of primary contexts. */
void graph_memory_take_up_gone(struct pool *pool);

static inline void graph_memory_take_up(struct pool *pool)
{
    struct graph_memory *memory = graph_memory_of(pool);
    if (__builtin_expect(memory != NULL, 0) &&
        (atomic_load_explicit(&memory->gone, memory_order_relaxed) ||
         atomic_load_explicit(&memory->unfenced, memory_order_relaxed) ||
         atomic_load_explicit(&memory->released, memory_order_relaxed)))
        graph_memory_take_up_gone(pool);
}

#endif
