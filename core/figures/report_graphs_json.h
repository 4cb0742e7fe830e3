/*
 * What a report says of memory that graphs keep, as JSON. It is there where captures may allocate.
 */
#ifndef CUDAPOOL_CORE_REPORT_GRAPHS_JSON_H
#define CUDAPOOL_CORE_REPORT_GRAPHS_JSON_H

#include <jansson.h>

#include "report.h"
#include "report_object_json.h"

/* Adds it to the report's object, if there is anything to tell. Not 0: no memory. */
int report_add_graphs(json_t *root, const struct report_graphs *graphs);

/* Fills graphs from the member of the report, if it is there; -1 where it is not as it should be.
 */
int report_read_graphs(const struct object *root, struct report_graphs *graphs);

#endif
