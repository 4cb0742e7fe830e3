/*
 * Tables of text: columns as wide as they need to be and, on a terminal, no wider than it is.
 *
 * A table goes over its rows twice: to measure them and to print them. Where it has a look with a
 * width, columns in which every cell is zero are left out, and then, until the rest fits, those
 * that matter least. Part of the preload object: libc only, no memory of its own; a table belongs
 * to one thread.
 */
#ifndef CUDAPOOL_CORE_TABLE_H
#define CUDAPOOL_CORE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* How output is to look, by where it goes. */
struct look {
    int width;        /* the terminal's columns; 0: it goes elsewhere, whole and line by line */
    bool colour;      /* the terminal has colours, and its user does not mind them */
    bool all;         /* all columns and rows, on a terminal as well */
    const char *more; /* what shows all: "--all" */
};

/* Output that goes to a file or to another program. */
extern const struct look look_of_files;

/* Rows on a terminal, of those that could be many. */
#define LOOK_ROWS 10u

static inline bool look_is_short(const struct look *look)
{
    return look->width > 0 && !look->all;
}

enum text_style { STYLE_PLAIN, STYLE_BOLD, STYLE_GOOD, STYLE_FAIR, STYLE_BAD };

/* The sequence that begins the style, or ends any; nothing where the look has no colour. */
const char *style_begin(const struct look *look, enum text_style style);
const char *style_end(const struct look *look, enum text_style style);

struct table_column {
    const char *heading;
    unsigned spare; /* 0: never left out; otherwise, where the width is short, the largest first */
};

#define TABLE_COLUMNS_MOST 24

struct table {
    const struct table_column *columns;
    int count;
    size_t cell_bytes; /* of each cell in a row, which stand one after the other */
    const struct look *look;
    int beside; /* columns of the terminal that something else on the line takes */
    int widths[TABLE_COLUMNS_MOST];
    bool filled[TABLE_COLUMNS_MOST]; /* some cell is not zero */
    bool shown[TABLE_COLUMNS_MOST];
};

void table_begin(struct table *table, const struct table_column *columns, int count,
                 size_t cell_bytes, const struct look *look);

/* A row that will be printed. */
void table_measure(struct table *table, const char *cells);

/* Once all have been measured: which columns there are. */
void table_fit(struct table *table);

/* The headings of the columns that are left out for width and not because they are all zero, as
 * "clean, queried". False where there are none. */
#define TABLE_NAMES_BYTES 256
bool table_left_out(const struct table *table, char *names, size_t bytes);

/* Says so in a line of its own, and what shows them. */
void table_print_left_out(const struct table *table, FILE *out);

/* The columns of the terminal that it takes. */
int table_width(const struct table *table);

/* A row, without an end of line, and the headings with one. styles: of each cell; NULL: all plain.
 */
void table_print(const struct table *table, const char *cells, const enum text_style *styles,
                 FILE *out);
void table_print_headings(const struct table *table, FILE *out);

/* The columns that text takes on a terminal: characters, without sequences that style them. */
int text_width(const char *text);

/* Text from outside in at most so many columns, with an ellipsis for what does not fit. */
void print_cut_off(const char *text, int width, FILE *out);

/* Prints lines that are too wide for the look as several, broken at spaces, and the others as they
 * are. */
void print_folded(const char *text, const struct look *look, FILE *out);

#endif
