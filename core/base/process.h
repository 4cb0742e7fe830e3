/*
 * Reads what the kernel says of processes in /proc: what identifies a process in all pid namespaces
 * of a machine, and whether it is ending.
 *
 * Any thread; no lock. These open a file for a moment: a cancellation point, which changes errno.
 */
#ifndef CUDAPOOL_CORE_PROCESS_H
#define CUDAPOOL_CORE_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Fields of /proc/PID/stat, with their numbers in proc(5). */
enum process_field {
    PROCESS_STATE = 3,
    PROCESS_FLAGS = 9,
    PROCESS_THREADS = 20,
    PROCESS_START_TICKS = 22,
    PROCESS_PENDING_SIGNALS = 31
};

/* Returns the text of stat from this field on; "" if there is no such field. */
const char *process_field(const char *stat, enum process_field field);
uint64_t process_number(const char *stat, enum process_field field);

/* Returns when the calling process was started, in ticks since the machine was booted. 0: not
 * known. */
uint64_t process_own_start_ticks(void);

/* Returns when the calling process was started, in nanoseconds of CLOCK_MONOTONIC: when this object
 * was loaded, or for a forked child what the kernel says, exact to a hundredth of a second. */
uint64_t process_own_start(void);

/* Returns whether a process of this pid namespace is stopped, by a signal or a debugger. False also
 * if that is not known. */
bool process_is_stopped(int64_t pid);

/* Returns the inode of the calling process's pid namespace. 0: not known. */
uint64_t process_own_pid_namespace(void);

/* Reads the first bytes of a file as text. Returns the text's length; 0 if there is no file. */
size_t read_text(const char *path, char *text, size_t bytes);

/* Reads the digits at *text, and moves *text past them. */
uint64_t take_number(const char **text);

#endif
