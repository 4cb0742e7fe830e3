/*
 * The counters of a report: tables of their names for all code that writes, reads or merges them,
 * made of report_counts.def, and counters as JSON.
 *
 * The tables are constant, so any thread may use them. A document belongs to one thread.
 */
#ifndef CUDAPOOL_CORE_REPORT_COUNTS_JSON_H
#define CUDAPOOL_CORE_REPORT_COUNTS_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "report.h"
#include "report_object_json.h"

/* How the counters of several processes become one; see report_counts.def. */
enum report_merge { MERGE_NONE, MERGE_SUM, MERGE_NOW, MERGE_PEAK, MERGE_LARGEST };

/* A counter, and its place in a struct. */
struct report_count {
    const char *group; /* the object that holds it; "": none */
    const char *name;
    size_t offset;
    enum report_merge merged;
    bool later;       /* older reports lack it; it is then 0 */
    const char *says; /* a sentence for users */
};

/* All counters of a struct. */
struct report_counts {
    const struct report_count *counts;
    size_t length;
};

extern const struct report_counts report_bucket_counts;    /* struct report_counters */
extern const struct report_counts report_sample_counts;    /* struct report_sample */
extern const struct report_counts report_neighbour_counts; /* struct report_neighbours */
extern const struct report_counts report_unpooled_counts;  /* struct report_unpooled */
extern const struct report_counts report_segment_counts;   /* struct report_segments */
extern const struct report_counts report_device_counts;    /* of struct report_device */
extern const struct report_counts report_graph_counts;     /* of struct report_graphs */

/* The counter in a struct that has it. */
uint64_t report_count_value(const struct report_count *count, const void *counters);

/* Merges each counter of from into that of into. Sums stop at UINT64_MAX. A PEAK becomes the sum.
 */
void report_counts_merge(const struct report_counts *counts, void *into, const void *from);

/* A number as reports spell it. A new reference; NULL where memory is short. */
json_t *report_count_to_json(uint64_t count);

/* Adds the counters to the object. 0, or -1 where memory is short. */
int report_add_counts_to_json(json_t *object, const struct report_counts *counts,
                              const void *counters);

/* Adds an object of the counters under the parent's key. 0, or -1 where memory is short. */
int report_add_object_of_counts(json_t *parent, const char *key, const struct report_counts *counts,
                                const void *counters);

/* Refuses keys that are no counters of the group. Outside of the groups, the groups' names are
 * allowed, too, and the names in also, which ends with NULL. */
int report_refuse_unknown_counts(const struct object *object, const struct report_counts *counts,
                                 const char *group, const char *const *also);

/* Reads the counters of the object. 0, or -1 with the error written. */
int report_read_counts(const struct object *object, const struct report_counts *counts,
                       void *counters);

/* Reads the counters of the object under the parent's key, which may be missing. 0, or -1 with the
 * error written. */
int report_read_object_of_counts(const struct object *parent, const char *key,
                                 const struct report_counts *counts, void *counters);

#endif
