/*
 * What an allocator from elsewhere gives to the benchmark: a shared library that exports one
 * struct peer_allocator named bench_allocator. The worker opens it (worker/allocators.c), with
 * device 0's primary context current.
 */
#ifndef CUDAPOOL_TESTS_BENCH_PEER_H
#define CUDAPOOL_TESTS_BENCH_PEER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct peer_allocator {
    /* Once in the process, first. 0, or -1 where the allocator can't be used here. */
    int (*open)(void);
    /* Once in each thread that allocates or frees, before it does. */
    void (*thread_starts)(void);
    /* Memory for work on this stream (a CUstream); 0 where there is none. */
    uint64_t (*allocate)(size_t bytes, void *stream);
    void (*release)(uint64_t address, void *stream);
};

#ifdef __cplusplus
}
#endif

#endif
