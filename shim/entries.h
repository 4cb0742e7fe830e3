/*
 * The entries: what the program gets when it looks up a replaced function. entries.c says how a
 * program reaches them.
 */
#ifndef CUDAPOOL_SHIM_ENTRIES_H
#define CUDAPOOL_SHIM_ENTRIES_H

#include "shim.h"

/* Answers dlsym for the name of a replaced function. RTLD_NEXT never comes here. */
HIDDEN void *dlsym_of_driver(void *handle, const char *name);

#endif
