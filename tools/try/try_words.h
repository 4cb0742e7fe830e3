/*
 * Prints the result of `cudapool try`: a table of times and memory, whether the program is faster,
 * whether it does the same, and advice.
 */
#ifndef CUDAPOOL_TOOLS_TRY_WORDS_H
#define CUDAPOOL_TOOLS_TRY_WORDS_H

#include <stdio.h>

#include "try_judgement.h"
#include "try_runs.h"
#include "try_times.h"

/* Prints the result of at least one pair of runs. If the program failed, prints the failure to
 * stderr instead. */
void try_print(const struct try *try, const struct judgement *judgement,
               const struct comparison_of_times *times, FILE *out);

#endif
