/*
 * Makes a struct report from figures, the stored counters of a pool (figures.h). The counters of
 * all contexts and streams of a device are joined: one struct report_bucket for each kind of memory
 * and block size.
 *
 * The pool reports its own figures when the process ends. Tools report a figures file, which they
 * have validated before. Takes no lock: a change that another thread makes meanwhile may or may not
 * be included.
 */
#ifndef CUDAPOOL_CORE_FIGURES_REPORT_H
#define CUDAPOOL_CORE_FIGURES_REPORT_H

#include "figures.h"
#include "report.h"

/* Fills the devices, the housekeeper and the graphs of a report; the caller has filled process and
 * settings. started: when the process started, in nanoseconds of the monotonic clock. Returns 0, or
 * -1 with errno where memory is short. After -1 the report has no devices. */
int figures_report(struct figures_walk walk, uint64_t started, struct report *report);

/* Writes the 16 bytes of a device's UUID as reports spell them:
 * GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx. */
void report_write_uuid(const unsigned char *b, char *out, size_t size);

#endif
