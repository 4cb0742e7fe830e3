/*
 * Stream-ordered memory as a kind of memory, see kind.h.
 */
#ifndef CUDAPOOL_CORE_STREAM_MEMORY_H
#define CUDAPOOL_CORE_STREAM_MEMORY_H

#include "core/contexts/kind.h"

extern const struct kind stream_memory;

#endif
