/*
 * What the programs in this directory share: opening a device, its kernels, checking, timing.
 *
 * Every program runs unmodified on a real GPU and on the simulated driver, without and with the
 * pool; it checks its data, ends with one line "NAME: MILLISECONDS ms, ...", and exits 0, or 1 when
 * something was wrong. A program includes this once. Not thread-safe unless it says so.
 */
#ifndef CUDAPOOL_TESTS_GPU_GPU_H
#define CUDAPOOL_TESTS_GPU_GPU_H

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../driver_api.h"
#include "../kernels.h"
#include "../sim/races.h"

#define MIB ((size_t)1 << 20)

/* The kernels of tests/kernels.ptx, loaded into one context. */
struct kernels {
    CUmodule module;
    CUfunction spin, fill, verify, spin_then_verify, wait_flag, set_flag;
};

/* Safe from any thread: says what went wrong where, and ends the process with status 1. */
__attribute__((noreturn, format(printf, 3, 4))) static inline void
fail_at(const char *file, int line, const char *format, ...)
{
    va_list arguments;
    fprintf(stderr, "%s:%d: ", file, line);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    fflush(NULL);
    _exit(1);
}
#define FAIL(...) fail_at(__FILE__, __LINE__, __VA_ARGS__)

/* The call must succeed. */
#define CHECK(call)                                                                                \
    do {                                                                                           \
        CUresult check_result = (call);                                                            \
        if (check_result != CUDA_SUCCESS)                                                          \
            FAIL("%s: CUDA error %u", #call, check_result);                                        \
    } while (0)

static inline double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* The number after "name=" among the program's arguments, or the one given. */
static inline unsigned long argument(int argc, char **argv, const char *name,
                                     unsigned long otherwise)
{
    size_t length = strlen(name);
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], name, length) == 0 && argv[i][length] == '=')
            return strtoul(argv[i] + length + 1, NULL, 0);
    return otherwise;
}

/* True if the word stands among the program's arguments. */
static inline bool asked_for(int argc, char **argv, const char *word)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], word) == 0)
            return true;
    return false;
}

/* Loads the kernels into the current context, and runs each that ends by itself once, so that no
 * later launch loads code. */
static inline void load_kernels(struct kernels *kernels)
{
    CHECK(cuModuleLoadData(&kernels->module, KERNELS_PTX));
    CHECK(cuModuleGetFunction(&kernels->spin, kernels->module, "spin"));
    CHECK(cuModuleGetFunction(&kernels->fill, kernels->module, "fill"));
    CHECK(cuModuleGetFunction(&kernels->verify, kernels->module, "verify"));
    CHECK(cuModuleGetFunction(&kernels->spin_then_verify, kernels->module, "spin_then_verify"));
    CHECK(cuModuleGetFunction(&kernels->wait_flag, kernels->module, "wait_flag"));
    CHECK(cuModuleGetFunction(&kernels->set_flag, kernels->module, "set_flag"));
}

/* Opens device 0 and makes its primary context current. */
static inline CUcontext open_primary_context(void)
{
    CUdevice device;
    CUcontext context;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    return context;
}

/* One block of one thread: for kernels whose time matters, not their width. */
static inline void launch_narrow(CUfunction function, CUstream stream, void **parameters)
{
    CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

static inline void launch_wide(CUfunction function, CUstream stream, void **parameters)
{
    CHECK(cuLaunchKernel(function, 8, 1, 1, 128, 1, 1, 0, stream, parameters, NULL));
}

/* The kernels, by name. Safe from any thread in which the kernels' context is current. */
static inline void spin(const struct kernels *kernels, CUstream stream, unsigned long long ns)
{
    launch_narrow(kernels->spin, stream, (void *[]){&ns});
}

static inline void fill(const struct kernels *kernels, CUstream stream, CUdeviceptr target,
                        unsigned int words, unsigned int value)
{
    launch_wide(kernels->fill, stream, (void *[]){&target, &words, &value});
}

/* Adds to *mismatches (a u64 on the device) how many of the words are not value. */
static inline void verify(const struct kernels *kernels, CUstream stream, CUdeviceptr source,
                          unsigned int words, unsigned int value, CUdeviceptr mismatches)
{
    launch_wide(kernels->verify, stream, (void *[]){&source, &words, &value, &mismatches});
}

static inline void spin_then_verify(const struct kernels *kernels, CUstream stream,
                                    unsigned long long ns, CUdeviceptr source, unsigned int words,
                                    unsigned int value, CUdeviceptr mismatches)
{
    launch_wide(kernels->spin_then_verify, stream,
                (void *[]){&ns, &source, &words, &value, &mismatches});
}

static inline void wait_flag(const struct kernels *kernels, CUstream stream, CUdeviceptr flag)
{
    launch_narrow(kernels->wait_flag, stream, (void *[]){&flag});
}

static inline void set_flag(const struct kernels *kernels, CUstream stream, CUdeviceptr flag)
{
    launch_narrow(kernels->set_flag, stream, (void *[]){&flag});
}

/* A u64 on the device that counts mismatches, and reading it (which synchronises the context). */
static inline CUdeviceptr new_counter(void)
{
    CUdeviceptr counter;
    const unsigned long long zero = 0;
    CHECK(cuMemAlloc_v2(&counter, sizeof zero));
    CHECK(cuMemcpyHtoD_v2(counter, &zero, sizeof zero));
    return counter;
}

static inline unsigned long long read_counter(CUdeviceptr counter)
{
    unsigned long long value;
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyDtoH_v2(&value, counter, sizeof value));
    return value;
}

/* A thread for each index below threads, running body(index); returns when all have ended. */
struct worker {
    pthread_t thread;
    void (*body)(unsigned int index);
    unsigned int index;
};

static inline void *run_worker(void *argument)
{
    struct worker *worker = argument;
    worker->body(worker->index);
    return NULL;
}

static inline void start_worker(struct worker *worker, void (*body)(unsigned int),
                                unsigned int index)
{
    worker->body = body;
    worker->index = index;
    if (pthread_create(&worker->thread, NULL, run_worker, worker) != 0)
        FAIL("no thread could be started");
}

static inline void join_worker(struct worker *worker)
{
    pthread_join(worker->thread, NULL);
}

/* A small generator, so that every run takes the same sizes. */
static inline unsigned int next_random(unsigned int *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

#endif
