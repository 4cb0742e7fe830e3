/*
 * The names of replaced functions, and lookups of names that do not find this object's own exports.
 */
#ifndef CUDAPOOL_SHIM_LOOKUP_H
#define CUDAPOOL_SHIM_LOOKUP_H

#include <stdbool.h>

#include "shim.h"

/* A number for every replaced function, in the order of entry_points.def. */
enum entry {
#define ENTRY_POINT(name, parameters) ENTRY_##name,
#include "entry_points.def"
#undef ENTRY_POINT
    ENTRY_COUNT,
    ENTRY_NONE = -1
};

/* Marks every function that a lookup runs through, because a lookup may come before a sanitizer is
 * ready. The Makefile compiles these files without the sanitizer calls that no attribute turns
 * off. */
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

/* The entry with this name, or ENTRY_NONE. Makes no libc call and is not instrumented. */
HIDDEN int entry_of_name(const char *name);

/* glibc's own dlsym, for this object's own lookups, which no other preload shall answer. Never
 * NULL. */
HIDDEN dlsym_function *glibc_dlsym(void);

/* The dlsym that the program would have called without this object: glibc's, or that of a preload
 * which comes later. Never NULL. */
HIDDEN dlsym_function *next_dlsym(void);

/* The first definition of name in the objects after this one: dlsym(RTLD_NEXT, name), asked by this
 * object itself. NULL, and an error for dlerror, where there is none. */
HIDDEN void *find_behind_us(const char *name);

#endif
