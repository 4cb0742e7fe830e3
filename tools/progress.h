/*
 * A progress bar on stderr, for what takes a while. Nothing is written where stderr is no terminal,
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

/* Takes the bar off the screen: before an error, and at the end. */
void progress_end(struct progress *progress);

#endif
