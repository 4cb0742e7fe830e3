/*
 * Keeps the process alive when somebody truncates a file that the process has mapped.
 *
 * Touching a mapped page that lies past the end of its file raises SIGBUS, which ends the process.
 * A file that others can open by name cannot be protected from truncation. While such a file is
 * mapped, this module handles SIGBUS: it replaces the mapping with ordinary memory, and the process
 * continues. The file's content is then lost to the process, and bus_guard_has_replaced returns
 * true. The pool stays correct without that content: its records of blocks and their owners are in
 * its own memory.
 *
 * For every other SIGBUS, the handler uninstalls itself and restores the earlier action. An
 * instruction that faulted then faults again, and a signal that somebody sent is sent again with
 * its siginfo. A handler that the program installs later replaces this one. If the program's
 * handler calls this one, this one calls the handler that was installed before it. It first blocks
 * the signals that the earlier handler's sa_mask names.
 *
 * The kernel ends a process that faults in a thread which blocks SIGBUS. Many programs block all
 * signals in their threads. So bus_guard_thread unblocks SIGBUS in a thread, and the threads that
 * this thread creates inherit the mask. A SIGBUS that somebody sends may then reach a thread in
 * which the program had blocked it. The handler blocks SIGBUS in that thread again and sends the
 * signal again, so a thread that waits for it receives it. One difference remains: a sent SIGBUS
 * no longer ends the program, even if some of its threads never blocked SIGBUS.
 *
 * Any thread may call these functions, without a lock.
 */
#ifndef CUDAPOOL_CORE_BUS_GUARD_H
#define CUDAPOOL_CORE_BUS_GUARD_H

#include <stdbool.h>
#include <stddef.h>

/* At most this many mappings are guarded at a time. */
#define BUS_GUARD_MAPPINGS 4u

/* Whether the child of a fork has the mapping, too. In a child that lacks it, something else may
 * lie at the mapping's addresses, so the handler ignores faults there. */
enum bus_guard_children { BUS_GUARD_CHILDREN_HAVE_IT, BUS_GUARD_CHILDREN_LACK_IT };

/* Guards the mapping of a file: `bytes` bytes from `memory` on. Returns false if BUS_GUARD_MAPPINGS
 * are guarded already, or if the handler cannot be installed. */
bool bus_guard(void *memory, size_t bytes, enum bus_guard_children children);

/* Unblocks SIGBUS in the calling thread, if anything was ever guarded. Called at a thread's first
 * use of the pool. Called on misses as well, since the program may have blocked SIGBUS meanwhile.
 */
void bus_guard_thread(void);

/* Ends the guard of a mapping that is about to be unmapped. */
void bus_guard_end(const void *memory);

/* Replaces the guarded mapping with zeroed memory of the process's own, so that no reference to the
 * file remains. Returns false if the mapping is not guarded, or if the kernel refuses.
 * Async-signal-safe. */
bool bus_guard_replace(const void *memory);

/* Returns whether the guarded mapping has been replaced. */
bool bus_guard_has_replaced(const void *memory);

#endif
