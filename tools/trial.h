/*
 * One run of a program, for `cudapool try`: how long it took, how it ended, what it wrote, and what
 * the pool, where there was one, says of it.
 *
 * A trial owns its files and its report (trial_free).
 */
#ifndef CUDAPOOL_TOOLS_TRIAL_H
#define CUDAPOOL_TOOLS_TRIAL_H

#include <stdbool.h>
#include <stdio.h>

#include "core/settings/config.h"
#include "program.h"
#include "summary.h"

/* Every run gets the same: what this command was given, or nothing where that is a terminal. */
struct trial_input {
    FILE *copy; /* NULL: nothing */
};

struct trial {
    FILE *out, *error; /* what it wrote, from the start */
    struct program_end end;
    double seconds; /* of wall time */
    bool has_report;
    struct summary summary;
};

/* 0, or the exit status after a complaint. */
int trial_read_input(struct trial_input *input);

/* Runs the program, with the pool under these settings (NULL: without the pool). 0, or the exit
 * status after a complaint: the program could not be run. Signals are as they were before. */
int trial_run(char **argv, const struct trial_input *input, const struct settings *settings,
              struct trial *trial);

/* Whether both ended in the same way. */
bool trials_ended_alike(const struct trial *one, const struct trial *other);

/* Where the outputs of two runs differ first: a line of each, cut to what a terminal shows. A line
 * in which `one` and `again`, which ran in the same way, differ, tells times and the like: there
 * numbers don't count; where `again` is NULL, in no line. False where nothing differs. */
#define TRIAL_LINE_BYTES 160
struct trial_difference {
    size_t line;
    bool is_there[2];
    char text[2][TRIAL_LINE_BYTES];
};
bool trials_differ(const struct trial *one, const struct trial *again, const struct trial *other,
                   struct trial_difference *difference);

void trial_free(struct trial *trial);

#endif
