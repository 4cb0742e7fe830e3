/*
 * The elements that the HTML pages of reports are made of (report_html.c, html_history.c,
 * html_neighbours.c, comparison_html.c).
 */
#ifndef CUDAPOOL_TOOLS_HTML_H
#define CUDAPOOL_TOOLS_HTML_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "tools/summary/summary.h"

/* Open a page up to the first element of its body, and close it. */
void open_page(FILE *out, const char *title);
void close_page(FILE *out);

/* The most processes that a page's head names. */
#define PROCESSES_NAMED 8u

/* Prints text from outside, escaped. */
void put_text(FILE *out, const char *text);

/* Opens a table up to its first row. The first `texts` columns hold text, the rest numbers. NULL
 * ends cells. */
void put_head(FILE *out, const char *caption, size_t texts, const char *const *cells);
void put_head_cell(FILE *out, const char *text, bool is_number);

/* Open and close a box in which a wide table scrolls, by keyboard as well. */
void open_scroller(FILE *out, const char *label);
void close_scroller(FILE *out);

/* Where a number stands in the report: "device/1048576". */
struct place {
    char text[64];
};

/* Returns the place of a part of a kind. The kind's name is text from outside: put_number escapes
 * it. */
struct place place_of_kind(const struct report_kind *kind, const char *part);

/* Print a number of the report: readable as text, and unrounded in an attribute. */
void put_number(FILE *out, const char *element, const struct place *place, const char *name,
                uint64_t value, const char *readable);
void put_count(FILE *out, const struct place *place, const char *name, uint64_t value);
void put_bytes(FILE *out, const struct place *place, const char *name, uint64_t value);
void put_time(FILE *out, const struct place *place, const char *name, uint64_t value);

/* Open a bar in a cell of a table, add a part of it, and close it. The numbers beside a bar say the
 * same. */
void open_bar(FILE *out);
void put_part(FILE *out, const char *class, uint64_t value, uint64_t whole);
void close_bar(FILE *out);

/* Prints what the classes of bars and areas mean. NULL ends both lists. */
void put_legend(FILE *out, const char *const *classes, const char *const *names);

/* Prints what processes on a device released for each other, and the limits, if there are any. */
void put_neighbours(FILE *out, const struct summary *summary);

/* Prints the curves over time of the devices that have a history. */
void put_history(FILE *out, const struct summary *summary);

#endif
