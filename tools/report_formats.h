/*
 * The formats that reports are shown in: their names, the ends of files' names that say them, and
 * printing the reports of one run.
 */
#ifndef CUDAPOOL_TOOLS_REPORT_FORMATS_H
#define CUDAPOOL_TOOLS_REPORT_FORMATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "core/base/table.h"
#include "core/figures/report.h"

enum report_format { TABLE, JSON, CSV, HTML, PROMETHEUS, TRACE, FORMATS };

extern const char *const format_names[FORMATS];

/* What a file's name ends with says its format. False where the end says none. */
bool format_of_file(const char *name, enum report_format *format);
#define FORMAT_SUFFIXES ".txt, .json, .csv, .html, .prom and .trace"

/* The reports of a run, of at least one process, as `cudapool report` shows them together: of the
 * table, the page and, where processes have one number, the samples for Prometheus they are sums.
 * 0, or -1 where memory is short. */
int print_run_as(enum report_format format, const struct report *reports, size_t count,
                 const struct look *look, FILE *out);

#endif
