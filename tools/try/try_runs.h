/*
 * The runs that `cudapool try` has made of a program (try.c), without the pool and with it.
 * try_judgement.h decides whether the program does the same, and try_times.h whether it is faster.
 * try_words.h tells the results in words, and try_json.h as JSON.
 */
#ifndef CUDAPOOL_TOOLS_TRY_RUNS_H
#define CUDAPOOL_TOOLS_TRY_RUNS_H

#include "core/settings/config.h"
#include "trial.h"

/* If runs with the pool differ from those without, there are this many pairs to confirm it. */
#define PAIRS_TO_CONFIRM 5

struct
try {
    struct trial_setup setup;
    struct settings settings;
    int runs;    /* that were asked for, of each kind */
    int warm_up; /* runs to make before the others, whose results are ignored */

    struct trial counting;        /* the run with the pool switched off but counting */
    struct trial *without, *with; /* `done` of each are complete */
    int done;
    struct trial *waiting; /* with device.free_synchronizes; waiting_done are complete */
    int waiting_done;
};

#endif
