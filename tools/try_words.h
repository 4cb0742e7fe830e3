/*
 * What `cudapool try` says: a table of times and memory, whether the program is faster, whether it
 * does the same, and advice.
 */
#ifndef CUDAPOOL_TOOLS_TRY_WORDS_H
#define CUDAPOOL_TOOLS_TRY_WORDS_H

#include <stdio.h>

#include "try_judgement.h"
#include "try_runs.h"
#include "try_times.h"

/* Of at least one pair. A program that failed is told of on stderr. */
void try_print(const struct try *try, const struct judgement *judgement,
               const struct comparison_of_times *times, FILE *out);

#endif
