/*
 * The counters of a report: their names, one table for all who write or read them, and how a number
 * is written. Constant: any thread.
 */
#ifndef CUDAPOOL_CORE_REPORT_COUNTERS_JSON_H
#define CUDAPOOL_CORE_REPORT_COUNTERS_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "report.h"

/* A counter, and where it stands in a report. */
struct report_counter {
    const char *group; /* the object it stands in, "" for the bucket's own */
    const char *name;
    size_t offset; /* in struct report_counters */
    bool newer;    /* a report may lack it, as older ones do: then it is 0 */
};

/* Their number: a report has nothing else. */
#define REPORT_COUNTERS (sizeof(struct report_counters) / sizeof(uint64_t))

extern const struct report_counter report_counter_table[];
extern const size_t report_counter_table_length;

uint64_t *report_counter_field(const struct report_counter *counter,
                               struct report_counters *counters);
uint64_t report_counter_value(const struct report_counter *counter,
                              const struct report_counters *counters);

/* A number as reports have it. A new reference; NULL where memory is short. */
json_t *report_count_to_json(uint64_t count);

/* The members of struct report_sample: a history in JSON has an array for each. */
extern const struct report_counter report_column_table[];
extern const size_t report_column_table_length;

#endif
