/*
 * Advice in plain words on the settings, derived from what a run did.
 *
 * Each rule (advice_rules.h) examines a run under the settings that were in force, and states its
 * finding in numbers. It examines one kind of memory, or what processes did to each other. Where
 * another value of a setting may help, the rule proposes that value. Advice is only a proposal to
 * try: `cudapool report --compare` of two runs tells whether it helps.
 */
#ifndef CUDAPOOL_TOOLS_ADVICE_H
#define CUDAPOOL_TOOLS_ADVICE_H

#include <stdio.h>

#include "advice_case.h"
#include "tools/summary/summary.h"

/* The most pieces of advice that find_advice returns. */
#define ADVICE_MOST 48

/* Fills advice, the most helpful first. Returns the number of pieces of advice. */
size_t find_advice(const struct summary *summary, struct advice advice[ADVICE_MOST]);

/* Writes what to say if no rule found anything: that the run went well, or that it is too short to
 * tell. */
void explain_no_advice(const struct summary *summary, char text[ADVICE_TEXT_BYTES]);

/* Prints one line for each piece of advice, below a table. Prints nothing if there is no advice. */
void print_advice(const struct summary *summary, FILE *out);

#endif
