/*
 * Makes threads of the pool's own in the program's process. The C library makes them (never a bare
 * clone), inside a slow path of the program's. They are detached and have a small stack. They block
 * all signals except those of their own faults.
 */
#ifndef CUDAPOOL_CORE_OWN_THREAD_H
#define CUDAPOOL_CORE_OWN_THREAD_H

#include <stdbool.h>

struct pool;

/* Makes a thread. Returns false where none can be made: the process has no threads library, or may
 * be killed for making a thread. The caller may hold the lock of primary contexts, and no other.
 * errno stays unchanged. */
bool own_thread_make(struct pool *pool, void *(*run)(void *), void *argument);

#endif
