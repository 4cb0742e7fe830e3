/*
 * Running someone else's program, as a shell would.
 */
#ifndef CUDAPOOL_TOOLS_PROGRAM_H
#define CUDAPOOL_TOOLS_PROGRAM_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

/* What became of a program. */
struct program_end {
    pid_t program; /* 0: it was not started */
    int signal;    /* that ended it; 0: none */
    int status;    /* that it exited with, where no signal ended it */
};

/* A program that runs apart: in a process group of its own, with files of its own. Signals to this
 * process go to that group, those of a terminal as well. */
struct program_apart {
    int in, out, error;          /* descriptors */
    const sigset_t *mask;        /* the signals that it has blocked */
    void (*look)(void *context); /* called four times a second while it runs; NULL: never */
    void *context;
    int ended_by; /* set: the signal that asked this process to end meanwhile; 0: none did */
};

/* Becomes the program that argv names. Returns only where it cannot be run, after a complaint: the
 * exit status. */
int program_become(char **argv);

/* Runs it and waits for its end; signals sent to this process meanwhile go to the program, which is
 * killed where this process is. Where the program stops, so does this process, until it is to
 * continue. Signals stay blocked here afterwards, so that what is still to be said is said. False
 * with errno, and nothing has changed, where there can be no process for it. *exit_status: its own,
 * 128 and the number of the signal that ended it, or that of a program that cannot be run.
 *
 * With apart, a signal that asks this process to end (SIGHUP, SIGINT, SIGQUIT, SIGTERM; unless it
 * is ignored) ends the program's whole group: by that signal first, by SIGKILL after ten seconds or
 * where another such signal comes, and what is left of the group when the program has gone. */
bool program_run(char **argv, struct program_apart *apart, struct program_end *end,
                 int *exit_status);

/* Blocks those signals, so that one that comes between two programs is the second one's; and takes
 * one that has come since: its number, or 0. */
void program_block_ends(sigset_t *before);
int program_take_end(void);

#endif
