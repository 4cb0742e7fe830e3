/*
 * Compares two runs, A and B. A pair holds the counters of one bucket in A and in B. The table, the
 * HTML page, JSON and CSV (formats.h) show the pairs and the settings that differ.
 */
#ifndef CUDAPOOL_TOOLS_COMPARISON_H
#define CUDAPOOL_TOOLS_COMPARISON_H

#include <jansson.h>
#include <stdbool.h>

#include "tools/summary/summary.h"

/* One bucket, or the totals of a kind (is_total), in both runs. a and b are never NULL:
 * where a run lacks the bucket or kind, they point to counters that are zero. */
struct pair {
    const char *kind;
    bool is_total;
    uint64_t bytes;
    const struct report_counters *a, *b;
    bool shown;
};

/* Whether the pair is worth a row. A bucket without requests may have frees that waited for the
 * GPU. One free may count for blocks of several sizes. It counts in the bucket of requests that are
 * not cached. */
static inline bool pair_says_something(const struct pair *pair)
{
    return (pair->a->requests | pair->b->requests | pair->a->waits.frees | pair->b->waits.frees) !=
           0;
}

/* Whether one run has a command that the other has not, and the text that says so. */
bool commands_differ(const struct summary *a, const struct summary *b);
#define COMMANDS_DIFFER "A and B ran different commands: what differs below may be for that alone"

typedef void pair_visitor(const struct pair *pair, void *context);

/* Visits each bucket of A or B, kind by kind. The kind's total follows its buckets. */
void visit_pairs(const struct summary *a, const struct summary *b, pair_visitor *visit,
                 void *context);

/* Returns an array of {"setting": path, "a": value, "b": value}, a new reference. The array
 * lacks settings that only say where reports and figures are written (setting_matters). */
json_t *settings_that_differ(const struct summary *a, const struct summary *b);

#endif
