/*
 * What the files of the shim share: the real driver, and the pool if there is one.
 *
 * preload.c finds the driver and decides what a lookup answers; start.c reads the environment and
 * the settings and starts the pool; the hooks_*.c files use both. Nothing in core/ includes this.
 */
#ifndef CUDAPOOL_SHIM_SHIM_H
#define CUDAPOOL_SHIM_SHIM_H

#include <stdatomic.h>

#include "core/base/mutation.h"
#include "core/driver/calls.h"
#include "core/driver/cuda_abi.h"
#include "core/driver/driver.h"
#include "core/pool/pool.h"

#define HIDDEN __attribute__((visibility("hidden")))

/* The driver's own address of every replaced function. */
struct real_driver {
#define ENTRY_POINT(name, parameters) CUresult(*name) parameters;
#include "entry_points.def"
#undef ENTRY_POINT
};

/*
 * The real entry points, found on the first call in a process (preload.c). Never NULL; a function
 * that the driver lacks is a function that returns CUDA_ERROR_NOT_FOUND, and all of them are
 * CUDA_ERROR_NOT_INITIALIZED ones where there is no driver. Safe from any thread, also from one
 * that is inside this very call (a constructor run by it): that one gets the not-found functions.
 */
HIDDEN const struct real_driver *real_driver(void);

/* The core's table, filled together with the real entry points. NULL where there is no driver or
 * it lacks a function that the core requires. */
HIDDEN const struct driver *core_driver(void);

/*
 * The pool, started on the first call (start.c). NULL where the program runs without it: switched
 * off, unreadable settings, no usable driver, a forked child, under compute-sanitizer, or the
 * calling thread is already inside a driver call that the pool made (a profiler calling back).
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

/* The same without starting it. */
static inline struct pool *the_pool_at_once(void)
{
    struct pool *pool = atomic_load_explicit(&pool_to_use, memory_order_acquire);
    return __builtin_expect(pool && !is_inside_driver(), 1) ? pool : NULL;
}

/* Defines the replacement of one driver function. What the program calls is its entry (entries.c),
 * from which a jump leads here. Used: by assembly, which the compiler does not read. */
#define HOOK(name, parameters)                                                                     \
    HIDDEN CUresult hook_##name parameters __attribute__((used));                                  \
    CUresult hook_##name parameters

#endif
