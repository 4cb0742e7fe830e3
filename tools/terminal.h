/*
 * What the command's output goes to: how wide it is, and whether it has colours.
 */
#ifndef CUDAPOOL_TOOLS_TERMINAL_H
#define CUDAPOOL_TOOLS_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

#include "core/table.h"

bool is_terminal(FILE *out);

/* How tables look on it: no wider than it, and in colour where it has any and NO_COLOR is not set
 * (https://no-color.org). */
struct look terminal_look(FILE *out, bool all);

#endif
