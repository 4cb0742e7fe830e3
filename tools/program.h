/*
 * Running someone else's program, as a shell would.
 */
#ifndef CUDAPOOL_TOOLS_PROGRAM_H
#define CUDAPOOL_TOOLS_PROGRAM_H

#include <stdbool.h>
#include <sys/types.h>

/* What became of a program. */
struct program_end {
    pid_t program; /* 0: it was not started */
    int signal;    /* that ended it; 0: none */
    int status;    /* that it exited with, where no signal ended it */
};

/* Where a program reads from and writes to, as descriptors. */
struct program_files {
    int in, out, error;
};

/* Becomes the program that argv names. Returns only where it cannot be run, after a complaint: the
 * exit status. */
int program_become(char **argv);

/* Runs it, with these files in place of this process's own (NULL: with those), and waits for its
 * end; signals sent to this process meanwhile go to the program, which is killed where this process
 * is. Where the program stops, so does this process, until it is to continue. They stay blocked
 * here afterwards, so that what is still to be said is said. False with errno, and nothing has
 * changed, where there can be no process for it. *exit_status: its own, 128 and the number of the
 * signal that ended it, or that of a program that cannot be run. */
bool program_run(char **argv, const struct program_files *files, struct program_end *end,
                 int *exit_status);

#endif
