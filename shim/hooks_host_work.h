/*
 * HOST_WORK wraps driver calls that submit work which ends only if the host acts
 * (core/contexts/host_work.h).
 */
#ifndef CUDAPOOL_SHIM_HOOKS_HOST_WORK_H
#define CUDAPOOL_SHIM_HOOKS_HOST_WORK_H

#include "hooks.h"

/* Starts the pool if needed: the work may still be running when the pool has memory in use. */
#define HOST_WORK(call, stream)                                                                    \
    ({                                                                                             \
        struct pool *work_pool_ = the_pool();                                                      \
        struct host_submission submission_ = {0};                                                  \
        if (work_pool_)                                                                            \
            submission_ = host_work_begin(work_pool_, stream);                                     \
        CUresult work_result_ = (call);                                                            \
        host_work_end(&submission_);                                                               \
        work_result_;                                                                              \
    })

#endif
