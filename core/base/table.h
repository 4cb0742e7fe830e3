/*
 * Tables of text: columns as wide as they need to be and, on a terminal, no wider than the
 * terminal.
 *
 * A table goes over its rows twice: to measure them and to print them. If look_is_short, the table
 * leaves out columns that have a value of spare. Those in which every cell is zero go first. The
 * ones that matter least go next, until the rest fits.
 *
 * Part of the preload object: libc only, no memory of its own. A table belongs to one thread.
 */
#ifndef CUDAPOOL_CORE_TABLE_H
#define CUDAPOOL_CORE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* How output looks, by where it goes. */
struct look {
    int width;        /* the terminal's columns; 0: no terminal, all is printed, line by line */
    bool colour;      /* the terminal has colours, and its user does not mind them */
    bool all;         /* show all columns and rows, on a terminal as well */
    const char *more; /* the option that shows all: "--all" */
};

/* For output that goes to a file or to another program. */
extern const struct look look_of_files;

/* Of a list that may be long, a short look shows at most this many rows. */
#define LOOK_ROWS 10u

static inline bool look_is_short(const struct look *look)
{
    return look->width > 0 && !look->all;
}

enum text_style { STYLE_PLAIN, STYLE_BOLD, STYLE_GOOD, STYLE_FAIR, STYLE_BAD };

/* Return the sequence that begins the style, and the one that ends it; "" if the look has no
 * colour. */
const char *style_begin(const struct look *look, enum text_style style);
const char *style_end(const struct look *look, enum text_style style);

struct table_column {
    const char *heading;
    unsigned spare; /* 0: never left out. Of the others, the column with the largest value is left
                       out first where width is short */
};

#define TABLE_COLUMNS_MOST 24

struct table {
    const struct table_column *columns;
    int count;
    size_t cell_bytes; /* of each cell; the cells of a row are contiguous */
    const struct look *look;
    int beside; /* columns of the terminal that the rest of the line takes */
    int widths[TABLE_COLUMNS_MOST];
    bool filled[TABLE_COLUMNS_MOST]; /* some cell is not zero */
    bool shown[TABLE_COLUMNS_MOST];
};

void table_begin(struct table *table, const struct table_column *columns, int count,
                 size_t cell_bytes, const struct look *look);

/* Measures a row that will be printed. */
void table_measure(struct table *table, const char *cells);

/* Chooses the columns that are shown, once all rows have been measured. */
void table_fit(struct table *table);

/* Lists the headings of the columns that are left out for width and not because they are all zero,
 * as "clean, queried". Returns false if there are none. */
#define TABLE_NAMES_BYTES 256
bool table_left_out(const struct table *table, char *names, size_t bytes);

/* Prints a line that names the columns left out for width, and the option that shows them. */
void table_print_left_out(const struct table *table, FILE *out);

/* Returns the columns of the terminal that the table takes. */
int table_width(const struct table *table);

/* Print a row, and the headings; neither prints an end of line. styles: of each cell; NULL: all
 * plain. */
void table_print(const struct table *table, const char *cells, const enum text_style *styles,
                 FILE *out);
void table_print_headings(const struct table *table, FILE *out);

/* Returns the columns that text takes on a terminal: its characters, without sequences that style
 * them. */
int text_width(const char *text);

/* Prints text from outside in at most width columns, with an ellipsis if it does not fit. */
void print_cut_off(const char *text, int width, FILE *out);

/* Prints the text, and breaks lines that are too wide for the look at spaces. */
void print_folded(const char *text, const struct look *look, FILE *out);

#endif
