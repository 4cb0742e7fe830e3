/*
 * What every file of the shim starts from. Nothing in core/ includes what is in this directory.
 *
 * Each file uses those before it: lookup.c looks names up, real_driver.c knows the process's
 * driver, start.c starts the pool, the hooks_*.c files use both, entries.c leads the program's
 * calls and lookups to the hooks, and dlsym.c is its dlsym.
 */
#ifndef CUDAPOOL_SHIM_SHIM_H
#define CUDAPOOL_SHIM_SHIM_H

#define HIDDEN __attribute__((visibility("hidden")))

#endif
