/*
 * What happens when somebody truncates a file that this process has mapped.
 *
 * Whoever touches a mapped page that its file has no longer gets a SIGBUS, which ends the process;
 * and no file that others can open by name can be kept from being truncated. So while there is such
 * a file, this handles SIGBUS: it puts ordinary memory in the file's place, and the process goes
 * on. What stood in the file is gone then, and bus_guard_has_replaced says so. (The pool decides
 * nothing by what it shares with others that could be wrong without it: where blocks are, and which
 * are whose, is in its own memory.)
 *
 * Of any other SIGBUS nobody notices the handler: it takes itself away, puts back what was there
 * before, and has the signal come again, with all that the kernel said with it. A program that
 * installs a handler of its own later replaces this one; where that one calls this one, the handler
 * from before is called with the signals blocked that it has asked for.
 *
 * The kernel ends a process that faults in a thread which blocks SIGBUS. Many programs block all
 * signals in their threads, so bus_guard_thread unblocks this one, there and in threads that are
 * made there. A SIGBUS that is sent to such a thread is blocked again, and sent on: the program
 * gets it where it waits for it. It no longer ends a program whose other threads never blocked it.
 *
 * Any thread; no lock.
 */
#ifndef CUDAPOOL_CORE_BUS_GUARD_H
#define CUDAPOOL_CORE_BUS_GUARD_H

#include <stdbool.h>
#include <stddef.h>

/* As many as are guarded at a time; more of them are not. */
#define BUS_GUARD_MAPPINGS 4u

/* Whether the child of a fork has the mapping, too. Where it has not, something else may come to
 * lie at its addresses there. */
enum bus_guard_children { BUS_GUARD_CHILDREN_HAVE_IT, BUS_GUARD_CHILDREN_LACK_IT };

/* Guards a file's mapping of so many bytes. False where as many are guarded as can be, or the
 * signal cannot be handled. */
bool bus_guard(void *memory, size_t bytes, enum bus_guard_children children);

/* Unblocks SIGBUS in the calling thread, while anything is guarded. For a thread's first use of the
 * pool, and for misses: the program may have blocked it since. */
void bus_guard_thread(void);

/* The mapping is about to go. */
void bus_guard_end(const void *memory);

/* Puts memory of the process's own in place of the guarded mapping, zeroed; all references to the
 * file end. False where there is none, or the kernel refuses. Async-signal-safe. */
bool bus_guard_replace(const void *memory);

/* Whether that has happened. */
bool bus_guard_has_replaced(const void *memory);

#endif
