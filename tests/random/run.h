/*
 * Running random programs on the driver: step by step, in threads that take turns, or (where the
 * profile says so) each thread its own steps, freely beside the others.
 */
#ifndef TESTS_RANDOM_RUN_H
#define TESTS_RANDOM_RUN_H

#include "program.h"
#include "trace.h"

/* Once in a process, before anything else. */
void run_open(const struct profile *profile);

/* Runs the steps, each in its thread; stops at the first difference, and returns how many steps
 * were run (where threads run freely: up to the end of the program in which the difference was). */
size_t run_steps(const struct step *steps, size_t count);

#endif
