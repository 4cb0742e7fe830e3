/*
 * Finds the sanitizer's run time library that a program needs.
 *
 * If this library is shared, it must be the first of all libraries, also before those in
 * LD_PRELOAD. Otherwise it ends the program at its start ("ASan runtime does not come first in
 * initial library list").
 */
#ifndef CUDAPOOL_TOOLS_SANITIZER_H
#define CUDAPOOL_TOOLS_SANITIZER_H

#include <stddef.h>

/* Returns the path of the run time library that the program needs; the caller frees it. Returns
 * NULL if the program needs none, cannot be read, or is not built for this machine. program is
 * searched for as by execvp. */
char *sanitizer_of_program(const char *program);

/* Returns the length of the sanitizer libraries at the start of a list for LD_PRELOAD, with the
 * separators after them. */
size_t sanitizers_in_list(const char *list);

#endif
