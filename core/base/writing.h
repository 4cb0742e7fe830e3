/*
 * Writes to files that belong to someone else's program. The program neither waits nor ends because
 * of a write.
 *
 * A pipe may be full for ever, and a terminal may be stopped by its user. A background process that
 * writes to its terminal is stopped (SIGTTOU). A write past a limit (SIGXFSZ), or to a pipe that
 * nobody reads (SIGPIPE), ends a process. A write here ends at a given time at the latest, and
 * raises no signal. It does not make the file non-blocking: every process that shares the open file
 * would see that.
 *
 * These functions do not call malloc and take no lock. So a process that ends inside a signal
 * handler may call them.
 */
#ifndef CUDAPOOL_CORE_WRITING_H
#define CUDAPOOL_CORE_WRITING_H

#include <stddef.h>
#include <stdint.h>

/* Returns a deadline: the present time of the monotonic clock plus nanoseconds. */
uint64_t writing_deadline(uint64_t nanoseconds);

/* How long a command waits for somebody to read a pipe or a terminal, in nanoseconds. A program
 * that has ended must not seem to run on while its report waits for a reader. */
#define WRITING_PATIENCE (UINT64_C(5) * 1000 * 1000 * 1000)

/* Writes the text. If the file takes the whole text, one call writes it, so that processes which
 * share the file do not mix their lines. Returns 0, or -1 with errno. EAGAIN: the file had no room
 * until the deadline (of writing_deadline). After EAGAIN, a pipe has received only whole lines. */
int write_until(int fd, const char *text, size_t bytes, uint64_t deadline);

/* Describes an error of opening or writing a file. It replaces strerror, which may look for a
 * translation and then takes memory and a lock. */
const char *error_text(int error, char buffer[32]);

#endif
