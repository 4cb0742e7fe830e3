/*
 * Explains why a run has no report, from what is known of a program that took no memory through the
 * pool.
 */
#ifndef CUDAPOOL_TOOLS_NO_REPORT_H
#define CUDAPOOL_TOOLS_NO_REPORT_H

#include "program.h"

/* Enough for any reason. */
#define NO_REPORT_BYTES 1024

/* Writes one line, without a newline: why no process of this program took memory from the pool, or
 * why that may be. */
void explain_no_report(const char *program, char text[NO_REPORT_BYTES]);

/* Like explain_no_report, for processes that had no figures. Figures survive a process that is
 * killed. Without them, a report may be missing only because of how the process ended. */
void explain_no_report_without_figures(const char *program, const struct program_end *end,
                                       char text[NO_REPORT_BYTES]);

#endif
