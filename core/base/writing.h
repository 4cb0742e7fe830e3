/*
 * Writing to files that belong to someone else's program, which neither waits nor dies for it.
 *
 * A pipe may be full for ever, a terminal stopped by its user, a process that writes to one stopped
 * for being in the background (SIGTTOU), and a write past a limit or to a pipe that nobody reads
 * ends a process (SIGXFSZ, SIGPIPE). Here a write ends at a given time at the latest, and brings no
 * signal. The file's own state is left alone: whether it is non-blocking is seen by everybody who
 * has it open, other processes as well.
 *
 * Takes no memory of malloc's and no lock: also for a process that ends inside a signal handler.
 */
#ifndef CUDAPOOL_CORE_WRITING_H
#define CUDAPOOL_CORE_WRITING_H

#include <stddef.h>
#include <stdint.h>

/* The monotonic clock so many nanoseconds from now. */
uint64_t writing_deadline(uint64_t nanoseconds);

/* So long a command waits for somebody to read a pipe or a terminal: nanoseconds. A program that
 * has ended must not seem to run because of its report. */
#define WRITING_PATIENCE (UINT64_C(5) * 1000 * 1000 * 1000)

/* Writes the text, in one call where the file takes it whole, so that processes which share the
 * file do not mix their lines. 0, or -1 with errno: EAGAIN where the file had no room until the
 * deadline (of writing_deadline). A pipe then has whole lines. */
int write_until(int fd, const char *text, size_t bytes, uint64_t deadline);

/* strerror for what opening and writing files may bring. The other one may look for a translation,
 * which takes memory and a lock. */
const char *error_text(int error, char buffer[32]);

#endif
