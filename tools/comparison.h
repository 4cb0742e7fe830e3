/*
 * Two runs side by side: what the table, the page and the other formats show of them.
 */
#ifndef CUDAPOOL_TOOLS_COMPARISON_H
#define CUDAPOOL_TOOLS_COMPARISON_H

#include <jansson.h>
#include <stdbool.h>

#include "summary.h"

/* One bucket, or all of a kind (bucket NULL), in both runs; counters are never NULL. */
struct pair {
    const char *kind;
    bool is_total;
    uint64_t bytes;
    const struct report_counters *a, *b;
    bool shown;
};

/* Frees that stand for several sizes count where nothing was asked for. */
static inline bool pair_says_something(const struct pair *pair)
{
    return (pair->a->requests | pair->b->requests | pair->a->waits.frees | pair->b->waits.frees) !=
           0;
}

/* Whether one run has a command that the other has not, and what is said then. */
bool commands_differ(const struct summary *a, const struct summary *b);
#define COMMANDS_DIFFER "A and B ran different commands: what differs below may be for that alone"

typedef void pair_visitor(const struct pair *pair, void *context);

/* Visits the buckets of each kind in both, and its total after them. */
void visit_pairs(const struct summary *a, const struct summary *b, pair_visitor *visit,
                 void *context);

/* An array of {"setting": path, "a": value, "b": value}, a new reference. Where reports and figures
 * went is no difference. */
json_t *settings_that_differ(const struct summary *a, const struct summary *b);

#endif
