/*
 * The report as a readable table, and the parts of it that other tables use, too.
 *
 * Takes no memory and no lock; a report belongs to one thread.
 */
#ifndef CUDAPOOL_CORE_REPORT_TABLE_H
#define CUDAPOOL_CORE_REPORT_TABLE_H

#include <stdio.h>

#include "core/base/readable.h"
#include "core/base/table.h"
#include "report.h"

/* Prints the table to out and flushes it. report_print_table prints the whole table, as for a file.
 * report_print_as prints what the look asks for, in lines that are still to be folded. 0, or -1
 * with errno where writing failed. */
int report_print_table(const struct report *report, FILE *out);
int report_print_as(const struct report *report, const struct look *look, FILE *out);

/* Parts of the table, for tables of several processes: a kind's line and buckets; the graphs'
 * lines; the last line, with the times. report_print_text prints text from a file on one line, and
 * cuts it off. */
void report_print_kind(FILE *out, const struct report_kind *kind, const struct look *look);
void report_print_graphs(const struct report_graphs *graphs, FILE *out);
void report_print_times(FILE *out, const struct report_counters *totals);
void report_print_text(FILE *out, const char *text);

/* The share of the requests that hit, such as "93.5%"; "-" without requests. "100.0%" means that
 * nothing missed. */
void readable_hit_rate(const struct report_counters *counters, char cell[READABLE_BYTES]);

/* The style that shows how good the hit rate is. */
enum text_style report_style_of_hits(const struct report_counters *counters);

#endif
