/*
 * Properties of the terminal that the command's output goes to: its width, its colours, and whether
 * text can be placed freely.
 */
#ifndef CUDAPOOL_TOOLS_TERMINAL_H
#define CUDAPOOL_TOOLS_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

#include "core/base/table.h"

bool is_terminal(FILE *out);

/* Returns whether text can be placed anywhere on the terminal. Returns false for a dumb or unknown
 * terminal, and for any other file. */
bool terminal_is_drawn_on(FILE *out);

/* Return how tables look on this output: no wider than the terminal, and coloured if it has colours
 * and NO_COLOR is not set (https://no-color.org). */
struct look terminal_look(FILE *out, bool all);
struct look terminal_look_of(int fd, bool all);

/* Folds lines that are too wide for the terminal (print_folded). Text between folding_begin and
 * folding_end is written to the stream that folding_begin returns. This stream is out itself if
 * nothing is to be folded or memory is short. */
struct folding {
    const struct look *look;
    FILE *out;    /* where the folded lines are written */
    FILE *memory; /* where text is collected until then; NULL: no folding */
    char *text;
    size_t bytes;
};

FILE *folding_begin(struct folding *folding, const struct look *look, FILE *out);
void folding_end(struct folding *folding);

#endif
