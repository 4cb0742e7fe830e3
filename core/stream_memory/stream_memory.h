/*
 * Stream-ordered memory (cuMemAllocAsync) as a kind of memory: the functions of struct kind
 * (kind.h).
 */
#ifndef CUDAPOOL_CORE_STREAM_MEMORY_H
#define CUDAPOOL_CORE_STREAM_MEMORY_H

#include "core/contexts/kind.h"

extern const struct kind stream_memory;

#endif
