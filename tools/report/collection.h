/*
 * Collects the reports of all processes of a run, to show them as one.
 *
 * Each process stores its figures in a directory that only this user can read, and writes its
 * report there when it ends. The directory is removed after the run. If a process could not write
 * its report, however it ended, the collection makes the report from the figures. For a process
 * that is still running, the figures are the report so far; what the process does later is not
 * collected. A report that cannot be collected is lost, but the program is not affected.
 *
 * The program is not sampled while it runs. Its own slow paths record the history
 * (core/figures/figures.h). So no process wakes up beside the program, and while no slow path runs,
 * nothing changes.
 */
#ifndef CUDAPOOL_TOOLS_COLLECTION_H
#define CUDAPOOL_TOOLS_COLLECTION_H

#include <stdbool.h>
#include <time.h>

#include "core/figures/report.h"
#include "core/settings/config.h"
#include "report_formats.h"
#include "tools/command/program.h"
#include "tools/summary/run_directory.h"

struct collection {
    bool wanted;
    enum report_format format;
    bool each;        /* one file for each process. As JSON, each process writes its own file; the
                         collection writes those that processes could not */
    char *file;       /* the file to write, with %h, %r and %%; NULL: stderr */
    bool has_figures; /* the processes store figures; set by collection_start */
    struct run_directory directory; /* set by collection_start */
    bool all;                       /* all of the table's rows and columns, on a terminal too */
    struct figures_settings kept;   /* where figures stay, if settings ask for it */
    char *environment[2];           /* the variables before collection_start; NULL: unset */
    struct timespec started;        /* when collecting started, on the clock of file times */
};

/* The reports of a run. They own what they point to. */
struct reports {
    struct report *reports;
    size_t count;
};

/* Makes the directory, and sets the environment so that processes store their figures and write
 * their reports there, if these settings allow it. False after a complaint. */
bool collection_start(struct collection *collection, const struct figures_settings *figures);

/* Undoes collection_start if nothing will be collected after all. If a file was asked for, a
 * process of the program then writes it itself. */
void collection_abandon(struct collection *collection);

/* Reads the reports and removes the directory. The caller frees the result with reports_free. */
struct reports collection_take(struct collection *collection, const struct program_end *end);
void reports_free(struct reports *reports);

/* Reads the reports and writes what was asked for. If no process reported, explains why that may
 * be. program: what was run. */
void collection_deliver(struct collection *collection, const char *program,
                        const struct program_end *end);

/* Frees the strings that the collection owns, in whatever state it is. */
void collection_free(struct collection *collection);

#endif
