/*
 * This file observes what happens around the pool in the process. It finds libraries that reach GPU
 * memory or follow the driver's frees, and it notes who launches work.
 *
 * Any thread may call these functions, and needs no lock. A result is a hint, or is published by an
 * atomic of struct pool.
 */
#ifndef CUDAPOOL_CORE_SURROUNDINGS_H
#define CUDAPOOL_CORE_SURROUNDINGS_H

#include <stdbool.h>

#include "pool_state.h"

/* Whether only later work of a context can reach its memory, so that a barrier protects a block.
 * There must be one context, no capture, and no library that gives devices access without CUDA's
 * knowledge. */
bool barriers_are_open(struct pool *pool);

/* Looks through what has been loaded since the last look. It searches for libraries that reach GPU
 * memory in other ways than CUDA's, or follow the driver's calls. False where it cannot look just
 * now. */
bool look_at_objects(struct pool *pool);

/* Called around a fork, in the thread that forks. Nobody looks through objects meanwhile: that
 * takes a lock of the dynamic linker, which would stay locked in the child for ever. coming waits
 * for threads that do look, a tenth of a second at most. */
void surroundings_fork_coming(struct pool *pool);
void surroundings_fork_over(struct pool *pool);

/* Called around everything else of the pool's that takes a lock of the dynamic linker, or the lock
 * of exit's handlers. A child would find those locked as well. False while a thread forks: then the
 * caller must do nothing, and must not call end. */
bool surroundings_linker_begin(struct pool *pool);
void surroundings_linker_end(struct pool *pool);

/* Whether memory may be returned by cuMemFreeAsync. The driver must have that function. No library
 * may be known that follows the driver's frees and would miss it. */
static inline bool returns_in_stream_order(const struct pool *pool)
{
    return pool->driver->cuMemFreeAsync &&
           !atomic_load_explicit(&pool->frees_are_missed, memory_order_relaxed);
}

/* Whether the calling thread is the only one that has launched work lately. */
bool launches_alone(struct pool *pool);

/* The calling thread is about to launch work on the stream, which is named as in the functions
 * without _ptsz: CU_STREAM_PER_THREAD is another stream in every thread. */
void launches_note(struct pool *pool, CUstream stream);

/* The calling thread records an event on the stream, or makes it wait. The pool notices copies and
 * the like by this. */
void stream_note_use(struct pool *pool, CUstream stream);

/* Whether all of the program's work lately was on one stream, as far as the pool saw, from
 * whichever threads. Then a barrier makes no stream wait for another. */
bool one_stream_is_used(struct pool *pool);

#endif
