/*
 * Which pages of the driver's have no block of a heap in use.
 *
 * The driver has memory in pages of 2 MiB. A block of less than a page shares its page, which is
 * free once all blocks in it are. Part of a segment (parts.h) does not go back, but the program can
 * have it: a page of a segment is free once no part in it is in use.
 *
 * Slow paths count, so that the answer takes as long with many blocks as with few. A block in the
 * table is out, that is in the program's hands or in a thread's cache, or listed:
 *
 *   page->counts = blocks of less than a page there, and the number of those that are out
 *                  or, in a segment, the number of parts there that are out
 *   free_bytes = pages that have blocks and none of them out
 *                + pages of larger blocks that are listed
 *                + pages of segments without a part that is out
 *
 * The heap lock is held by all callers.
 */
#ifndef CUDAPOOL_CORE_PAGE_COUNTS_H
#define CUDAPOOL_CORE_PAGE_COUNTS_H

#include <stdint.h>

#include "core/blocks/block.h"

struct page_counts {
    const struct block_table *table;
    counter free_bytes; /* may be read without the lock */
};

/* The block has just come into the table; it has just gone from there; the pages of a segment that
 * is opened, or closed. */
void page_counts_come(struct page_counts *pages, const struct block *block);
void page_counts_go(struct page_counts *pages, const struct block *block);
void page_counts_open(struct page_counts *pages, const struct block *segment);
void page_counts_close(struct page_counts *pages, const struct block *segment);

/* A block in the table is listed, or out again. */
void page_counts_list(struct page_counts *pages, const struct block *block);
void page_counts_unlist(struct page_counts *pages, const struct block *block);

/* One look at blocks that are out but not in use, as threads' caches have them. */
struct page_look {
    struct page_counts *pages;
    uint64_t number; /* another one for each look: it tells what this look has seen of a page */
    uint64_t bytes;  /* of pages of which all that is out has been looked at */
};
void page_look_at(struct page_look *look, const struct block *block);

#endif
