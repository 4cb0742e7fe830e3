/*
 * One run of a program, for `cudapool try`: how long it took, how it ended, what it wrote, and what
 * the pool, where there was one, says of it.
 *
 * A trial owns its report and its last words (trial_free).
 */
#ifndef CUDAPOOL_TOOLS_TRIAL_H
#define CUDAPOOL_TOOLS_TRIAL_H

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>

#include "core/settings/config.h"
#include "program.h"
#include "summary.h"
#include "trial_output.h"

/* What all runs share. */
struct trial_setup {
    char **program;      /* and its arguments */
    FILE *input;         /* what each run reads; NULL: nothing */
    sigset_t mask;       /* the signals that it has blocked */
    struct outputs kept; /* what the runs wrote to stdout */

    /* Called four times a second while a run is under way; NULL: never. */
    void (*look)(void *context);
    void *context;

    int ended_by; /* the signal that asked this command to end; 0: none did */
};

struct trial {
    struct program_end end;
    double seconds; /* of wall time */
    struct kept_output output;
    char *last_words; /* the end of its stderr, where it failed; NULL: none */
    struct summary summary;
};

/* Reads this command's stdin, unless that is a terminal. 0, or the exit status after a complaint.
 */
int trial_read_input(struct trial_setup *setup);

/* Runs the program, with the pool under these settings (NULL: without the pool). 0, or the exit
 * status after a complaint. Where a signal asked this command to end meanwhile, the program has
 * ended early, and setup->ended_by says so. */
int trial_run(struct trial_setup *setup, const struct settings *settings, struct trial *trial);

/* Whether the program could not be run, as a shell says it. Then the complaint is among its last
 * words. */
bool trial_was_not_run(const struct trial *trial);

/* Whether it ended otherwise than with status 0. */
bool trial_failed(const struct trial *trial);

/* Whether both ended in the same way. */
bool trials_ended_alike(const struct trial *one, const struct trial *other);

void trial_free(struct trial *trial);

#endif
