/*
 * What a thread remembers between calls into the pool. Each thread reads and writes its own.
 */
#ifndef CUDAPOOL_CORE_THREAD_STATE_H
#define CUDAPOOL_CORE_THREAD_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "core/figures/stats.h"

struct context;

struct thread_state {
    CUcontext handle; /* the current context when last asked, and what it stood for */
    struct context *context;
    bool green;
    uint64_t generation; /* of the pool's registry then; 0: of none */
    void *kept;          /* of that context, by the kind of memory whose hits take no lock; means
                            nothing where the generation is another than the registry's */
    void
        *shard; /* likewise, by the kind whose hits take a lock of a few threads; NULL: not known */
    uint64_t id;                     /* counted from 1 as threads first use a pool; 0: not yet */
    volatile unsigned context_locks; /* held or waited for, see context_lock */
    uint32_t looks;                  /* see housekeeper_look */
    uint32_t launches;               /* of work, modulo 2^32 */
    uint64_t waited_ns;              /* for fences, until a bucket has counted it */
    struct bucket_counters *freeing; /* of the block whose free may wait; NULL: of any size */
};

extern _Thread_local struct thread_state thread_state __attribute__((visibility("hidden")));

/* Counts the time that the calling thread has waited lately as a wait for blocks of this bucket. No
 * lock is needed. */
static inline void thread_count_wait(struct bucket_counters *counters)
{
    if (__builtin_expect(!thread_state.waited_ns, 1))
        return;
    bucket_count_wait(counters, thread_state.waited_ns);
    thread_state.waited_ns = 0;
}

#endif
