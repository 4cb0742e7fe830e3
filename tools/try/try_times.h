/*
 * Decides whether a program is faster with the pool, and tells what its memory cost.
 */
#ifndef CUDAPOOL_TOOLS_TRY_TIMES_H
#define CUDAPOOL_TOOLS_TRY_TIMES_H

#include "try_judgement.h"
#include "try_runs.h"

enum try_speed {
    SPEED_NOT_COMPARED, /* runs ended in different ways */
    SPEED_NO_DIFFERENCE,
    SPEED_UNCLEAR,
    SPEED_FASTER,
    SPEED_SLOWER,
};

/* In seconds of wall time. */
struct times {
    double median, least, most;
    double spread; /* (most - least) / 2 / median */
};

struct comparison_of_times {
    enum try_speed speed;
    struct times without, with;
    double factor; /* without.median / with.median */
    double spread; /* of the factor: without.spread + with.spread */
};

void try_compare_times(const struct try *try, const struct judgement *judgement,
                       struct comparison_of_times *times);

/* Returns the counters of the run with the pool switched off. */
struct report_counters try_counted(const struct try *try);

/* Returns the counters of the last run with the pool. The peaks are the largest of all runs with
 * the pool. */
struct report_counters try_served(const struct try *try);

#endif
