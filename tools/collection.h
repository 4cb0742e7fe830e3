/*
 * Collecting the reports of all processes of a run, to show them as one.
 *
 * Each process has its figures in a directory that only this user can read and that is gone
 * afterwards, and writes its report there when it ends. Of one that could not, however it ended,
 * the figures are the report; of one that is still running, they are the report so far, and what it
 * does later nobody collects. What cannot be collected costs the report, never the program.
 *
 * The program is not sampled while it runs: its own slow paths keep the history (core/figures.h),
 * which costs no process that wakes up beside it, and where they don't run nothing changes.
 */
#ifndef CUDAPOOL_TOOLS_COLLECTION_H
#define CUDAPOOL_TOOLS_COLLECTION_H

#include <limits.h>
#include <stdbool.h>

#include "core/config.h"

struct collection {
    bool wanted;
    bool as_json;                 /* rather than a table */
    bool each;                    /* each process writes a file of its own; what it couldn't is
                                     written for it */
    char *file;                   /* where to, with %h, %r and %%; NULL: stderr */
    char directory[PATH_MAX];     /* set by collection_start */
    bool all;                     /* of the table's rows and columns, on a terminal as well */
    struct figures_settings kept; /* where figures stay, if that is asked for */
};

/* Makes the directory, and has processes keep their figures and write their reports there, as far
 * as these settings allow. False after a complaint. */
bool collection_start(struct collection *collection, const struct figures_settings *figures);

/* Reads the reports, removes the directory, and writes what was asked for, or nothing where no
 * process reported. */
void collection_deliver(struct collection *collection);

#endif
