/*
 * Running random programs on the driver, step by step, in threads that take turns.
 */
#ifndef TESTS_RANDOM_RUN_H
#define TESTS_RANDOM_RUN_H

#include "program.h"
#include "trace.h"

/* Once in a process, before anything else. */
void run_open(const struct profile *profile);

/* Runs the steps in order, each in its thread; stops at the first difference, and returns how many
 * steps were run. */
size_t run_steps(const struct step *steps, size_t count);

#endif
