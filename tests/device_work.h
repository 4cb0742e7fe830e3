/*
 * What programs of tests/e2e and tests/gpu have in common: the kernels of tests/kernels.ptx by
 * name, and a word on the device that counts what a kernel found wrong.
 *
 * Whoever includes this has defined CU(call), which ends the process where a driver call fails.
 * Every function is safe from any thread in which the kernels' context is current.
 */
#ifndef TESTS_DEVICE_WORK_H
#define TESTS_DEVICE_WORK_H

#include <time.h>

#include "driver_api.h"
#include "kernels.h"

#define MIB ((size_t)1 << 20)

static inline double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* Opens device 0 and makes its primary context current. */
static inline CUcontext open_primary(void)
{
    CUdevice device;
    CUcontext context;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    return context;
}

/* The kernels, loaded into one context. */
struct kernels {
    CUmodule module;
    CUfunction spin, fill, verify, spin_then_verify, wait_flag, set_flag;
};

static inline void find_kernels(struct kernels *kernels)
{
    CU(cuModuleGetFunction(&kernels->spin, kernels->module, "spin"));
    CU(cuModuleGetFunction(&kernels->fill, kernels->module, "fill"));
    CU(cuModuleGetFunction(&kernels->verify, kernels->module, "verify"));
    CU(cuModuleGetFunction(&kernels->spin_then_verify, kernels->module, "spin_then_verify"));
    CU(cuModuleGetFunction(&kernels->wait_flag, kernels->module, "wait_flag"));
    CU(cuModuleGetFunction(&kernels->set_flag, kernels->module, "set_flag"));
}

static inline void load_kernels(struct kernels *kernels)
{
    CU(cuModuleLoadData(&kernels->module, KERNELS_PTX));
    find_kernels(kernels);
}

/* One block of one thread: for kernels whose time matters, not their width. */
static inline void launch_narrow(CUfunction function, CUstream stream, void **parameters)
{
    CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

static inline void launch_wide(CUfunction function, CUstream stream, void **parameters)
{
    CU(cuLaunchKernel(function, 8, 1, 1, 128, 1, 1, 0, stream, parameters, NULL));
}

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
    CU(cuMemAlloc_v2(&counter, sizeof zero));
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

#endif
