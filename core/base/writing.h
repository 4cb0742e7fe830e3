/*
 * Writes to files that belong to someone else's program, without making it wait or ending it.
 *
 * A pipe may be full for ever, and a terminal may be stopped by its user. A background process that
 * writes to its terminal is stopped (SIGTTOU). A write past a limit (SIGXFSZ), or to a pipe that
 * nobody reads (SIGPIPE), ends a process. A write here ends at a given time at the latest, and
 * raises no signal. It leaves the file's own state alone: everybody who has the file open, other
 * processes as well, sees whether it is non-blocking.
 *
 * Takes no memory of malloc's and no lock, so a process that ends inside a signal handler may use
 * it.
 */
#ifndef CUDAPOOL_CORE_WRITING_H
#define CUDAPOOL_CORE_WRITING_H

#include <stddef.h>
#include <stdint.h>

/* Returns the time of the monotonic clock nanoseconds from now. */
uint64_t writing_deadline(uint64_t nanoseconds);

/* How long a command waits for somebody to read a pipe or a terminal, in nanoseconds. A program
 * that has ended must not seem to run because of its report. */
#define WRITING_PATIENCE (UINT64_C(5) * 1000 * 1000 * 1000)

/* Writes the text, in one call if the file takes it whole, so that processes which share the file
 * do not mix their lines. Returns 0, or -1 with errno; EAGAIN: the file had no room until the
 * deadline (of writing_deadline). A pipe has received whole lines then. */
int write_until(int fd, const char *text, size_t bytes, uint64_t deadline);

/* Like strerror, for the errors of opening and writing files. strerror may look for a translation,
 * which takes memory and a lock. */
const char *error_text(int error, char buffer[32]);

#endif
