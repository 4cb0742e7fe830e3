/*
 * Collecting the reports of all processes of a run, to show them as one.
 *
 * Each process has its figures in a directory that only this user can read and that is gone
 * afterwards, and writes its report there when it ends. Of one that could not, however it ended,
 * the figures are the report; of one that is still running, they are the report so far, and what it
 * does later nobody collects. What cannot be collected costs the report, never the program.
 *
 * The program is not sampled while it runs: its own slow paths keep the history
 * (core/figures/figures.h), which costs no process that wakes up beside it, and where they don't
 * run nothing changes.
 */
#ifndef CUDAPOOL_TOOLS_COLLECTION_H
#define CUDAPOOL_TOOLS_COLLECTION_H

#include <stdbool.h>
#include <time.h>

#include "core/figures/report.h"
#include "core/settings/config.h"
#include "program.h"
#include "report_formats.h"
#include "run_directory.h"

struct collection {
    bool wanted;
    enum report_format format;
    bool each;                      /* each process has a file of its own. As JSON it writes it, and
                                       what it couldn't is written for it */
    char *file;                     /* where to, with %h, %r and %%; NULL: stderr */
    bool has_figures;               /* processes have figures. Set by collection_start */
    struct run_directory directory; /* set by collection_start */
    bool all;                       /* of the table's rows and columns, on a terminal as well */
    struct figures_settings kept;   /* where figures stay, if that is asked for */
    char *environment[2];           /* what collection_start has changed there, as it was before */
    struct timespec started; /* before the program was; of the clock that files are stamped by */
};

/* Reports of a run, which own what they point to. */
struct reports {
    struct report *reports;
    size_t count;
};

/* Makes the directory, and has processes keep their figures and write their reports there, as far
 * as these settings allow. False after a complaint. */
bool collection_start(struct collection *collection, const struct figures_settings *figures);

/* Undoes collection_start, where there is nothing to collect after all. */
void collection_abandon(struct collection *collection);

/* Reads the reports and removes the directory. The caller owes a reports_free. */
struct reports collection_take(struct collection *collection, const struct program_end *end);
void reports_free(struct reports *reports);

/* Takes the reports, and writes what was asked for; where no process reported, why that may be.
 * program: what was run. */
void collection_deliver(struct collection *collection, const char *program,
                        const struct program_end *end);

/* The strings that it owns, whatever became of it. */
void collection_free(struct collection *collection);

#endif
