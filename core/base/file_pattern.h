/*
 * Expands patterns of file names. A setting gives one pattern to all processes of a job. In the
 * pattern, %p stands for the process ID, %h for the host and %r for the rank. %% stands for a
 * percent sign.
 *
 * The functions keep no state and take no lock. Any thread may call them.
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
 * not valid, ENAMETOOLONG if the file name needs more than the given number of bytes. */
int file_pattern_expand(const char *pattern, const struct file_pattern_values *values, char *name,
                        size_t bytes);

#endif
