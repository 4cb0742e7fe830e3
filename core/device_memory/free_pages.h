/*
 * How much the driver would have free if all free device memory went back to it.
 *
 * Slow paths count pages that are free (page_counts.h). Hits move blocks between the program and
 * its caches and count nothing. So whoever asks looks at what caches hold: at numbers for blocks of
 * a page and more, at each smaller block, since a page of which all blocks that are out are in
 * caches is free as well. Where caches hold more of those than FREE_PAGES_LOOKS, their older ones
 * go to the heap's lists first, where they are counted: that happens to no block more often than
 * the program frees it.
 *
 * Threads allocate and free meanwhile: the sum is of no one moment, as that of any process on the
 * device.
 */
#ifndef CUDAPOOL_CORE_FREE_PAGES_H
#define CUDAPOOL_CORE_FREE_PAGES_H

#include <stdint.h>

#include "heap.h"

struct context;
struct device;
struct pool;

/* So many small blocks in caches are looked at. */
#define FREE_PAGES_LOOKS 1024u

/* No lock held, both. */
uint64_t free_pages_bytes(struct pool *pool, struct device *device);
uint64_t free_pages_of_context(struct pool *pool, struct context *context);

#endif
