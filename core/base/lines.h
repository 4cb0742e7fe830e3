/*
 * Cache lines: what several threads write lies in lines of its own.
 */
#ifndef CUDAPOOL_CORE_LINES_H
#define CUDAPOOL_CORE_LINES_H

#include <stddef.h>

#define LINE_BYTES ((size_t)64)

static inline size_t whole_lines(size_t bytes)
{
    return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

#endif
