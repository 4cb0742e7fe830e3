/*
 * A progress bar on stderr (progress.h).
 */
#include "progress.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BAR_CELLS    40
#define REDRAW_AFTER 0.1 /* seconds */

void progress_start(struct progress *progress)
{
    progress->shown = isatty(STDERR_FILENO) == 1;
    progress->drawn = false;
    clock_gettime(CLOCK_MONOTONIC, &progress->last);
}

static bool is_due(struct progress *progress)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    double passed = (double)(now.tv_sec - progress->last.tv_sec) +
                    (double)(now.tv_nsec - progress->last.tv_nsec) / 1e9;
    if (passed < REDRAW_AFTER)
        return false;
    progress->last = now;
    return true;
}

void progress_step(struct progress *progress, size_t done, size_t all)
{
    char bar[BAR_CELLS + 1];
    size_t filled = all == 0 ? 0 : done * BAR_CELLS / all;

    if (!progress->shown || !is_due(progress))
        return;
    memset(bar, ' ', BAR_CELLS);
    memset(bar, '=', filled);
    bar[BAR_CELLS] = '\0';
    fprintf(stderr, "\r[%s] %zu of %zu reports", bar, done, all);
    fflush(stderr);
    progress->drawn = true;
}

void progress_end(struct progress *progress)
{
    if (progress->drawn)
        fputs("\r\033[K", stderr);
    progress->drawn = false;
}
