/*
 * What is where this command is: in a build, or where it was installed.
 */
#ifndef CUDAPOOL_TOOLS_OWN_PATH_H
#define CUDAPOOL_TOOLS_OWN_PATH_H

#include <limits.h>
#include <stdbool.h>

/* The directory of this command, without a slash at the end. False where it cannot be told. */
bool own_directory(char directory[PATH_MAX]);

/* The full path of a file that there is, relative to that directory. */
bool own_path(const char *relative, char path[PATH_MAX]);

#endif
