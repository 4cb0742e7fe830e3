/*
 * A line on stderr that says how far something is that takes a while. Nothing is written where
 * stderr is no terminal, or one that cannot clear a line, where this process is in the background,
 * or where all is done before a person would wonder.
 */
#ifndef CUDAPOOL_TOOLS_PROGRESS_H
#define CUDAPOOL_TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <time.h>

struct progress {
    bool shown, drawn;
    struct timespec last;
};

void progress_start(struct progress *progress);
void progress_step(struct progress *progress, size_t done, size_t all);

/* A line of the caller's in place of the bar. */
void progress_say(struct progress *progress, const char *line);

/* Takes the line off the screen: before an error, and at the end. */
void progress_end(struct progress *progress);

#endif
