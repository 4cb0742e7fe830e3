/*
 * One run of a program for `cudapool try`. A trial has the run's wall time, its exit status, its
 * output, and the pool's reports if the pool was used.
 *
 * A trial owns its summary and its last words (trial_free).
 */
#ifndef CUDAPOOL_TOOLS_TRIAL_H
#define CUDAPOOL_TOOLS_TRIAL_H

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>

#include "core/settings/config.h"
#include "tools/command/program.h"
#include "tools/summary/summary.h"
#include "trial_output.h"

/* What all runs share. */
struct trial_setup {
    char **program;      /* and its arguments */
    FILE *input;         /* what each run reads from stdin; NULL: nothing */
    sigset_t mask;       /* the signals that the program starts with blocked */
    struct outputs kept; /* what the runs wrote to stdout */

    /* Called four times a second while a run is under way; NULL: never. */
    void (*look)(void *context);
    void *context;

    int ended_by; /* the signal that asked this command to end; 0: none did */
};

struct trial {
    struct program_end end;
    double seconds; /* of wall time */
    struct output_span output;
    char *last_words; /* the end of its stderr, if it failed; NULL: none */
    struct summary summary;
};

/* Reads this command's stdin, unless it is a terminal. Returns 0, or the exit status after a
 * complaint. */
int trial_read_input(struct trial_setup *setup);

/* Runs the program with the pool under these settings, or without the pool if settings is NULL.
 * Returns 0, or the exit status after a complaint. If a signal asks this command to end meanwhile,
 * the program ends early and setup->ended_by is set. */
int trial_run(struct trial_setup *setup, const struct settings *settings, struct trial *trial);

/* Returns whether the program could not be run, as a shell reports it. The complaint is then in the
 * trial's last words. */
bool trial_was_not_run(const struct trial *trial);

/* Returns whether a signal ended the program, or its exit status was not 0. */
bool trial_failed(const struct trial *trial);

/* Returns whether both ended by the same signal or with the same status. */
bool trials_ended_alike(const struct trial *one, const struct trial *other);

void trial_free(struct trial *trial);

#endif
