/*
 * Decides whether a program does the same with the pool as without it, from its runs (try_runs.h).
 */
#ifndef CUDAPOOL_TOOLS_TRY_JUDGEMENT_H
#define CUDAPOOL_TOOLS_TRY_JUDGEMENT_H

#include <stdbool.h>

#include "try_runs.h"

enum try_result {
    TRY_SAME,
    TRY_FAILS,               /* every run failed in the same way */
    TRY_DIFFERS_WITH_POOL,   /* runs without the pool agree, and no run with it agrees with them */
    TRY_DIFFERS_FROM_ITSELF, /* any other difference */
};

enum try_waiting { WAITING_NOT_TRIED, WAITING_SAME, WAITING_DIFFERS };

struct judgement {
    enum try_result result;

    /* How runs differ: in how they ended, or in what they wrote. difference is the first difference
     * of two outputs, and one and other are their runs. */
    bool in_end, in_output;
    struct output_difference difference;
    const struct trial *one, *other;

    bool output_varies;          /* outputs differ among the runs without the pool */
    bool only_with_pool;         /* runs without the pool agree, and some with it differ */
    bool off_differs;            /* the run with the pool switched off differs from those without */
    enum try_waiting with_waits; /* whether frees that wait make the runs the same */
};

/* Judges at least one pair of runs. Returns 0, or the exit status after a complaint. */
int try_judge(const struct try *try, struct judgement *judgement);

/* Return whether a run with the pool requested memory from it, and whether a run got memory from
 * it. */
bool try_asked_for_memory(const struct try *try);
bool try_took_memory(const struct try *try);

#endif
