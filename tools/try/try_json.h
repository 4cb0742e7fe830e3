/*
 * Writes the JSON of `cudapool try --json`; docs/report.md describes it.
 */
#ifndef CUDAPOOL_TOOLS_TRY_JSON_H
#define CUDAPOOL_TOOLS_TRY_JSON_H

#include <stdio.h>

#include "try_judgement.h"
#include "try_runs.h"
#include "try_times.h"

/* Writes the result to out. judgement and times are NULL if not even one pair of runs is complete.
 * Returns 0. On failure, prints an error message and returns the exit status. */
int try_print_json(const struct try *try, const struct judgement *judgement,
                   const struct comparison_of_times *times, FILE *out);

#endif
