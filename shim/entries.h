/*
 * What the program gets in place of a replaced function.
 */
#ifndef CUDAPOOL_SHIM_ENTRIES_H
#define CUDAPOOL_SHIM_ENTRIES_H

#include "shim.h"

/* What dlsym answers for a replaced function's name, RTLD_NEXT excepted. */
HIDDEN void *dlsym_of_driver(void *handle, const char *name);

#endif
