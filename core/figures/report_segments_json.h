/*
 * Segments of a device (struct report_segments) as JSON: an object that is there only where blocks
 * were cut out of larger ones.
 *
 * Part of libcudapool_config.so and the command. A document belongs to one thread.
 */
#ifndef CUDAPOOL_CORE_REPORT_SEGMENTS_JSON_H
#define CUDAPOOL_CORE_REPORT_SEGMENTS_JSON_H

#include <jansson.h>

#include "report.h"
#include "report_object_json.h"

/* Adds it to a device's object, if there is anything to tell. 0, or -1 where memory is short. */
int report_add_segments_to_json(json_t *device, const struct report_segments *segments);

/* Reads it from there; it may be missing. 0, or -1 where it is wrong, which has been said. */
int report_read_segments(const struct object *device, struct report_segments *segments);

#endif
