/*
 * What the hooks have in common: the real driver, the pool if there is one, and trying again after
 * making room.
 */
#ifndef CUDAPOOL_SHIM_HOOKS_H
#define CUDAPOOL_SHIM_HOOKS_H

#include <stdatomic.h>

#include "core/driver/calls.h"
#include "core/driver/cuda_abi.h"
#include "core/pool/pool.h"
#include "real_driver.h"
#include "start.h"

/* Defines the replacement of one driver function. What the program calls is its entry (entries.c),
 * from which a jump leads here. Used: by assembly, which the compiler does not read. */
#define HOOK(name, parameters)                                                                     \
    HIDDEN CUresult hook_##name parameters __attribute__((used));                                  \
    CUresult hook_##name parameters

/* The stream of a call with _ptsz, as the calls without it name it. */
static inline CUstream per_thread(CUstream stream)
{
    return stream ? stream : CU_STREAM_PER_THREAD;
}

static inline bool make_room_on(CUdevice ordinal, uint64_t bytes, struct reclaim *progress)
{
    struct pool *pool = the_pool();
    return pool && (bytes ? pool_make_room_on(pool, ordinal, bytes, progress)
                          : pool_make_room(pool, progress));
}

/* The pool, also for a thread that the driver has called back out of a call that the pool made.
 * What such a thread takes and frees passes the pool by, but the pool must know of it. */
static inline struct pool *pool_to_tell(void)
{
    return atomic_load_explicit(&pool_to_use, memory_order_acquire);
}

/* After the driver has given out an address by another call than the pool's own. */
static inline CUresult tell_of_new(CUresult result, const CUdeviceptr *address)
{
    struct pool *pool = result == CUDA_SUCCESS ? pool_to_tell() : NULL;
    if (pool)
        pool_forget_address(pool, *address);
    return result;
}

/* Before the driver is to free an address past the pool. False: it is nobody's to free. */
static inline bool may_pass_by(CUdeviceptr address)
{
    struct pool *pool = pool_to_tell();
    return !pool || pool_let_go(pool, address);
}

/* A driver call of the program's: tried again, when memory is short, for as long as the pool finds
 * something to give back. What the pool caches never makes a call fail. */
#define WITH_ROOM(call) WITH_ROOM_ON(-1, 0, call)

/* The same of a call that takes so many bytes, at least, of the device with this ordinal, as in
 * pool_make_room_on; 0: nobody knows. Neither is asked for before the call has failed. */
#define WITH_ROOM_ON(ordinal, bytes, call)                                                         \
    ({                                                                                             \
        CUresult result_ = (call);                                                                 \
        if (__builtin_expect(result_ == CUDA_ERROR_OUT_OF_MEMORY, 0)) {                            \
            struct reclaim progress_ = {0};                                                        \
            while (result_ == CUDA_ERROR_OUT_OF_MEMORY &&                                          \
                   make_room_on((ordinal), (bytes), &progress_))                                   \
                result_ = (call);                                                                  \
        }                                                                                          \
        result_;                                                                                   \
    })

#endif
