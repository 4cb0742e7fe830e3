/*
 * The formats of `cudapool report`, one to a source file. Each function prints to out. Unless it
 * says otherwise, it leaves write errors to its caller (finish_output).
 */
#ifndef CUDAPOOL_TOOLS_FORMATS_H
#define CUDAPOOL_TOOLS_FORMATS_H

#include <jansson.h>
#include <stdio.h>

#include "core/base/table.h"
#include "tools/summary/summary.h"

/* Prints the readable table of one process, with advice below it. Takes the report's devices away
 * from it. Returns 0, or -1 if memory is short or writing failed. */
int print_report_table(struct report *report, const struct look *look, FILE *out);

/* Prints the readable table of several processes, with advice below it. */
void print_summary_table(const struct summary *summary, const struct look *look, FILE *out);

/* Returns the merged report as JSON, a new reference; NULL if memory is short. */
json_t *summary_to_json(const struct summary *summary);

/* Returns the advice on a run as an array, a new reference; NULL if memory is short. */
json_t *advice_to_json(const struct summary *summary);

/* Prints a JSON value, indented, and a newline. Takes the reference. Returns 0, or -1 if value is
 * NULL or memory is short. */
int print_json(json_t *value, FILE *out);

/* Prints CSV (RFC 4180), a line for each bucket. If per_process is set, each summary is that of one
 * process, and the process's columns are filled in. */
void print_csv(const struct summary *summaries, size_t count, bool per_process, FILE *out);

/* Prints a CSV field, quoted if necessary, and then end. */
void print_csv_field(FILE *out, const char *text, const char *end);

/* Prints counters over time, for Perfetto and chrome://tracing. Returns 0, or -1 if memory is
 * short. */
int print_trace(const struct report *reports, size_t count, FILE *out);

/* Prints the text format of Prometheus. If per_process is set, each summary is that of one process,
 * and the labels name it. */
void print_prometheus(const struct summary *summaries, size_t count, bool per_process, FILE *out);

/* Print one self-contained HTML page, of one run or of two. Return 0, or -1 if memory is short. */
int print_html(const struct summary *summary, FILE *out);
int print_comparison_html(const struct summary *a, const struct summary *b, FILE *out);

/* Print two runs side by side, or return them as JSON (a new reference). print_comparison_table
 * returns 0, or -1 if memory is short. */
int print_comparison_table(const struct summary *a, const struct summary *b,
                           const struct look *look, FILE *out);
json_t *comparison_to_json(const struct summary *a, const struct summary *b);
void print_comparison_csv(const struct summary *a, const struct summary *b, FILE *out);

#endif
