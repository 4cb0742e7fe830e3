/*
 * Why a run has no report: what is known of a program that took no memory through the pool.
 */
#ifndef CUDAPOOL_TOOLS_NO_REPORT_H
#define CUDAPOOL_TOOLS_NO_REPORT_H

#include "program.h"

/* Room for any reason. */
#define NO_REPORT_BYTES 1024

/* One line, without an end, of why no process of this program took memory, or why that may be. */
void explain_no_report(const char *program, char text[NO_REPORT_BYTES]);

/* The same of one whose processes had no figures, which outlive them: there may be no report for
 * that alone. */
void explain_no_report_without_figures(const char *program, const struct program_end *end,
                                       char text[NO_REPORT_BYTES]);

#endif
