/*
 * Histories of several processes as one (summary.c).
 */
#ifndef CUDAPOOL_TOOLS_TIMELINE_H
#define CUDAPOOL_TOOLS_TIMELINE_H

#include "core/figures/report.h"

/* Moves the device's samples to so many nanoseconds later. */
void timeline_shift(struct report_device *device, uint64_t nanoseconds);

/* Adds another process's samples of the device to these, and frees them. What either held counts
 * until its last sample, what it counted for good. No more than HISTORY_SAMPLES are left. 0, or -1
 * where memory is short. */
int timeline_join(struct report_device *into, struct report_device *from);

#endif
