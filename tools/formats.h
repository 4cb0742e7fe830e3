/*
 * The formats of `cudapool report`, one to a file. Each prints to out and leaves errors of writing
 * to its caller (finish_output), unless it says otherwise.
 */
#ifndef CUDAPOOL_TOOLS_FORMATS_H
#define CUDAPOOL_TOOLS_FORMATS_H

#include <jansson.h>
#include <stdio.h>

#include "core/base/table.h"
#include "summary.h"

/* The readable table of one process, and advice below it. Takes the report's devices. 0, or -1
 * where memory is short or writing failed. */
int print_report_table(struct report *report, const struct look *look, FILE *out);

/* The readable table of several processes, and advice below it. */
void print_summary_table(const struct summary *summary, const struct look *look, FILE *out);

/* The merged report as JSON, a new reference; NULL where memory is short. */
json_t *summary_to_json(const struct summary *summary);

/* The advice on a run as an array, a new reference; NULL where memory is short. */
json_t *advice_to_json(const struct summary *summary);

/* A JSON value, indented, and a newline. Takes the reference. 0, or -1 where it is NULL or memory
 * is short. */
int print_json(json_t *value, FILE *out);

/* RFC 4180: a line for each bucket. The columns of the process are filled in where a summary is
 * that of one process and per_process is set. */
void print_csv(const struct summary *summaries, size_t count, bool per_process, FILE *out);

/* A field and what follows it, quoted where it must be. */
void print_csv_field(FILE *out, const char *text, const char *end);

/* Counters over time, for Perfetto and chrome://tracing. 0, or -1 where memory is short. */
int print_trace(const struct report *reports, size_t count, FILE *out);

/* The text format of Prometheus; labels for the process as above. */
void print_prometheus(const struct summary *summaries, size_t count, bool per_process, FILE *out);

/* One page that needs nothing else, of one run or of two. 0, or -1 where memory is short. */
int print_html(const struct summary *summary, FILE *out);
int print_comparison_html(const struct summary *a, const struct summary *b, FILE *out);

/* Two runs side by side. 0, or -1 where memory is short. */
int print_comparison_table(const struct summary *a, const struct summary *b,
                           const struct look *look, FILE *out);
json_t *comparison_to_json(const struct summary *a, const struct summary *b);
void print_comparison_csv(const struct summary *a, const struct summary *b, FILE *out);

#endif
