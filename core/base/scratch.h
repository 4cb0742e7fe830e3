/*
 * Memory for one thread while its process ends.
 *
 * A signal handler may call exit while its thread is inside malloc, with malloc's lock held and its
 * lists half changed: whoever asks malloc for memory from there on hangs or crashes. So a report
 * that is made at a process's end takes its memory here: from pages that are mapped for it.
 *
 * The same code makes reports where malloc is as good as ever (in the command), so it asks here in
 * both cases: between scratch_begin and scratch_end the thread that called them gets mapped memory;
 * all others, and everybody at other times, get malloc's.
 */
#ifndef CUDAPOOL_CORE_SCRATCH_H
#define CUDAPOOL_CORE_SCRATCH_H

#include <stdbool.h>
#include <stddef.h>

/* False where another thread is between the two. */
bool scratch_begin(void);

/* Unmaps all that this thread has taken since. */
void scratch_end(void);

/* Whether the calling thread is between the two, and whether it has this memory from here. */
bool scratch_is_mine(void);
bool scratch_has(const void *memory);

/* As malloc, calloc, realloc and free. Mapped memory is zero in either case, and goes all at once:
 * what was made longer keeps the place that it had as well. */
void *scratch_malloc(size_t bytes);
void *scratch_calloc(size_t count, size_t bytes);
void *scratch_realloc(void *memory, size_t bytes);
void scratch_free(void *memory);

#endif
