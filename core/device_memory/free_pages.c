#include "free_pages.h"

#include "cache_set.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"

/* Looks at the blocks of one chain, at most `most`. The cache's thread may change the chain
 * meanwhile, so the look ends at the first block that is not cached. Returns how much of `most` is
 * left. */
static uint64_t see_chain(struct page_look *look, const struct block *block, uint64_t most)
{
    for (; block && most && block_state(block) == BLOCK_CACHED; block = block_cached_next(block)) {
        page_look_at(look, block);
        most--;
    }
    return most;
}

static uint64_t blocks_in(const struct cache_bin *bin)
{
    uint64_t blocks = cache_bin_bucket(bin) ? cache_bin_blocks(bin) : 0;
    /* The bin's thread may be changing the counters, so an impossible count is left out. */
    return blocks <= bin->capacity ? blocks : 0;
}

/* Whether each block of the bin has pages of its own. */
static bool has_whole_pages(const struct heap *heap, const struct cache_bin *bin)
{
    return bin->bytes >= SIZE_CLASS_PAGE && !heap_splits(heap);
}

static void see_bin(struct page_look *look, const struct heap *heap, const struct cache_bin *bin)
{
    uint64_t blocks = blocks_in(bin);
    if (blocks && has_whole_pages(heap, bin)) {
        look->bytes += blocks * size_class_up(bin->bytes, SIZE_CLASS_PAGE);
        return;
    }
    blocks = see_chain(look, cache_first_block(&bin->clean), blocks);
    for (unsigned i = 0; i < CACHE_SEGMENTS && blocks; i++)
        if (counter_get(&bin->segments[i].stamp))
            blocks = see_chain(look, cache_first_block(&bin->segments[i].newest), blocks);
}

static struct cache_bin *bin_at(struct thread_cache *cache, unsigned place)
{
    return atomic_load_explicit(&cache->bins[place], memory_order_relaxed);
}

static uint64_t small_blocks_in_caches(const struct heap *heap)
{
    uint64_t blocks = 0;
    for (struct thread_cache *c = thread_caches_first(heap); c; c = thread_cache_next(c))
        for (unsigned i = 0; i < heap->bins && thread_cache_bytes(c); i++)
            blocks += has_whole_pages(heap, bin_at(c, i)) ? 0 : blocks_in(bin_at(c, i));
    return blocks;
}

/* Returns the bytes of pages that are free only if cached blocks count as free. It may first move
 * blocks to the heap's lists, which raises pages.free_bytes. So callers read that counter
 * afterwards. */
static uint64_t bytes_in_caches(struct pool *pool, struct heap *heap)
{
    heap_lock_must_be_held(heap);
    uint64_t small = small_blocks_in_caches(heap);
    if (small > FREE_PAGES_LOOKS)
        thread_caches_thin_out(heap, FREE_PAGES_LOOKS / 2, small);
    struct page_look look = {
        .pages = &heap->pages,
        .number = atomic_fetch_add_explicit(&pool->free_page_looks, 1, memory_order_relaxed) + 1,
    };
    for (struct thread_cache *c = thread_caches_first(heap); c; c = thread_cache_next(c))
        for (unsigned i = 0; i < heap->bins && thread_cache_bytes(c); i++)
            see_bin(&look, heap, bin_at(c, i));
    return look.bytes;
}

uint64_t free_pages_of_context(struct pool *pool, struct context *context)
{
    struct heap *heap = heap_of(context);
    if (!thread_caches_first(heap))
        return counter_get(&heap->pages.free_bytes);
    heap_lock(heap);
    uint64_t in_caches = bytes_in_caches(pool, heap);
    uint64_t bytes = counter_get(&heap->pages.free_bytes) + in_caches;
    heap_unlock(heap);
    return bytes;
}

uint64_t free_pages_bytes(struct pool *pool, struct device *device)
{
    uint64_t bytes = 0;
    for (struct context *c = context_next(pool, NULL, device); c; c = context_next(pool, c, device))
        bytes += free_pages_of_context(pool, c);
    return bytes;
}
