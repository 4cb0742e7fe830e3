/*
 * Segments of a device (struct report_segments) as JSON. The object is present only where blocks
 * were cut out of segments.
 *
 * Part of libcudapool_config.so and the command. A document belongs to one thread.
 */
#ifndef CUDAPOOL_CORE_REPORT_SEGMENTS_JSON_H
#define CUDAPOOL_CORE_REPORT_SEGMENTS_JSON_H

#include <jansson.h>

#include "report.h"
#include "report_object_json.h"

/* Adds the segments to a device's object, if blocks were cut. 0, or -1 where memory is short. */
int report_add_segments_to_json(json_t *device, const struct report_segments *segments);

/* Reads the segments of a device's object, which may be missing. 0, or -1 with the error
 * written. */
int report_read_segments(const struct object *device, struct report_segments *segments);

#endif
