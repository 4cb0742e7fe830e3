/*
 * The formats in which `cudapool report` and `cudapool run` show reports. This file has their
 * names, the file name suffixes that select them, and the function that prints the reports of one
 * run.
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

/* Sets the format that the suffix of a file's name selects. Returns false if the suffix selects
 * none. */
bool format_of_file(const char *name, enum report_format *format);
#define FORMAT_SUFFIXES ".txt, .json, .csv, .html, .prom and .trace"

/* Prints the reports of one run in the format. count is at least 1. A table and a page show the
 * sums of all processes; the table of a single process shows that process. Samples for Prometheus
 * are sums only if two reports have the same pid. Returns 0, or -1 if memory is short. */
int print_run_as(enum report_format format, const struct report *reports, size_t count,
                 const struct look *look, FILE *out);

#endif
