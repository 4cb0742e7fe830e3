/*
 * Collecting the reports of all processes of a run, to show them as one.
 *
 * Each process writes its report to a directory that only this user can read and that is gone
 * afterwards. What cannot be collected costs the report, never the program.
 */
#ifndef CUDAPOOL_TOOLS_COLLECTION_H
#define CUDAPOOL_TOOLS_COLLECTION_H

#include <limits.h>
#include <stdbool.h>

struct collection {
    bool wanted;
    bool as_json;             /* rather than a table */
    char *file;               /* where to, with %h, %r and %%; NULL: stderr */
    char directory[PATH_MAX]; /* set by collection_start */
};

/* Makes the directory, and has processes write their reports there. False after a complaint. */
bool collection_start(struct collection *collection);

/* Reads the reports, removes the directory, and writes what was asked for, or nothing where no
 * process reported. */
void collection_deliver(struct collection *collection);

#endif
