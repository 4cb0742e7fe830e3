/*
 * Expands patterns of file names. A setting gives one pattern to all processes of a job: in it, %p
 * stands for the process's number, %h for its host, %r for its rank and %% for a percent sign.
 *
 * Pure functions of their arguments: any thread, no lock.
 */
#ifndef CUDAPOOL_CORE_FILE_PATTERN_H
#define CUDAPOOL_CORE_FILE_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The values that the escapes stand for in one process. */
struct file_pattern_values {
    int64_t pid;
    const char *host;
    const char *rank; /* empty: %r stands for 0 */
};

/* Returns true if the pattern is not empty and has no escapes but %p, %h, %r and %%. */
bool file_pattern_is_valid(const char *pattern);

/* Writes the file name that the pattern stands for. A slash in a value becomes an underscore: a
 * host's name must not choose a directory. Returns 0, or -1 with errno: EINVAL if the pattern is
 * not valid, ENAMETOOLONG if the name does not fit in bytes. */
int file_pattern_expand(const char *pattern, const struct file_pattern_values *values, char *name,
                        size_t bytes);

#endif
