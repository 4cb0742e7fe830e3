/*
 * Whether a program does the same with the pool.
 */
#ifndef CUDAPOOL_TOOLS_TRY_JUDGEMENT_H
#define CUDAPOOL_TOOLS_TRY_JUDGEMENT_H

#include <stdbool.h>

#include "try_runs.h"

enum try_result {
    TRY_SAME,
    TRY_FAILS,               /* every run failed in the same way */
    TRY_DIFFERS_WITH_POOL,   /* runs without the pool are alike, and none with it is like them */
    TRY_DIFFERS_FROM_ITSELF, /* anything else */
};

enum try_waiting { WAITING_NOT_TRIED, WAITING_SAME, WAITING_DIFFERS };

struct judgement {
    enum try_result result;

    /* Where runs differ: in how they ended, or in what they wrote; where two runs wrote something
     * else first, and which two. */
    bool in_end, in_output;
    struct output_difference difference;
    const struct trial *one, *other;

    bool output_varies;          /* among the runs without the pool */
    bool only_with_pool;         /* runs without it are alike, and some with it are not */
    bool off_differs;            /* the run with the pool switched off is not like those without */
    enum try_waiting with_waits; /* whether waits in frees make it the same */
};

/* Of at least one pair. 0, or the exit status after a complaint. */
int try_judge(const struct try *try, struct judgement *judgement);

/* Whether a run with the pool asked it for memory, and whether one got some. */
bool try_asked_for_memory(const struct try *try);
bool try_took_memory(const struct try *try);

#endif
