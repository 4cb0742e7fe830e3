/*
 * The runs of a program that `cudapool try` has made (try.c), without the pool and with it, for
 * what is told of them: whether the program does the same (try_judgement.h) and whether it is
 * faster (try_times.h), in words (try_words.h) and as JSON (try_json.h).
 */
#ifndef CUDAPOOL_TOOLS_TRY_RUNS_H
#define CUDAPOOL_TOOLS_TRY_RUNS_H

#include "core/settings/config.h"
#include "trial.h"

/* A difference that runs with the pool show is confirmed by so many pairs. */
#define PAIRS_TO_CONFIRM 5

struct
try {
    struct trial_setup setup;
    struct settings settings;
    int runs;    /* of each kind, that were asked for */
    int warm_up; /* runs before, which nobody looks at */

    struct trial counting;        /* the pool switched off, counting */
    struct trial *without, *with; /* `done` of each are there */
    int done;
    struct trial *waiting; /* with device.free_synchronizes; waiting_done of them are there */
    int waiting_done;
};

#endif
