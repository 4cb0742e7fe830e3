/*
 * Where the output of a command goes: stdout, or a file that appears under its name only when it is
 * complete.
 */
#ifndef CUDAPOOL_TOOLS_OUTPUT_H
#define CUDAPOOL_TOOLS_OUTPUT_H

#include <stddef.h>
#include <stdio.h>

#include "sink.h"

struct output {
    const char *path; /* NULL: stdout */
    FILE *out;
    struct sink sink; /* of what is no regular file; otherwise its descriptor is -1 */
    char *text;       /* of a regular file */
    size_t bytes;
};

/* Opens it; path may be NULL, or - for stdout. A path that is there and no regular file, such as a
 * pipe or /dev/null, is written to directly. 0, or the exit status after a complaint. The structure
 * stays where it is until output_close. */
int output_open(struct output *output, const char *path);

/* Closes it, and writes nothing to a regular file where status is not 0. The exit status: the given
 * one, or that of a failed write after a complaint. */
int output_close(struct output *output, int status);

#endif
