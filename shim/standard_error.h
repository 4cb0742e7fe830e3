/*
 * The descriptor 2 that the process was started with, where the pool writes its few messages.
 *
 * A program that is started without descriptor 2, or closes it, gets the number 2 for the next file
 * that it opens. The pool's messages must not end up in that file. So this object records, when it
 * is loaded, which file is open as descriptor 2. This takes one fstat. The pool does nothing else
 * in a process before its first use of CUDA. Any later moment would be too late, because the number
 * may be another file's by then.
 *
 * Nothing is written unless descriptor 2 still is that file. A write never stops or ends the
 * process, and it ends at its deadline at the latest (core/base/writing.h).
 */
#ifndef CUDAPOOL_SHIM_STANDARD_ERROR_H
#define CUDAPOOL_SHIM_STANDARD_ERROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shim.h"

/* Whether descriptor 2 is the file that it was at the start. Any thread. */
HIDDEN bool standard_error_is_ours(void);

/* Writes the text to descriptor 2, or nothing where that is another file now. Returns 0, or -1 with
 * errno. deadline: see write_until. Any thread. */
HIDDEN int standard_error_write(const char *text, size_t bytes, uint64_t deadline);

/* Writes "cudapool: MESSAGE" and a newline to descriptor 2, in one piece. Any thread. */
HIDDEN void say(const char *message);

/* Does what say does, but gives up at the deadline. */
HIDDEN void say_until(const char *message, uint64_t deadline);

#endif
