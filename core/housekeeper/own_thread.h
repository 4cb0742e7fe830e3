/*
 * Threads of the pool's own, in someone else's process: made by the C library (never a bare clone)
 * inside a slow path of the program's, detached, with a small stack, and with all signals blocked
 * but those that tell of their own faults.
 */
#ifndef CUDAPOOL_CORE_OWN_THREAD_H
#define CUDAPOOL_CORE_OWN_THREAD_H

#include <stdbool.h>

struct pool;

/* False where none can be made: the process has no threads' library, or may be killed for making
 * one. No lock is held but perhaps that of primary contexts. errno stays as it is. */
bool own_thread_make(struct pool *pool, void *(*run)(void *), void *argument);

#endif
