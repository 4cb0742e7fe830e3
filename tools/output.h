/*
 * Where the output of a command goes: stdout, or a file that appears under its name only when it is
 * complete.
 */
#ifndef CUDAPOOL_TOOLS_OUTPUT_H
#define CUDAPOOL_TOOLS_OUTPUT_H

#include <stdio.h>

struct output {
    const char *path; /* NULL: stdout */
    char *name;       /* of the file until then; NULL: it is written directly */
    FILE *out;
};

/* Opens it; path may be NULL, or - for stdout. A path that is there and no regular file, such as a
 * pipe or /dev/null, is written to directly. 0, or the exit status after a complaint. */
int output_open(struct output *output, const char *path);

/* Closes it, and removes what was written where status is not 0. The exit status: the given one, or
 * that of a failed write after a complaint. */
int output_close(struct output *output, int status);

#endif
