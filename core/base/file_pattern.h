/*
 * Names of files that a setting gives for all processes of a job: in a pattern, %p stands for the
 * process's number, %h for its host, %r for its rank and %% for a percent sign.
 *
 * Pure functions of their arguments: any thread, no lock.
 */
#ifndef CUDAPOOL_CORE_FILE_PATTERN_H
#define CUDAPOOL_CORE_FILE_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the escapes stand for in one process. */
struct file_pattern_values {
    int64_t pid;
    const char *host;
    const char *rank; /* empty: 0 */
};

/* True for a pattern that is not empty and in which %p, %h, %r and %% are the only escapes. */
bool file_pattern_is_valid(const char *pattern);

/* Writes the name that the pattern means. A slash in a value becomes an underscore: a host's name
 * must not choose a directory. 0, or -1 with errno: EINVAL for a pattern that is not valid,
 * ENAMETOOLONG where the name does not fit in bytes. */
int file_pattern_expand(const char *pattern, const struct file_pattern_values *values, char *name,
                        size_t bytes);

#endif
