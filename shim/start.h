/*
 * The pool of this process, which is started when a hook first asks for it.
 */
#ifndef CUDAPOOL_SHIM_START_H
#define CUDAPOOL_SHIM_START_H

#include <stdatomic.h>

#include "core/driver/calls.h"
#include "core/pool/pool.h"
#include "shim.h"

/*
 * the_pool returns the pool, which the first call starts. It returns NULL where the program runs
 * without the pool. The reasons are: switched off, unreadable settings, no usable driver, a forked
 * child, compute-sanitizer. It also returns NULL where the calling thread is inside a driver call
 * that the pool made (a profiler calling back).
 */
HIDDEN extern _Atomic(struct pool *) pool_to_use;
HIDDEN struct pool *start_unless_decided(void);
static inline struct pool *the_pool(void)
{
    struct pool *pool = atomic_load_explicit(&pool_to_use, memory_order_acquire);
    if (__builtin_expect(!pool, 0))
        pool = start_unless_decided();
    return pool && !is_inside_driver() ? pool : NULL;
}

/* Returns the pool if it has been started, else NULL. Never starts it. Also returns NULL where the
 * calling thread is inside a driver call that the pool made. */
static inline struct pool *the_pool_if_started(void)
{
    struct pool *pool = atomic_load_explicit(&pool_to_use, memory_order_acquire);
    return __builtin_expect(pool && !is_inside_driver(), 1) ? pool : NULL;
}

#endif
