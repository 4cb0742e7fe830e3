/*
 * The descriptor 2 that the process was started with, for the few words that the pool says.
 *
 * A program that is started without one, or closes it, gets the number 2 for the next file that it
 * opens, and must not find our words there. So it is remembered which file 2 was when this object
 * was loaded: one fstat, which is all that happens in a process before its first use of CUDA, since
 * afterwards the number may already be another file's. Nothing is written unless 2 still is that
 * file; and no write there waits, stops or ends the process (core/base/writing.h).
 */
#ifndef CUDAPOOL_SHIM_STANDARD_ERROR_H
#define CUDAPOOL_SHIM_STANDARD_ERROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shim.h"

/* Whether descriptor 2 is what it was at the start. Any thread. */
HIDDEN bool standard_error_is_ours(void);

/* Writes the text there, or nothing where that is another file now. 0, or -1 with errno; deadline:
 * see write_until. Any thread. */
HIDDEN int standard_error_write(const char *text, size_t bytes, uint64_t deadline);

/* Writes "cudapool: MESSAGE" and a newline there, in one piece. Any thread. */
HIDDEN void say(const char *message);

/* The same, no later than at the deadline. */
HIDDEN void say_until(const char *message, uint64_t deadline);

#endif
