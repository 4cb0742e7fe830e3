/*
 * What the programs interposition_*.c share: saying what is wrong, and looking at addresses past
 * the preload object.
 *
 * Every program exits 0 and prints nothing when all is well; otherwise it says why and exits 1.
 */
#ifndef TESTS_E2E_INTERPOSITION_H
#define TESTS_E2E_INTERPOSITION_H

#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../driver_api.h"

#define PRELOAD_OBJECT "libcudapool_preload.so"
#define DRIVER_OBJECT  "libcuda.so.1"

__attribute__((noreturn, format(printf, 3, 4))) static inline void
fail_at(const char *file, int line, const char *format, ...)
{
    va_list arguments;
    printf("%s:%d: ", file, line);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(NULL);
    _exit(1);
}
#define FAIL(...) fail_at(__FILE__, __LINE__, __VA_ARGS__)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            FAIL("not so: %s", #condition);                                                        \
    } while (0)

typedef void *lookup_function(void *handle, const char *name);

/* glibc's own dlsym: nobody interposes dlvsym here. */
static inline lookup_function *glibc_dlsym(void)
{
#if defined(__aarch64__)
    const char *version = "GLIBC_2.17";
#else
    const char *version = "GLIBC_2.2.5";
#endif
    lookup_function *found = (lookup_function *)dlvsym(RTLD_NEXT, "dlsym", version);
    CHECK(found != NULL);
    return found;
}

/* The file that an address lies in, without its directories; "nothing" for NULL. */
static inline const char *object_of(const void *address)
{
    Dl_info info;
    if (address == NULL)
        return "nothing";
    if (dladdr(address, &info) == 0 || info.dli_fname == NULL)
        return "no object";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash != NULL ? slash + 1 : info.dli_fname;
}

static inline bool is_ours(const void *address)
{
    return strcmp(object_of(address), PRELOAD_OBJECT) == 0;
}

static inline bool is_the_drivers(const void *address)
{
    return strcmp(object_of(address), DRIVER_OBJECT) == 0;
}

static inline void *open_library(const char *path, int mode)
{
    void *library = dlopen(path, mode);
    if (library == NULL)
        FAIL("%s", dlerror());
    return library;
}

/* A function of a library that must have it. */
static inline void *function_of(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL)
        FAIL("%s", dlerror());
    return found;
}

#endif
