/*
 * Stream-ordered memory of before a capture that the capture has freed. The graph keeps it: claimed
 * from the program, and its kind's to give back once the graph is gone.
 */
#ifndef CUDAPOOL_CORE_GRAPH_HELD_H
#define CUDAPOOL_CORE_GRAPH_HELD_H

#include "graph_state.h"

/* Lock held. The owner's graphs keep it from now on. */
void graph_held_add(struct graph_owner *owner, struct graph_held *held);

/* Lock held. The owner's graphs are gone. */
void graph_held_release(struct graph_memory *memory, struct graph_owner *owner);

/* Gives back those that no graph keeps any more, as far as that can be done now: not while the
 * program captures. No lock held but that of primary contexts. */
void graph_held_give_back(struct pool *pool);

#endif
