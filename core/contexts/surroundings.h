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
 * ways than CUDA's, or follow the driver's calls. False where that cannot be done just now. */
bool look_at_objects(struct pool *pool);

/* Around a fork, in the thread that forks: nobody looks at objects meanwhile, since that takes a
 * lock of the dynamic linker's, which would be locked in the child for ever. coming waits for those
 * who do, a tenth of a second at most. */
void surroundings_fork_coming(struct pool *pool);
void surroundings_fork_over(struct pool *pool);

/* Around all else of the pool's that takes a lock of the dynamic linker's, or the one of exit's
 * handlers, which a child would find locked as well. False while a thread forks: then it is not the
 * time, and nothing is to be ended. */
bool surroundings_linker_begin(struct pool *pool);
void surroundings_linker_end(struct pool *pool);

/* Whether memory may go back to the driver by cuMemFreeAsync: the driver has it, and nobody was
 * found who follows the driver's frees and would miss it. */
static inline bool returns_in_stream_order(const struct pool *pool)
{
    return pool->driver->cuMemFreeAsync &&
           !atomic_load_explicit(&pool->frees_are_missed, memory_order_relaxed);
}

/* Whether the calling thread is the only one that has launched work lately. */
bool launches_alone(struct pool *pool);

/* The calling thread is about to launch work on the stream, which is named as in the functions
 * without _ptsz: CU_STREAM_PER_THREAD is another one in every thread. */
void launches_note(struct pool *pool, CUstream stream);

/* It records an event there, or has it wait, which is how copies and the like show. */
void stream_note_use(struct pool *pool, CUstream stream);

/* Whether all of the program's work lately was on one stream, as far as that was seen, whichever
 * threads it came from: then a barrier makes no stream wait for another. */
bool one_stream_is_used(struct pool *pool);

#endif
