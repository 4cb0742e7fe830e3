/*
 * Programs that were built with a sanitizer.
 *
 * Its run time library, where it is a shared one, must come first of all libraries, also before
 * those in LD_PRELOAD, or it ends the program at its start ("ASan runtime does not come first in
 * initial library list").
 */
#ifndef CUDAPOOL_TOOLS_SANITIZER_H
#define CUDAPOOL_TOOLS_SANITIZER_H

#include <stddef.h>

/* The run time library that the program needs, by its path, in memory that the caller frees. NULL
 * where it needs none, cannot be read, or is not a program of this machine's. program: as execvp
 * finds it. */
char *sanitizer_of_program(const char *program);

/* The length of what a list for LD_PRELOAD begins with: run time libraries of sanitizers, and what
 * separates them from the rest. */
size_t sanitizers_in_list(const char *list);

#endif
