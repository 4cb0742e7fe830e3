/*
 * A line on stderr that shows how far a long task has come. Nothing is written if stderr is not a
 * terminal or cannot clear a line, or while this process is in the background. A task that ends
 * within a tenth of a second shows nothing.
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

/* Shows a line of the caller's in place of the bar. */
void progress_say(struct progress *progress, const char *line);

/* Clears the line. To be called before an error message, and at the end. */
void progress_end(struct progress *progress);

#endif
