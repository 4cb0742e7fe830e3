/*
 * From counters to a report: what the records of figures say, bucket by bucket. Those of the same
 * size, in all contexts or streams of a device, become one row.
 *
 * For a pool's own figures when the process ends, and for a file of them that has been checked.
 * Nothing is locked: what another thread is counting meanwhile is counted or not.
 */
#ifndef CUDAPOOL_CORE_FIGURES_REPORT_H
#define CUDAPOOL_CORE_FIGURES_REPORT_H

#include "figures.h"
#include "report.h"

/* Fills the devices of a report (the caller has filled process and settings); started: on the
 * monotonic clock, when the pool was. 0, or -1 with errno and a report without devices. */
int figures_report(struct figures_walk walk, uint64_t started, struct report *report);

/* The 16 bytes as reports have them: GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx. */
void report_write_uuid(const unsigned char *b, char *out, size_t size);

#endif
