/*
 * What the kernel says of processes in /proc: what tells them apart in all pid namespaces of a
 * machine, and whether they end.
 *
 * Any thread; no lock. Opens a file for a moment: a cancellation point, which changes errno.
 */
#ifndef CUDAPOOL_CORE_PROCESS_H
#define CUDAPOOL_CORE_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What /proc/PID/stat says, by the numbers that proc(5) gives the fields. */
enum process_field {
    PROCESS_STATE = 3,
    PROCESS_FLAGS = 9,
    PROCESS_THREADS = 20,
    PROCESS_START_TICKS = 22,
    PROCESS_PENDING_SIGNALS = 31
};

/* The field's text, or "". */
const char *process_field(const char *stat, enum process_field field);
uint64_t process_number(const char *stat, enum process_field field);

/* When the calling process was started, in ticks since the machine was. 0: not known. */
uint64_t process_own_start_ticks(void);

/* The same in nanoseconds of CLOCK_MONOTONIC, as of when this object was loaded, or for a forked
 * child as the kernel says to a hundredth of a second. */
uint64_t process_own_start(void);

/* Whether a process of this pid namespace is stopped, by a signal or a debugger. False: not known.
 */
bool process_is_stopped(int64_t pid);

/* The inode of the calling process's pid namespace. 0: not known. */
uint64_t process_own_pid_namespace(void);

/* The first bytes of a file, as text. Returns its length; 0 where there is none. */
size_t read_text(const char *path, char *text, size_t bytes);

/* The digits at *text, which is moved behind them. */
uint64_t take_number(const char **text);

#endif
