/*
 * What every file of the shim includes. Nothing in core/ includes a file of this directory.
 *
 * Each file uses those before it: lookup.c looks names up, real_driver.c knows the process's
 * driver, start.c starts the pool. The hooks_*.c files use these. entries.c leads the program's
 * calls and lookups to the hooks, and dlsym.c is the dlsym that the program calls.
 */
#ifndef CUDAPOOL_SHIM_SHIM_H
#define CUDAPOOL_SHIM_SHIM_H

#define HIDDEN __attribute__((visibility("hidden")))

#endif
