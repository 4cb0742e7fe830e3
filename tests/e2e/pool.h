/*
 * What the programs pool_*.c, faults.c and process_life*.c share: a context with its kernels, work
 * that ends when told to, and what the pool says of itself.
 *
 * A program has cases, one for each process: "program CASE". It exits 0 when all is well; otherwise
 * it says why and exits 1. Runs without the pool too, unless the case asks for it. A program
 * includes this once.
 */
#ifndef TESTS_E2E_POOL_H
#define TESTS_E2E_POOL_H

#include <pthread.h>
#include <time.h>

#include "../../core/cudapool.h"
#include "../kernels.h"
#include "../sim/simcuda.h"
#include "interposition.h"

#define MIB ((size_t)1 << 20)

/* Weak: a program runs without the preload object too. */
#pragma weak cudapool_is_active
#pragma weak cudapool_trim
#pragma weak cudapool_get_bytes

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

static inline double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
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

static inline CUcontext open_primary(void)
{
    CUcontext context;
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    return context;
}

static inline CUstream new_stream(void)
{
    CUstream stream;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static inline CUdeviceptr take(size_t bytes)
{
    CUdeviceptr address;
    CU(cuMemAlloc_v2(&address, bytes));
    return address;
}

/* --- kernels
 * ------------------------------------------------------------------------------------*/

struct kernels {
    CUmodule module;
    CUfunction spin, fill, verify, spin_then_verify, wait_flag;
};

static inline void load_kernels(struct kernels *kernels)
{
    CU(cuModuleLoadData(&kernels->module, KERNELS_PTX));
    CU(cuModuleGetFunction(&kernels->spin, kernels->module, "spin"));
    CU(cuModuleGetFunction(&kernels->fill, kernels->module, "fill"));
    CU(cuModuleGetFunction(&kernels->verify, kernels->module, "verify"));
    CU(cuModuleGetFunction(&kernels->spin_then_verify, kernels->module, "spin_then_verify"));
    CU(cuModuleGetFunction(&kernels->wait_flag, kernels->module, "wait_flag"));
}

static inline void launch(CUfunction function, CUstream stream, void **parameters)
{
    CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

static inline void spin(const struct kernels *kernels, CUstream stream, unsigned long long ns)
{
    launch(kernels->spin, stream, (void *[]){&ns});
}

static inline void fill(const struct kernels *kernels, CUstream stream, CUdeviceptr target,
                        unsigned int words, unsigned int value)
{
    launch(kernels->fill, stream, (void *[]){&target, &words, &value});
}

static inline void spin_then_verify(const struct kernels *kernels, CUstream stream,
                                    unsigned long long ns, CUdeviceptr source, unsigned int words,
                                    unsigned int value, CUdeviceptr mismatches)
{
    launch(kernels->spin_then_verify, stream,
           (void *[]){&ns, &source, &words, &value, &mismatches});
}

/* A kernel that runs until it is released. */
struct gate {
    volatile unsigned long long *flag;
};

static inline struct gate close_gate(const struct kernels *kernels, CUstream stream)
{
    void *memory;
    CUdeviceptr address;
    CU(cuMemHostAlloc(&memory, sizeof(unsigned long long), CU_MEMHOSTALLOC_DEVICEMAP));
    struct gate gate = {memory};
    *gate.flag = 0;
    CU(cuMemHostGetDevicePointer_v2(&address, memory, 0));
    launch(kernels->wait_flag, stream, (void *[]){&address});
    return gate;
}

static inline void open_gate(struct gate gate)
{
    *gate.flag = 1;
}

/* Words on the device that count mismatches. */
static inline CUdeviceptr new_counter(void)
{
    const unsigned long long zero = 0;
    CUdeviceptr counter = take(sizeof zero);
    CU(cuMemcpyHtoD_v2(counter, &zero, sizeof zero));
    return counter;
}

static inline unsigned long long read_counter(CUdeviceptr counter)
{
    unsigned long long value;
    CU(cuCtxSynchronize());
    CU(cuMemcpyDtoH_v2(&value, counter, sizeof value));
    return value;
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
