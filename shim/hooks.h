/*
 * What all hooks use: the real driver, the pool if there is one, and retries of driver calls after
 * the pool has made room.
 */
#ifndef CUDAPOOL_SHIM_HOOKS_H
#define CUDAPOOL_SHIM_HOOKS_H

#include <stdatomic.h>

#include "core/driver/calls.h"
#include "core/driver/cuda_abi.h"
#include "core/pool/pool.h"
#include "real_driver.h"
#include "start.h"

/* Defines the replacement of one driver function. The program calls the function's entry
 * (entries.c), which jumps here. "used" is for the compiler, which does not see that assembly
 * refers to the hook. */
#define HOOK(name, parameters)                                                                     \
    HIDDEN CUresult hook_##name parameters __attribute__((used));                                  \
    CUresult hook_##name parameters

/* The stream of a _ptsz call, as the functions without _ptsz name it. */
static inline CUstream per_thread(CUstream stream)
{
    return stream ? stream : CU_STREAM_PER_THREAD;
}

static inline bool make_room_on(CUdevice ordinal, uint64_t bytes, bool reserved,
                                struct reclaim *progress)
{
    struct pool *pool = the_pool();
    return pool && (bytes ? pool_make_room_on(pool, ordinal, bytes, reserved, progress)
                          : pool_make_room(pool, progress));
}

/* The pool, also for a thread that the driver has called back from a call of the pool's. What such
 * a thread allocates and frees bypasses the pool, but the pool must know of it. NULL where no pool
 * has started. */
static inline struct pool *pool_to_tell(void)
{
    return atomic_load_explicit(&pool_to_use, memory_order_acquire);
}

/* Called after the driver has handed out an address by a call that was not the pool's own. */
static inline CUresult tell_of_new(CUresult result, const CUdeviceptr *address)
{
    struct pool *pool = result == CUDA_SUCCESS ? pool_to_tell() : NULL;
    if (pool)
        pool_forget_address(pool, *address);
    return result;
}

/* Called before the driver frees an address without the pool. False: the block is free already, and
 * the driver must not be called. */
static inline bool may_pass_by(CUdeviceptr address)
{
    struct pool *pool = pool_to_tell();
    return !pool || pool_freed_outside(pool, address);
}

/* Makes a driver call for the program, and repeats it when memory is short, as long as the pool
 * finds something to release. So memory that the pool caches never makes a call fail. */
#define WITH_ROOM(call) WITH_ROOM_ON(-1, 0, false, call)

/* As WITH_ROOM, for a call that takes at least this many bytes of the device with this ordinal (see
 * pool_make_room_on). bytes 0: unknown. The first three are evaluated only if the call has failed.
 */
#define WITH_ROOM_ON(ordinal, bytes, reserved, call)                                               \
    ({                                                                                             \
        CUresult result_ = (call);                                                                 \
        if (__builtin_expect(result_ == CUDA_ERROR_OUT_OF_MEMORY, 0)) {                            \
            struct reclaim progress_ = {0};                                                        \
            while (result_ == CUDA_ERROR_OUT_OF_MEMORY &&                                          \
                   make_room_on((ordinal), (bytes), (reserved), &progress_))                       \
                result_ = (call);                                                                  \
        }                                                                                          \
        result_;                                                                                   \
    })

#endif
