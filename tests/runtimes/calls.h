/*
 * Allocates device memory so many times through the driver that dlopen finds, and frees it: what
 * programs in other languages do by a few lines of C. Returns how many pairs were answered.
 */
#ifndef TESTS_RUNTIMES_CALLS_H
#define TESTS_RUNTIMES_CALLS_H

#include <dlfcn.h>
#include <stddef.h>

static int pairs(int count)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
    if (!driver)
        return -1;
    int (*initialise)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*set_current)(void *) = (int (*)(void *))dlsym(driver, "cuCtxSetCurrent");
    int (*allocate)(unsigned long long *, size_t) =
        (int (*)(unsigned long long *, size_t))dlsym(driver, "cuMemAlloc_v2");
    int (*release)(unsigned long long) = (int (*)(unsigned long long))dlsym(driver, "cuMemFree_v2");
    if (initialise(0) || retain(&context, 0) || set_current(context))
        return -1;
    int answered = 0;
    for (int i = 0; i < count; i++) {
        unsigned long long memory;
        answered += !allocate(&memory, 4000) && !release(memory);
    }
    return answered;
}

#endif
