/*
 * Finds files by where this command itself lies: in a build directory, or where it was installed.
 */
#ifndef CUDAPOOL_TOOLS_OWN_PATH_H
#define CUDAPOOL_TOOLS_OWN_PATH_H

#include <limits.h>
#include <stdbool.h>

/* Writes the directory of this command, without a slash at the end. False if it cannot be found
 * out. */
bool own_directory(char directory[PATH_MAX]);

/* Writes the full path of an existing file, relative to the directory of this command. False if
 * there is no such file. */
bool own_path(const char *relative, char path[PATH_MAX]);

#endif
