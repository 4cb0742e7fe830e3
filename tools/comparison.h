/*
 * Compares two runs, A and B: pairs of the same bucket in both, and the settings that differ. The
 * table, the HTML page, JSON and CSV (formats.h) are all made from these.
 */
#ifndef CUDAPOOL_TOOLS_COMPARISON_H
#define CUDAPOOL_TOOLS_COMPARISON_H

#include <jansson.h>
#include <stdbool.h>

#include "summary.h"

/* One bucket, or the totals of a kind (is_total), in both runs. Counters that a run lacks are all
 * zero, never NULL. */
struct pair {
    const char *kind;
    bool is_total;
    uint64_t bytes;
    const struct report_counters *a, *b;
    bool shown;
};

/* Whether the pair is worth a row. Frees that waited may count in a bucket without requests: a free
 * that stands for blocks of several sizes counts in the bucket of requests that are not cached. */
static inline bool pair_says_something(const struct pair *pair)
{
    return (pair->a->requests | pair->b->requests | pair->a->waits.frees | pair->b->waits.frees) !=
           0;
}

/* Whether one run has a command that the other has not, and the text that says so. */
bool commands_differ(const struct summary *a, const struct summary *b);
#define COMMANDS_DIFFER "A and B ran different commands: what differs below may be for that alone"

typedef void pair_visitor(const struct pair *pair, void *context);

/* Visits the buckets of each kind in both runs. The kind's total follows its buckets. */
void visit_pairs(const struct summary *a, const struct summary *b, pair_visitor *visit,
                 void *context);

/* Returns an array of {"setting": path, "a": value, "b": value}, a new reference. Settings of where
 * reports and figures go are left out (setting_matters). */
json_t *settings_that_differ(const struct summary *a, const struct summary *b);

#endif
