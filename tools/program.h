/*
 * Running someone else's program, as a shell would.
 */
#ifndef CUDAPOOL_TOOLS_PROGRAM_H
#define CUDAPOOL_TOOLS_PROGRAM_H

#include <stdbool.h>

/* Becomes the program that argv names. Returns only where it cannot be run, after a complaint: the
 * exit status. */
int program_become(char **argv);

/* Runs it and waits for its end; signals sent to this process meanwhile go to the program, which is
 * killed where this process is. Where the program stops, so does this process, until it is to
 * continue. False with errno, and nothing has changed, where there can be no process for it.
 * *exit_status: its own, 128 and the number of the signal that ended it, or that of a program that
 * cannot be run. */
bool program_run(char **argv, int *exit_status);

#endif
