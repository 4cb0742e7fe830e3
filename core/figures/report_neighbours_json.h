/*
 * Other processes, limits and the housekeeper in a report, as JSON. Functions that write return a
 * new reference, or NULL where memory is short. Functions that read return 0, or -1 with the error
 * written. No state: any thread.
 */
#ifndef CUDAPOOL_CORE_REPORT_NEIGHBOURS_JSON_H
#define CUDAPOOL_CORE_REPORT_NEIGHBOURS_JSON_H

#include <jansson.h>

#include "report.h"
#include "report_counts_json.h"
#include "report_object_json.h"

/* Whether any counter is not 0. */
bool report_has_neighbours(const struct report_neighbours *neighbours);

json_t *report_housekeeper_to_json(const struct report_housekeeper *housekeeper);

/* Adds the limits that are in force, if any, under the key limits. 0 or -1. */
int report_add_limits_to_json(json_t *object, const struct device_limits *limits);

/* Each of these reads one key of the object. The key may be missing. */
int report_read_limits(const struct object *object, struct device_limits *limits);
int report_read_housekeeper(const struct object *object, struct report_housekeeper *housekeeper);

#endif
