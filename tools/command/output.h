/*
 * The output of a command: it is written to stdout, or to a file that appears under its name only
 * when it is complete.
 */
#ifndef CUDAPOOL_TOOLS_OUTPUT_H
#define CUDAPOOL_TOOLS_OUTPUT_H

#include <stddef.h>
#include <stdio.h>

#include "sink.h"

struct output {
    const char *path; /* NULL: stdout */
    FILE *out;
    struct sink sink; /* for a path that is not a regular file; otherwise its fd is -1 */
    char *text;       /* the text of a regular file, until output_close writes it */
    size_t bytes;
};

/* Opens the output; path may be NULL, or - for stdout. A path that exists and is not a regular
 * file, such as a pipe or /dev/null, is written to directly. Returns 0, or the exit status after a
 * complaint. The structure must not move until output_close. */
int output_open(struct output *output, const char *path);

/* Closes the output. If status is not 0, writes nothing to a regular file. Returns the given exit
 * status, or EXIT_FAILURE if that is 0 and a write failed, after a complaint. */
int output_close(struct output *output, int status);

#endif
