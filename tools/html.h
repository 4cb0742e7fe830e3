/*
 * The elements that the page of a report is made of (report_html.c, html_history.c).
 */
#ifndef CUDAPOOL_TOOLS_HTML_H
#define CUDAPOOL_TOOLS_HTML_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "summary.h"

/* A page up to its body's first element, and its end. */
void open_page(FILE *out, const char *title);
void close_page(FILE *out);

/* How many processes a page's head names. */
#define PROCESSES_NAMED 8u

/* Text from outside. */
void put_text(FILE *out, const char *text);

/* A table up to its first row: so many columns of text, then those of numbers; NULL ends them. */
void put_head(FILE *out, const char *caption, size_t texts, const char *const *cells);
void put_head_cell(FILE *out, const char *text, bool is_number);

/* What is wide scrolls, also by keyboard. */
void open_scroller(FILE *out, const char *label);
void close_scroller(FILE *out);

/* Where a number stands in the report: "device/1048576". */
struct place {
    char text[64];
};

/* The kind's name is text from outside. */
struct place place_of_kind(const struct report_kind *kind, const char *part);

/* A number of the report: readable, and as it is in an attribute. */
void put_number(FILE *out, const char *element, const struct place *place, const char *name,
                uint64_t value, const char *readable);
void put_count(FILE *out, const struct place *place, const char *name, uint64_t value);
void put_bytes(FILE *out, const struct place *place, const char *name, uint64_t value);
void put_time(FILE *out, const struct place *place, const char *name, uint64_t value);

/* A bar in a cell of a table, and a part of it; the numbers beside it say the same. */
void open_bar(FILE *out);
void put_part(FILE *out, const char *class, uint64_t value, uint64_t whole);
void close_bar(FILE *out);

/* What the classes of bars and areas mean; NULL ends both lists. */
void put_legend(FILE *out, const char *const *classes, const char *const *names);

/* What processes on a device gave each other, where they did, and limits. */
void put_neighbours(FILE *out, const struct summary *summary);

/* The curves over time, of the devices that have any. */
void put_history(FILE *out, const struct summary *summary);

#endif
