/*
 * The way of a preload object into a program, for objects that replace a few functions of the
 * driver. Before this file is included, REPLACED(F) lists them as F(name, parameters), and PRELOAD
 * is the object's name in messages. After it, REPLACE(name, parameters) { ... } defines each, and
 * real()->name calls what the program would have called without the object: the driver's, or that
 * of a preload that comes later.
 *
 * Lookups arrive as the pool's do: shim/dlsym.c and shim/lookup.c are part of the object. The real
 * resolver answers a lookup. If its answer is the address of a listed function, the program
 * gets ours.
 */
#ifndef CUDAPOOL_BENCH_REPLACED_H
#define CUDAPOOL_BENCH_REPLACED_H

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/base/glibc_compat.h"
#include "shim/entries.h"
#include "shim/lookup.h"
#include "shim/real_driver.h"

#include "../driver_api.h"

#define LOOKUPS(F)                                                                                 \
    F(cuGetProcAddress, (const char *symbol, void **function, int version, cuuint64_t flags))      \
    F(cuGetProcAddress_v2, (const char *symbol, void **function, int version, cuuint64_t flags,    \
                            CUdriverProcAddressQueryResult *status))

#define ALL(F) LOOKUPS(F) REPLACED(F)

enum {
#define F(name, parameters) REPLACED_##name,
    ALL(F)
#undef F
        REPLACED_COUNT
};

struct driver_functions {
#define F(name, parameters) CUresult(*name) parameters;
    ALL(F)
#undef F
};

#define F(name, parameters) HIDDEN CUresult replace_##name parameters;
ALL(F)
#undef F

static const struct {
    const char *name;
    void *ours;
} replacements[REPLACED_COUNT] = {
#define F(name, parameters) {#name, (void *)replace_##name},
    ALL(F)
#undef F
};

#define REPLACE(name, parameters)                                                                  \
    extern CUresult name parameters                                                                \
        __attribute__((alias("replace_" #name), visibility("default")));                           \
    CUresult replace_##name parameters

union driver_table {
    struct driver_functions call;
    void *address[REPLACED_COUNT];
};

/* Release where it is published, acquire where it is read; never freed. */
static _Atomic(union driver_table *) published;

static CUresult function_is_missing(void)
{
    return CUDA_ERROR_NOT_FOUND;
}

static union driver_table *look_up(void *library)
{
    union driver_table *found = calloc(1, sizeof *found), *faster = NULL;
    if (found == NULL)
        abort();
    for (int i = 0; i < REPLACED_COUNT; i++) {
        found->address[i] = next_dlsym()(library, replacements[i].name);
        if (found->address[i] == NULL)
            found->address[i] = (void *)function_is_missing;
    }
    (void)dlerror();
    if (atomic_compare_exchange_strong_explicit(&published, &faster, found, memory_order_acq_rel,
                                                memory_order_acquire))
        return found;
    free(found);
    return faster;
}

static union driver_table *loaded_driver(void)
{
    union driver_table *driver = atomic_load_explicit(&published, memory_order_acquire);
    if (driver == NULL) {
        void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
        driver = library != NULL ? look_up(library) : NULL;
    }
    return driver;
}

/* Of a program that has called one of our functions, so that there is one. */
static const struct driver_functions *real(void)
{
    union driver_table *driver = loaded_driver();
    if (driver == NULL) {
        fprintf(stderr, PRELOAD ": the program uses a driver that is not libcuda.so.1\n");
        abort();
    }
    return &driver->call;
}

static void *replaced(void *address)
{
    const union driver_table *driver = loaded_driver();
    if (driver == NULL || address == NULL || address == (void *)function_is_missing)
        return address;
    for (int i = 0; i < REPLACED_COUNT; i++)
        if (driver->address[i] == address)
            return replacements[i].ours;
    return address;
}

/* dlsym.c asks these two. */
bool driver_has(enum entry entry)
{
    (void)entry;
    return loaded_driver() != NULL;
}

void *dlsym_of_driver(void *handle, const char *name)
{
    return replaced(next_dlsym()(handle, name));
}

REPLACE(cuGetProcAddress, (const char *symbol, void **function, int version, cuuint64_t flags))
{
    CUresult result = real()->cuGetProcAddress(symbol, function, version, flags);
    if (result == CUDA_SUCCESS && function != NULL)
        *function = replaced(*function);
    return result;
}

REPLACE(cuGetProcAddress_v2, (const char *symbol, void **function, int version, cuuint64_t flags,
                              CUdriverProcAddressQueryResult *status))
{
    CUresult result = real()->cuGetProcAddress_v2(symbol, function, version, flags, status);
    if (result == CUDA_SUCCESS && function != NULL)
        *function = replaced(*function);
    return result;
}

#endif
