/*
 * Pinned host memory (cuMemHostAlloc) as a kind of memory, for the table of kinds (kind.h).
 *
 * Files of this directory call down this list, and never up:
 *
 *   host_allocate, host_free   an allocation and a free
 *   host_miss                  new blocks
 *   host_release               releasing memory to the driver
 *   host_by_driver             blocks that the driver frees
 *   host_heap                  the state, and its lists
 *   host_large                 large blocks made without cuMemHostAlloc
 */
#ifndef CUDAPOOL_CORE_HOST_MEMORY_H
#define CUDAPOOL_CORE_HOST_MEMORY_H

extern const struct kind host_memory;

#endif
