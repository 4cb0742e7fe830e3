/*
 * Memory in whole cache lines: data that several threads write shares no line with other data.
 *
 * Only calloc and free are used. A program may bring an allocator that replaces these and leaves
 * out aligned_alloc; its free would not know aligned_alloc's memory. Any thread, no lock.
 */
#ifndef CUDAPOOL_CORE_LINES_H
#define CUDAPOOL_CORE_LINES_H

#include <stddef.h>

#define LINE_BYTES ((size_t)64)

static inline size_t whole_lines(size_t bytes)
{
    return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

/* Returns zeroed memory that shares no unit of alignment bytes with anything else; NULL if memory
 * is short. The alignment is a power of two, and at least a pointer's size. */
void *allocate_apart(size_t alignment, size_t bytes);

static inline void *allocate_in_whole_lines(size_t bytes)
{
    return allocate_apart(LINE_BYTES, bytes);
}

/* Frees memory of allocate_apart or allocate_in_whole_lines. NULL: does nothing. */
void free_apart(void *memory);

#endif
