/*
 * Cache lines: what several threads write lies in lines of its own.
 *
 * Made of calloc and free alone: a program that brings an allocator of its own may replace these
 * and leave out aligned_alloc, whose memory its free would then not know. Any thread, no lock.
 */
#ifndef CUDAPOOL_CORE_LINES_H
#define CUDAPOOL_CORE_LINES_H

#include <stddef.h>

#define LINE_BYTES ((size_t)64)

static inline size_t whole_lines(size_t bytes)
{
    return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

/* Zeroed memory that shares no part of the alignment's size with anything else; NULL where memory
 * is short. The alignment is a power of two, and at least a pointer's size. */
void *allocate_apart(size_t alignment, size_t bytes);

static inline void *allocate_in_whole_lines(size_t bytes)
{
    return allocate_apart(LINE_BYTES, bytes);
}

/* What one of these gave; NULL: nothing. */
void free_apart(void *memory);

#endif
