/*
 * The owners of what captures allocate and free: user objects on their graphs. This file makes an
 * owner as a capture begins, and decides at the end of the capture whether the graph keeps it. It
 * also processes the owners whose graphs are gone.
 */
#ifndef CUDAPOOL_CORE_GRAPH_OWNERS_H
#define CUDAPOOL_CORE_GRAPH_OWNERS_H

#include "graph_state.h"

/* For the table of kinds (kind.h). */
void graph_capture_is_coming(struct pool *pool, CUstream stream);
void graph_capture_began(struct pool *pool, const struct capture *capture, CUstream stream);
void graph_capture_ended(struct pool *pool, const struct capture *capture, CUgraph graph);

/* The first owner, from this one on, of a capture under way whose graph may keep something; NULL:
 * there is none. Lock held. */
static inline struct graph_owner *graph_owner_at_work(struct graph_owner *owner)
{
    while (owner && owner->spoilt)
        owner = owner->next;
    return owner;
}

/* Looks for captures that have been invalidated and that nobody ends: such a capture would keep
 * everything that the process frees. Ends their ownership. Skips captures into a graph of the
 * program's, since that graph may still exist. The caller holds no lock except that of primary
 * contexts. */
void graph_owners_look_for_spoilt(struct pool *pool);

/* The driver's number of a stream. A captured stream is not asked, since that would invalidate the
 * capture. */
CUresult graph_stream_id(const struct pool *pool, CUstream stream, unsigned long long *id);

/* Processes the owners whose graphs are gone. Blocks that the program has freed become pending,
 * with a fence that is only queried. Stream-ordered memory returns to its kind. Called on slow
 * paths; the caller holds no lock except that of primary contexts. */
void graph_memory_process_all_ended(struct pool *pool);

static inline void graph_memory_process_ended(struct pool *pool)
{
    struct graph_memory *memory = graph_memory_of(pool);
    if (__builtin_expect(memory != NULL, 0) &&
        (atomic_load_explicit(&memory->gone, memory_order_relaxed) ||
         atomic_load_explicit(&memory->unfenced, memory_order_relaxed) ||
         atomic_load_explicit(&memory->released, memory_order_relaxed)))
        graph_memory_process_all_ended(pool);
}

#endif
