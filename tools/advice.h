/*
 * Advice on the settings, in plain words, out of what a run did.
 *
 * Each rule looks at one kind of memory under the settings that were in force, and says what it
 * found, in numbers; where another value of a setting may help, it proposes that. Advice is a
 * proposal to try: whether it helps, `cudapool report --compare` of two runs tells.
 */
#ifndef CUDAPOOL_TOOLS_ADVICE_H
#define CUDAPOOL_TOOLS_ADVICE_H

#include <stdio.h>

#include "advice_case.h"
#include "summary.h"

/* More is never found. */
#define ADVICE_MOST 48

/* Fills advice, most helpful first. How many. */
size_t find_advice(const struct summary *summary, struct advice advice[ADVICE_MOST]);

/* What there is to say where no rule found anything: that it went well, or that it can't be told.
 */
void explain_no_advice(const struct summary *summary, char text[ADVICE_TEXT_BYTES]);

/* A line for each, below a table; nothing where there is none. */
void print_advice(const struct summary *summary, FILE *out);

#endif
