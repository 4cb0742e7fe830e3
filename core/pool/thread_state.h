/*
 * What a thread remembers between calls into the pool. Each thread reads and writes its own; the
 * core owns it, and the shim reads inside_driver.
 */
#ifndef CUDAPOOL_CORE_THREAD_STATE_H
#define CUDAPOOL_CORE_THREAD_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"

struct context;
struct thread_cache;

struct thread_state {
    CUcontext handle; /* the current context when last asked, and what it stood for */
    struct context *context;
    bool green;
    uint64_t generation;          /* of the pool's registry then; 0: of none */
    unsigned inside_driver;       /* depth of our own driver calls */
    int cancellation;             /* what it was outside of them, see cancellation.h */
    uint64_t id;                  /* counted from 1 as threads first use a pool; 0: not yet */
    struct thread_cache *cache;   /* in the heap of that context, or NULL */
    struct thread_cache *caches;  /* in all heaps, see thread_cache.h */
    volatile unsigned heap_locks; /* held or waited for, see heap_lock */
    uint64_t waited_ns; /* for fences, until a bucket has counted it: see take_wait in heap.c */
    bool caches_told;   /* of the thread's end */
    bool caches_over;   /* the thread is ending */
};

extern _Thread_local struct thread_state thread_state __attribute__((visibility("hidden")));

#endif
