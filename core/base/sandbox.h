/*
 * Tells whether the process has restricted its system calls (seccomp) since the pool started.
 *
 * A system call that the process has not made before may end it then. So all code that opens a file
 * or makes a thread after the start asks here first, and does without if the answer is yes.
 *
 * Any thread, no lock. errno stays as it was.
 */
#ifndef CUDAPOOL_CORE_SANDBOX_H
#define CUDAPOOL_CORE_SANDBOX_H

#include <stdbool.h>

/* Notes the restrictions as the pool starts. Those that hold now were meant for the pool, too. */
void sandbox_note_start(void);

/* Returns whether the calling thread is under restrictions that came later. Makes one or two system
 * calls, which sandbox_note_start has made, too. In a container that has a filter and the
 * no_new_privs bit from the start, a later filter cannot be noticed. */
bool sandbox_was_entered(void);

#endif
