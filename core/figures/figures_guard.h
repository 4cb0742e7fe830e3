/*
 * What happens when somebody truncates the file that a process counts in.
 *
 * Whoever touches a mapped page that its file has no longer gets a SIGBUS, which ends the process;
 * and no file that others can open by name can be kept from being truncated. So while there is such
 * a file, this handles SIGBUS: it puts ordinary memory in the file's place, and the process goes
 * on. What was counted is gone then, so it makes no report any more: figures_guard_has_replaced
 * says so. (The pool decides nothing by those counters that could be wrong without them: where
 * blocks are, and which are whose, is in its own memory.)
 *
 * Of any other SIGBUS nobody notices the handler: it takes itself away, puts back what was there
 * before, and has the signal come again, with all that the kernel said with it. A program that
 * installs a handler of its own later replaces this one.
 *
 * For one arena in a process: the first one. Any thread; no lock.
 */
#ifndef CUDAPOOL_CORE_FIGURES_GUARD_H
#define CUDAPOOL_CORE_FIGURES_GUARD_H

#include <stdbool.h>
#include <stddef.h>

/* Guards a file's mapping of so many bytes. */
void figures_guard(void *memory, size_t bytes);

/* Puts memory of the process's own in place of the guarded mapping, zeroed; all references to the
 * file end. False where there is none, or the kernel refuses. Async-signal-safe. */
bool figures_guard_replace(const void *memory);

/* Whether that has happened. */
bool figures_guard_has_replaced(const void *memory);

#endif
