/*
 * Memory for one thread while its process ends.
 *
 * A signal handler may call exit while its thread is inside malloc, with malloc's lock held and its
 * lists half changed. Any call of malloc after that hangs or crashes. So a report that is written
 * at a process's end takes its memory here, from pages that are mapped for it.
 *
 * The command writes reports with the same code while malloc works, and asks here, too. Between
 * scratch_begin and scratch_end the thread that called them gets mapped memory. All other threads,
 * and all threads at other times, get malloc's.
 */
#ifndef CUDAPOOL_CORE_SCRATCH_H
#define CUDAPOOL_CORE_SCRATCH_H

#include <stdbool.h>
#include <stddef.h>

/* Begins scratch memory for the calling thread. Returns false if another thread has begun and not
 * ended. */
bool scratch_begin(void);

/* Unmaps all memory that this thread has taken since scratch_begin. */
void scratch_end(void);

/* Return whether the calling thread is between scratch_begin and scratch_end, and whether it has
 * this memory from here. */
bool scratch_is_mine(void);
bool scratch_has(const void *memory);

/* Like malloc, calloc, realloc and free. Mapped memory is zero, also from scratch_malloc. Only
 * scratch_end frees it: scratch_realloc leaves the old memory in its place. */
void *scratch_malloc(size_t bytes);
void *scratch_calloc(size_t count, size_t bytes);
void *scratch_realloc(void *memory, size_t bytes);
void scratch_free(void *memory);

#endif
