/*
 * What a thread remembers between calls into the pool. Each thread reads and writes its own.
 */
#ifndef CUDAPOOL_CORE_THREAD_STATE_H
#define CUDAPOOL_CORE_THREAD_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"

struct context;

struct thread_state {
    CUcontext handle; /* the current context when last asked, and what it stood for */
    struct context *context;
    bool green;
    uint64_t generation; /* of the pool's registry then; 0: of none */
    void *kept;          /* of that context, by the kind of memory whose hits take no lock; means
                            nothing where the generation is another than the registry's */
    uint64_t id;         /* counted from 1 as threads first use a pool; 0: not yet */
    volatile unsigned context_locks; /* held or waited for, see context_lock */
    uint64_t waited_ns;              /* for fences, until a bucket has counted it */
};

extern _Thread_local struct thread_state thread_state __attribute__((visibility("hidden")));

#endif
