/*
 * Merges the histories of several processes on one device (summary.c).
 */
#ifndef CUDAPOOL_TOOLS_TIMELINE_H
#define CUDAPOOL_TOOLS_TIMELINE_H

#include "core/figures/report.h"

/* Makes all times of the device's samples later by so many nanoseconds. */
void timeline_shift(struct report_device *device, uint64_t nanoseconds);

/* Adds another process's samples of the device to those of into, and frees the samples of from.
 * What either process held counts until its last sample. Its hits, misses and exchanged bytes stay
 * in the sums afterwards. At most HISTORY_SAMPLES are left. Returns 0, or -1 if memory is short. */
int timeline_join(struct report_device *into, struct report_device *from);

#endif
