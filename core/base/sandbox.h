/*
 * Whether the process has restricted its system calls (seccomp) since the pool started: one that it
 * has not made before may end it then. So whatever opens a file later than at the start, or makes a
 * thread, asks here first, and goes without.
 *
 * Any thread, no lock. errno stays as it was.
 */
#ifndef CUDAPOOL_CORE_SANDBOX_H
#define CUDAPOOL_CORE_SANDBOX_H

#include <stdbool.h>

/* As the pool starts: what holds now was meant for it, too. */
void sandbox_note_start(void);

/* Of the calling thread. A system call or two, which were made at the start, too. In a container
 * that has a filter and the bit of no new privileges from the start, nobody can tell. */
bool sandbox_was_entered(void);

#endif
