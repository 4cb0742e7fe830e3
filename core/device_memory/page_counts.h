/*
 * Counts the driver's pages in which no block of a heap is in use.
 *
 * The driver maps memory in pages of 2 MiB. Blocks of less than a page share pages, and a page is
 * free once all its blocks are. Part of a segment (parts.h) can't be released to the driver, but
 * the program can reuse it. So a page of a segment is free once no part in it is in use.
 *
 * Slow paths do the counting, so reading the result takes as long with many blocks as with few. A
 * block in the table is either out (held by the program or in a thread's cache) or listed (in the
 * heap's lists):
 *
 *   page->counts = blocks of less than a page there, and the number of those that are out
 *                  or, in a segment, the number of parts there that are out
 *   free_bytes = pages that have blocks and none of them out
 *                + pages of larger blocks that are listed
 *                + pages of segments without a part that is out
 *
 * All callers hold the heap lock.
 */
#ifndef CUDAPOOL_CORE_PAGE_COUNTS_H
#define CUDAPOOL_CORE_PAGE_COUNTS_H

#include <stdint.h>

#include "core/blocks/block.h"

struct page_counts {
    const struct block_table *table;
    counter free_bytes; /* may be read without the lock */
};

/* The first two count a block that has just entered or just left the table. The other two count the
 * pages of a segment that is opened or closed. */
void page_counts_come(struct page_counts *pages, const struct block *block);
void page_counts_go(struct page_counts *pages, const struct block *block);
void page_counts_open(struct page_counts *pages, const struct block *segment);
void page_counts_close(struct page_counts *pages, const struct block *segment);

/* A block in the table is now listed, or out again. */
void page_counts_list(struct page_counts *pages, const struct block *block);
void page_counts_unlist(struct page_counts *pages, const struct block *block);

/* One look at blocks that are out but not in use, because they are in threads' caches. */
struct page_look {
    struct page_counts *pages;
    uint64_t number; /* different for each look: page->seen tells by it what this look has seen */
    uint64_t bytes;  /* bytes of pages in which the look has seen every block that is out */
};
void page_look_at(struct page_look *look, const struct block *block);

#endif
