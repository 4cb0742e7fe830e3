#include "place.h"

#include "cache_bin.h"
#include "cache_set.h"
#include "cache_threads.h"
#include "hot_memory.h"
#include "sums.h"

/* While the GPU keeps up, a fence is due once a thread has freed 1 / FENCE_SHARE of the blocks that
 * a bin may hold. The other blocks last until that fence has completed. */
#define FENCE_SHARE 2u

static uint32_t fence_frees(const struct heap *heap)
{
    uint32_t frees = heap->caches.most_blocks / FENCE_SHARE;
    return frees > 1 ? frees : 1;
}

/* The binary logarithm of threads, rounded up. All caches together may free as many bytes without a
 * fence as a heap without caches. A block without a fence can't be released to the driver, and an
 * allocation that needs it can't wait for it. */
static unsigned halvings_for(unsigned threads)
{
    return threads > 1 ? 32u - (unsigned)__builtin_clz(threads - 1) : 0;
}

void place_refresh_cache(struct heap *heap, struct thread_cache *cache)
{
    heap_lock_must_be_held(heap);
    unsigned alone = heap->uses_in_a_row == HEAP_USES_ALONE, caches = heap->caches.count;
    thread_cache_fit(cache);
    cache->fence_set_while_keeping_up = heap_keeps_up(heap);
    cache->launches_before = thread_state.launches;
    cache->hot_fence_bytes = policy_hot_fence_bytes(cache->pool, heap);
    uint32_t frees =
        cache->fence_set_while_keeping_up ? fence_frees(heap) : FENCE_EVERY_FREES << alone;
    thread_cache_set_fence(cache, frees, alone, halvings_for(caches));
}

/* Whether this thread may have blocks of the bucket in its cache. */
static bool is_for_caches(const struct heap *heap, const struct bucket *bucket)
{
    return device_bucket(bucket)->bin != CACHE_NO_BIN &&
           !(atomic_load_explicit(&heap->closed, memory_order_relaxed) &
             (CLOSED_SYNCHRONISING | CLOSED_UNUSABLE));
}

struct place place_of_this_thread(struct pool *pool, struct heap *heap, struct bucket *bucket,
                                  size_t request)
{
    heap_lock_must_be_held(heap);
    struct place place = {bucket, NULL, NULL};
    if (is_for_caches(heap, bucket))
        place.cache = thread_cache_of_this_thread(pool, heap);
    if (!place.cache)
        return place;
    if (place.cache->sized_for != heap->caches.count ||
        place.cache->fence_set_while_keeping_up != heap_keeps_up(heap))
        place_refresh_cache(heap, place.cache);
    if (heap->caches_hold_no_large && bucket->bytes >= KEEP_LARGE_BYTES)
        return place;
    place.bin = thread_cache_bin(place.cache, bucket, request);
    if (place.bin && heap->ending_or_finest) {
        thread_cache_empty_bin(place.cache, place.bin);
        place.bin = NULL;
    }
    return place;
}

struct place place_for_free(struct pool *pool, struct heap *heap, struct bucket *bucket)
{
    heap_lock_must_be_held(heap);
    struct place place = place_of_this_thread(pool, heap, bucket, 0);
    if (place.bin && thread_cache_is_full(place.bin))
        thread_cache_halve_bin(place.cache, place.bin);
    return place;
}

struct block *place_newest_clean(const struct place *place)
{
    struct block *cached = place->bin ? thread_cache_pop(place->cache, place->bin) : NULL;
    if (cached)
        return cached;
    return place->bucket->clean.last;
}

uint64_t place_oldest_stamp(const struct place *place)
{
    const struct block *listed = place->bucket->pending.first;
    uint64_t stamp = listed ? counter_get(&listed->epoch) : UINT64_MAX;
    uint64_t cached = place->bin ? thread_cache_oldest_stamp(place->bin) : 0;
    if (cached && cached < stamp)
        stamp = cached;
    return stamp == UINT64_MAX ? 0 : stamp;
}

void place_empty_bin(const struct place *place)
{
    if (place->bin)
        thread_cache_empty_bin(place->cache, place->bin);
}

void place_refill(struct heap *heap, const struct place *place)
{
    heap_lock_must_be_held(heap);
    struct block *block = place->bin ? place->bucket->clean.last : NULL;
    /* While the GPU is busy, another thread may be waiting for the next clean block. */
    unsigned wanted =
        block && heap_keeps_up(heap) ? thread_cache_wants(place->cache, place->bin) : 0;
    if (wanted == 0)
        return;
    for (unsigned i = 1; i < wanted && block->links[LINK_BUCKET].previous; i++)
        block = block->links[LINK_BUCKET].previous;
    for (struct block *newer; block; block = newer) {
        newer = block->links[LINK_BUCKET].next;
        thread_cache_expect(place->cache, place->bin);
        heap_detach_free(heap, block);
        thread_cache_fill(place->bin, block);
    }
}

void place_hand_out(struct heap *heap, struct block *block, size_t bytes, enum hit hit)
{
    heap_lock_must_be_held(heap);
    struct bucket_counters *counters = block->bucket->counters;
    if (block_state(block) != BLOCK_CACHED)
        heap_detach_free(heap, block);
    counter_set(&block->requested, bytes);
    block_set_state(block, BLOCK_LIVE);
    if (__builtin_expect(heap->keep.unused_returns != 0, 0)) {
        keep_note_hit(&heap->keep, block->bytes);
        thread_caches_update_closed(heap);
    }
    counter_add(&counters->requested_bytes, bytes);
    heap_count_live(heap, block);
    counter_add(&counters->hits[hit], 1);
}
