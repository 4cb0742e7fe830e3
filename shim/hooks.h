/*
 * What the hooks have in common: trying again after making room.
 */
#ifndef CUDAPOOL_SHIM_HOOKS_H
#define CUDAPOOL_SHIM_HOOKS_H

#include "shim.h"

static inline bool make_room(struct pool_retry *retry)
{
    struct pool *pool = the_pool();
    return pool && pool_make_room(pool, retry);
}

/* A driver call of the program's: tried again, when memory is short, for as long as the pool finds
 * something to give back. What the pool caches never makes a call fail. */
#define WITH_ROOM(call)                                                                            \
    ({                                                                                             \
        CUresult result_ = (call);                                                                 \
        struct pool_retry retry_ = {0};                                                            \
        while (__builtin_expect(result_ == CUDA_ERROR_OUT_OF_MEMORY, 0) && make_room(&retry_))     \
            result_ = (call);                                                                      \
        result_;                                                                                   \
    })

#endif
