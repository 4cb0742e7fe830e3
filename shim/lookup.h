/*
 * Names of replaced functions, and the ways to look a name up without meeting ourselves.
 */
#ifndef CUDAPOOL_SHIM_LOOKUP_H
#define CUDAPOOL_SHIM_LOOKUP_H

#include <stdbool.h>

#include "shim.h"

/* A number for every replaced function, in the order of the list. */
enum entry {
#define ENTRY_POINT(name, parameters) ENTRY_##name,
#include "entry_points.def"
#undef ENTRY_POINT
    ENTRY_COUNT,
    ENTRY_NONE = -1
};

/* Of what a lookup runs through: it may come before a sanitizer is ready to be called. The Makefile
 * compiles these files without the sanitizers' calls that no attribute turns off. */
#ifdef __clang__
#define UNINSTRUMENTED                                                                             \
    __attribute__((no_sanitize("address", "thread", "undefined"), no_stack_protector,              \
                   disable_sanitizer_instrumentation, no_instrument_function))
#else
#define UNINSTRUMENTED                                                                             \
    __attribute__((no_sanitize("address", "thread", "undefined"), no_stack_protector,              \
                   no_instrument_function))
#endif

typedef void *dlsym_function(void *handle, const char *name);

/* The entry that this name is, or ENTRY_NONE. No libc, no instrumentation. */
HIDDEN int entry_of_name(const char *name);

/* glibc's own dlsym: for our own questions, which no other preload shall answer. Never NULL. */
HIDDEN dlsym_function *glibc_dlsym(void);

/* The dlsym that the program would have called without us: glibc's, or that of a preload which
 * comes after ours. Never NULL. */
HIDDEN dlsym_function *next_dlsym(void);

/* The first definition of name in the objects after ours: dlsym(RTLD_NEXT, name) as this object's
 * own question. NULL and an error for dlerror where there is none. */
HIDDEN void *find_behind_us(const char *name);

#endif
