/*
 * How much memory the driver would have free if all free device memory were released to it.
 *
 * Slow paths count free pages (page_counts.h). Hits move blocks between the program and its caches
 * without counting. So these functions also look at the contents of caches. For blocks of a page
 * and more they only use the numbers of blocks. Each smaller block is looked at by itself: a page
 * is also free if caches hold all its blocks that are in no list.
 *
 * Where caches hold more than FREE_PAGES_LOOKS small blocks, the older ones move to the heap's
 * lists first, where they are counted. No block is moved more often than the program frees it.
 *
 * Threads allocate and free meanwhile, so the sum belongs to no single moment, like that of any
 * process on the device.
 */
#ifndef CUDAPOOL_CORE_FREE_PAGES_H
#define CUDAPOOL_CORE_FREE_PAGES_H

#include <stdint.h>

#include "heap.h"

struct context;
struct device;
struct pool;

/* The most small blocks in caches that are looked at. */
#define FREE_PAGES_LOOKS 1024u

/* The callers of both hold no lock. */
uint64_t free_pages_bytes(struct pool *pool, struct device *device);
uint64_t free_pages_of_context(struct pool *pool, struct context *context);

#endif
