/*
 * What the command's output goes to: how wide it is, and whether it has colours.
 */
#ifndef CUDAPOOL_TOOLS_TERMINAL_H
#define CUDAPOOL_TOOLS_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

#include "core/base/table.h"

bool is_terminal(FILE *out);

/* Whether text can be put anywhere on it: not so on one that is dumb or unknown. */
bool terminal_is_drawn_on(FILE *out);

/* How tables look on it: no wider than it, and in colour where it has any and NO_COLOR is not set
 * (https://no-color.org). */
struct look terminal_look(FILE *out, bool all);
struct look terminal_look_of(int fd, bool all);

/* Where to print what is to be folded (print_folded) on its way to out: that is out itself where
 * nothing is, or memory is short. */
struct folding {
    const struct look *look;
    FILE *out;    /* where the lines go in the end */
    FILE *memory; /* where they are gathered; NULL: nowhere */
    char *text;
    size_t bytes;
};

FILE *folding_begin(struct folding *folding, const struct look *look, FILE *out);
void folding_end(struct folding *folding);

#endif
