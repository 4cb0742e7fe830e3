/*
 * Runs another program as a shell would: passes signals on to it, and returns its exit status.
 */
#ifndef CUDAPOOL_TOOLS_PROGRAM_H
#define CUDAPOOL_TOOLS_PROGRAM_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

/* How a program ended. */
struct program_end {
    pid_t program; /* 0: it was not started */
    int signal;    /* that ended it; 0: none */
    int status;    /* that it exited with, if no signal ended it */
};

/* For a program that runs apart: in a process group of its own, with its own stdin, stdout and
 * stderr. Signals to this process go to that whole group, including those that a terminal sends. */
struct program_apart {
    int in, out, error;          /* descriptors */
    const sigset_t *mask;        /* the signals that the program has blocked */
    void (*look)(void *context); /* called 4 times a second meanwhile; NULL: never */
    void *context;
    int ended_by; /* set by program_run: the signal that asked this process to end; 0: none */
};

/* Replaces this process with the program that argv names. Returns only if the program cannot be
 * run: the exit status, after a complaint. */
int program_become(char **argv);

/* Runs the program and waits for its end. Signals sent to this process meanwhile go to the program.
 * If this process is killed, the program is killed too. If the program stops, this process stops,
 * until it is continued. Signals stay blocked here afterwards, so that messages still to be printed
 * are printed. Returns false with errno, and nothing has changed, if no process can be made.
 * *exit_status: the program's own, or 128 and the number of the signal that ended it, or
 * EXIT_CANNOT_RUN or EXIT_NOT_FOUND.
 *
 * With apart, the signals SIGHUP, SIGINT, SIGQUIT and SIGTERM, unless ignored, ask this process to
 * end. Such a signal ends the program's whole group. The group first receives the same signal. It
 * receives SIGKILL after ten seconds, or if another such signal arrives. What is left of the group
 * when the program has ended is killed as well. */
bool program_run(char **argv, struct program_apart *apart, struct program_end *end,
                 int *exit_status);

/* program_block_ends blocks the signals that ask to end (see program_run), so that one that arrives
 * between two programs is not lost. program_take_end takes one that has arrived since: its number,
 * or 0. */
void program_block_ends(sigset_t *before);
int program_take_end(void);

#endif
