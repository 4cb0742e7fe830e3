/*
 * Whether a program is faster with the pool, and what memory cost it.
 */
#ifndef CUDAPOOL_TOOLS_TRY_TIMES_H
#define CUDAPOOL_TOOLS_TRY_TIMES_H

#include "try_judgement.h"
#include "try_runs.h"

enum try_speed {
    SPEED_NOT_COMPARED, /* runs did not end alike */
    SPEED_NO_DIFFERENCE,
    SPEED_UNCLEAR,
    SPEED_FASTER,
    SPEED_SLOWER,
};

/* In seconds of wall time. */
struct times {
    double median, least, most;
    double spread; /* half of what lies between the least and the most, as a part of the median */
};

struct comparison_of_times {
    enum try_speed speed;
    struct times without, with;
    double factor; /* so many times as fast */
    double spread; /* of the factor */
};

void try_compare_times(const struct try *try, const struct judgement *judgement,
                       struct comparison_of_times *times);

/* What the driver took, without the pool. */
struct report_counters try_counted(const struct try *try);

/* Of the last run with the pool; its peaks are the most of all. */
struct report_counters try_served(const struct try *try);

#endif
