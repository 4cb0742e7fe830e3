/*
 * What a thread remembers between calls into the pool. Each thread reads and writes only its own.
 */
#ifndef CUDAPOOL_CORE_THREAD_STATE_H
#define CUDAPOOL_CORE_THREAD_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "core/figures/stats.h"

struct context;

struct thread_state {
    /* The current handle when last asked; context and green say what it stood for. */
    CUcontext handle;
    struct context *context;
    bool green;
    uint64_t generation; /* the generation of the pool's registry then; 0: of none */
    /* Set for that context by the kind whose hits take no lock. It means nothing where generation
     * differs from the registry's. */
    void *device_cache;
    /* Set for that context by the kind whose hits take a lock that a few threads share; NULL:
     * not known. It means nothing where generation differs from the registry's. */
    void *shard;
    uint64_t id;                     /* counted from 1 as threads first use a pool; 0: not yet */
    volatile unsigned context_locks; /* held or waited for, see context_lock */
    uint32_t looks;                  /* see housekeeper_look */
    uint32_t launches;               /* launches of work, modulo 2^32 */
    uint64_t waited_ns;              /* time waited for fences that no bucket has counted yet */
    struct bucket_counters *freeing; /* for the block whose free may wait; NULL: of any size */
};

extern _Thread_local struct thread_state thread_state __attribute__((visibility("hidden")));

/* No lock needed. Counts the calling thread's waited_ns as a wait for blocks of this bucket. */
static inline void thread_count_wait(struct bucket_counters *counters)
{
    if (__builtin_expect(!thread_state.waited_ns, 1))
        return;
    bucket_count_wait(counters, thread_state.waited_ns);
    thread_state.waited_ns = 0;
}

#endif
