/*
 * The report's counters of memory that graphs keep, as JSON. The object is present only where
 * captures may allocate.
 */
#ifndef CUDAPOOL_CORE_REPORT_GRAPHS_JSON_H
#define CUDAPOOL_CORE_REPORT_GRAPHS_JSON_H

#include <jansson.h>

#include "report.h"
#include "report_object_json.h"

/* Adds the object to the report's, if captures may allocate. Not 0: no memory. */
int report_add_graphs(json_t *root, const struct report_graphs *graphs);

/* Fills graphs from the report's object, if it is present. -1 where it is malformed. */
int report_read_graphs(const struct object *root, struct report_graphs *graphs);

#endif
