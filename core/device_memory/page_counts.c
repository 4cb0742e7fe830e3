#include "page_counts.h"

#include "core/base/size_class.h"

_Static_assert(UINT64_C(1) << PAGE_BITS == SIZE_CLASS_PAGE, "the driver's page");

/* page->counts: the low 16 bits count blocks that are out, the high 16 bits all blocks. A page has
 * at most one block per granule: 2^13. */
#define ONE_OUT   1u
#define ONE_BLOCK (1u << 16)
#define OUT       (ONE_BLOCK - 1)

static bool is_free(uint32_t counts, bool of_segment)
{
    return (counts & OUT) == 0 && (of_segment || counts != 0);
}

/* change: modulo 2^32. The addition is atomic, because a page may have blocks of several
 * contexts. */
static inline void count(struct page_counts *pages, CUdeviceptr address, uint32_t change,
                         bool of_segment)
{
    _Atomic uint32_t *counts = &block_table_page(pages->table, address)->counts;
    uint32_t before = atomic_fetch_add_explicit(counts, change, memory_order_relaxed);
    bool was = is_free(before, of_segment), is = is_free(before + change, of_segment);
    if (was != is)
        counter_add(&pages->free_bytes, is ? SIZE_CLASS_PAGE : -SIZE_CLASS_PAGE);
}

static uint64_t page_bytes(uint64_t bytes)
{
    return size_class_up(bytes, SIZE_CLASS_PAGE);
}

/* The pages that a part shares with others at its beginning and at its end; 0: it shares none
 * there. */
struct part_pages {
    CUdeviceptr first, last;
    uint64_t whole_bytes; /* bytes of pages that belong to the part alone */
};

static struct part_pages pages_of_part(const struct block *part)
{
    CUdeviceptr begin = block_address(part), end = begin + block_bytes(part);
    CUdeviceptr whole = size_class_up(begin, SIZE_CLASS_PAGE);
    CUdeviceptr whole_end = end / SIZE_CLASS_PAGE * SIZE_CLASS_PAGE;
    return (struct part_pages){
        .first = begin != whole ? begin : 0,
        .last = end != whole_end && whole <= whole_end ? whole_end : 0,
        .whole_bytes = whole < whole_end ? whole_end - whole : 0,
    };
}

/* change: ONE_OUT or -ONE_OUT. */
static void count_part(struct page_counts *pages, const struct block *part, uint32_t change)
{
    struct part_pages at = pages_of_part(part);
    if (at.first)
        count(pages, at.first, change, true);
    if (at.last)
        count(pages, at.last, change, true);
    counter_add(&pages->free_bytes, change == ONE_OUT ? -at.whole_bytes : at.whole_bytes);
}

static void count_out(struct page_counts *pages, const struct block *block, uint32_t change)
{
    if (block_is_part(block))
        count_part(pages, block, change);
    else if (block->bytes < SIZE_CLASS_PAGE)
        count(pages, block_address(block), change, false);
    else
        counter_add(&pages->free_bytes,
                    change == ONE_OUT ? -page_bytes(block->bytes) : page_bytes(block->bytes));
}

void page_counts_list(struct page_counts *pages, const struct block *block)
{
    count_out(pages, block, -ONE_OUT);
}

void page_counts_unlist(struct page_counts *pages, const struct block *block)
{
    count_out(pages, block, ONE_OUT);
}

void page_counts_come(struct page_counts *pages, const struct block *block)
{
    if (block_is_part(block))
        count_part(pages, block, ONE_OUT);
    else if (block->bytes < SIZE_CLASS_PAGE)
        count(pages, block_address(block), ONE_BLOCK + ONE_OUT, false);
}

void page_counts_go(struct page_counts *pages, const struct block *block)
{
    if (block_is_part(block))
        count_part(pages, block, -ONE_OUT);
    else if (block->bytes < SIZE_CLASS_PAGE)
        count(pages, block_address(block), -(ONE_BLOCK + ONE_OUT), false);
}

void page_counts_open(struct page_counts *pages, const struct block *segment)
{
    counter_add(&pages->free_bytes, page_bytes(segment->bytes));
}

void page_counts_close(struct page_counts *pages, const struct block *segment)
{
    counter_subtract(&pages->free_bytes, page_bytes(segment->bytes));
}

/* ---- looking ---- */

/* page->seen: the low SEEN_BITS bits count the blocks seen, the high bits are the look's number. */
#define SEEN_BITS 16

static void see(struct page_look *look, CUdeviceptr address, bool of_segment)
{
    struct block_page *page = block_table_page(look->pages->table, address);
    uint64_t seen = atomic_load_explicit(&page->seen, memory_order_relaxed);
    uint32_t counts = atomic_load_explicit(&page->counts, memory_order_relaxed);
    seen = seen >> SEEN_BITS == look->number ? seen + 1 : (look->number << SEEN_BITS) + 1;
    atomic_store_explicit(&page->seen, seen, memory_order_relaxed);
    if ((seen & OUT) == (counts & OUT) && is_free(counts & ~OUT, of_segment))
        look->bytes += SIZE_CLASS_PAGE;
}

void page_look_at(struct page_look *look, const struct block *block)
{
    if (block_is_part(block)) {
        struct part_pages pages = pages_of_part(block);
        if (pages.first)
            see(look, pages.first, true);
        if (pages.last)
            see(look, pages.last, true);
        look->bytes += pages.whole_bytes;
    } else if (block_bytes(block) < SIZE_CLASS_PAGE) {
        see(look, block_address(block), false);
    } else {
        look->bytes += page_bytes(block_bytes(block));
    }
}
