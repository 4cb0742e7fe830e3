/*
 * What goes on around the pool in the process: who else reaches GPU memory, or follows the driver's
 * frees, and who launches work.
 *
 * Any thread, no lock needed: what is found is a hint, or is published by an atomic of struct pool.
 */
#ifndef CUDAPOOL_CORE_SURROUNDINGS_H
#define CUDAPOOL_CORE_SURROUNDINGS_H

#include <stdbool.h>

#include "pool_state.h"

/* Whether later work of a context is all that can reach its memory, so that a barrier protects a
 * block: one context, no capture, and no library that gives devices access behind CUDA's back. */
bool barriers_are_open(struct pool *pool);

/* Looks at what has been loaded since the last time, for libraries that reach GPU memory in other
 * ways than CUDA's, or follow the driver's calls. */
void look_at_objects(struct pool *pool);

/* Whether memory may go back to the driver by cuMemFreeAsync: the driver has it, and nobody was
 * found who follows the driver's frees and would miss it. */
static inline bool returns_in_stream_order(const struct pool *pool)
{
    return pool->driver->cuMemFreeAsync &&
           !atomic_load_explicit(&pool->frees_are_missed, memory_order_relaxed);
}

/* Whether the calling thread is the only one that has launched work lately. */
bool launches_alone(struct pool *pool);

/* The calling thread is about to launch work. */
void launches_note(struct pool *pool);

#endif
