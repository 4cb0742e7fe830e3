/*
 * What the programs pool_*.c, stream*.c, faults.c, figures.c, hostile.c and process_life.c share: a
 * context with its kernels, memory and streams, work that ends when told to, and what the pool says
 * of itself.
 *
 * A program has cases, one for each process: "program CASE". It exits 0 when all is well; otherwise
 * it says why and exits 1. Runs without the pool too, unless the case asks for it. A program
 * includes this once.
 */
#ifndef TESTS_E2E_POOL_H
#define TESTS_E2E_POOL_H

#include <pthread.h>
#include <time.h>

#include "../sim/simcuda.h"
#include "core/cudapool.h"
#include "interposition.h"

#include "../device_work.h"

/* Weak: a program runs without the preload object too. */
#pragma weak cudapool_is_active
#pragma weak cudapool_trim
#pragma weak cudapool_get_bytes
#pragma weak cudapool_get_peaks

struct test_case {
    const char *name;
    void (*run)(void);
};

static inline int run_case(int argc, char **argv, const struct test_case *cases)
{
    CHECK(argc > 1);
    for (; cases->name != NULL; cases++)
        if (strcmp(cases->name, argv[1]) == 0) {
            cases->run();
            return 0;
        }
    FAIL("no case \"%s\"", argv[1]);
}

static inline void sleep_ms(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* The answer must be this one. */
#define ANSWERS(expected, call)                                                                    \
    do {                                                                                           \
        CUresult answer = (call);                                                                  \
        if (answer != (expected))                                                                  \
            FAIL("%s answers %u, not %u", #call, answer, (CUresult)(expected));                    \
    } while (0)

#define EQUAL(expected, found)                                                                     \
    do {                                                                                           \
        unsigned long long expected_ = (expected), found_ = (found);                               \
        if (expected_ != found_)                                                                   \
            FAIL("%s is %llu, not %llu", #found, found_, expected_);                               \
    } while (0)

static inline CUstream new_stream(void)
{
    CUstream stream;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static inline CUstream new_blocking_stream(void)
{
    CUstream stream;
    CU(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    return stream;
}

static inline CUdeviceptr take(size_t bytes)
{
    CUdeviceptr address;
    CU(cuMemAlloc_v2(&address, bytes));
    return address;
}

static inline CUdeviceptr take_on(CUstream stream, size_t bytes)
{
    CUdeviceptr address = 0;
    CU(cuMemAllocAsync(&address, bytes, stream));
    CHECK(address != 0);
    return address;
}

/* A kernel that runs until it is released. */
struct gate {
    volatile unsigned long long *flag;
};

static inline struct gate new_gate(void)
{
    void *memory;
    CU(cuMemHostAlloc(&memory, sizeof(unsigned long long), CU_MEMHOSTALLOC_DEVICEMAP));
    return (struct gate){memory};
}

static inline void close_this_gate(struct gate gate, const struct kernels *kernels, CUstream stream)
{
    CUdeviceptr address;
    *gate.flag = 0;
    CU(cuMemHostGetDevicePointer_v2(&address, (void *)(uintptr_t)gate.flag, 0));
    wait_flag(kernels, stream, address);
}

static inline struct gate close_gate(const struct kernels *kernels, CUstream stream)
{
    struct gate gate = new_gate();
    close_this_gate(gate, kernels, stream);
    return gate;
}

static inline void open_gate(struct gate gate)
{
    *gate.flag = 1;
}

/* --- the pool
 * -----------------------------------------------------------------------------------*/

static inline struct cudapool_bytes pool_bytes(void)
{
    struct cudapool_bytes bytes;
    CHECK(cudapool_get_bytes != NULL && cudapool_get_bytes(0, &bytes) == 0);
    return bytes;
}

static inline bool has_pool(void)
{
    return cudapool_is_active != NULL && cudapool_is_active();
}

#endif
