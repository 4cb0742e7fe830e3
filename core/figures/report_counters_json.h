/*
 * The counters of a report: one table of their names for all code that writes or reads them, and
 * the spelling of a number. All of it is constant, so any thread may use it.
 */
#ifndef CUDAPOOL_CORE_REPORT_COUNTERS_JSON_H
#define CUDAPOOL_CORE_REPORT_COUNTERS_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "report.h"

/* A counter, and its place in a report. */
struct report_counter {
    const char *group; /* the object that holds it; "": the bucket's own */
    const char *name;
    size_t offset; /* in struct report_counters */
    bool newer;    /* older reports lack it; it is then 0 */
};

/* The number of counters; struct report_counters has no other members. */
#define REPORT_COUNTERS (sizeof(struct report_counters) / sizeof(uint64_t))

extern const struct report_counter report_counter_table[];
extern const size_t report_counter_table_length;

uint64_t *report_counter_field(const struct report_counter *counter,
                               struct report_counters *counters);
uint64_t report_counter_value(const struct report_counter *counter,
                              const struct report_counters *counters);

/* A number as reports spell it. A new reference; NULL where memory is short. */
json_t *report_count_to_json(uint64_t count);

/* The members of struct report_sample. A history in JSON has an array for each. */
extern const struct report_counter report_column_table[];
extern const size_t report_column_table_length;

#endif
