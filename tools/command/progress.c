/*
 * A line on stderr that shows how far a long task has come (progress.h).
 */
#include "progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BAR_CELLS    40
#define REDRAW_AFTER 0.1 /* seconds */

void progress_start(struct progress *progress)
{
    const char *kind = getenv("TERM");

    progress->shown = isatty(STDERR_FILENO) == 1 && kind != NULL && strcmp(kind, "dumb") != 0;
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

static bool is_in_the_background(void)
{
    pid_t foreground = tcgetpgrp(STDERR_FILENO);

    return foreground > 0 && foreground != getpgrp();
}

void progress_say(struct progress *progress, const char *line)
{
    if (!progress->shown || !is_due(progress) || is_in_the_background())
        return;
    fprintf(stderr, "\r%s\033[K", line);
    fflush(stderr);
    progress->drawn = true;
}

void progress_step(struct progress *progress, size_t done, size_t all)
{
    char bar[BAR_CELLS + 1], line[2 * BAR_CELLS + 64];

    memset(bar, ' ', BAR_CELLS);
    memset(bar, '=', all == 0 ? 0 : done * BAR_CELLS / all);
    bar[BAR_CELLS] = '\0';
    snprintf(line, sizeof(line), "[%s] %zu of %zu reports", bar, done, all);
    progress_say(progress, line);
}

void progress_end(struct progress *progress)
{
    if (progress->drawn)
        fputs("\r\033[K", stderr);
    progress->drawn = false;
}
