/*
 * Stream-ordered memory that was allocated before a capture and freed by the capture. The graph may
 * use it, so its owner holds it. It is claimed from the program. Once the graph is gone, it returns
 * to the stream-ordered kind.
 */
#ifndef CUDAPOOL_CORE_GRAPH_HELD_H
#define CUDAPOOL_CORE_GRAPH_HELD_H

#include "graph_state.h"

/* Makes the owner hold this memory. Lock held. */
void graph_held_add(struct graph_owner *owner, struct graph_held *held);

/* Marks the owner's memory as to be returned, since the owner's graphs are gone. Lock held. */
void graph_held_release(struct graph_memory *memory, struct graph_owner *owner);

/* Returns the memory that no graph holds any more to the stream-ordered kind, as far as that is
 * possible now. It is not while the program captures. The caller holds no lock except that of
 * primary contexts. */
void graph_held_give_back(struct pool *pool);

#endif
