#include "cache_bin.h"

#include "core/base/lines.h"
#include "core/base/numbers.h"
#include "core/base/size_class.h"

/* Counts blocks that the slow path has put into the bin; (uint64_t)-1: one block that it took out.
 */
static void note_moved(struct thread_cache *cache, struct cache_bin *bin, uint64_t blocks)
{
    counter_add(&bin->counters->moved, blocks);
    bin->room -= (uint32_t)blocks;
    counter_add(&cache->moved_bytes, blocks * bin->bytes);
}

/* Moves all but the newest `stay` clean blocks to the heap's lists. A bin's clean blocks are
 * chained from the newest to the oldest, and the heap's lists take the oldest first. So the chain
 * is reversed first. */
static void give_clean(struct thread_cache *cache, struct cache_bin *bin, uint64_t stay)
{
    struct block **link = &bin->clean, *turned = NULL;
    for (; *link && stay; stay--)
        link = &(*link)->links[LINK_BUCKET].next;
    struct block *block = *link;
    *link = NULL;
    while (block) {
        struct block *older = block->links[LINK_BUCKET].next;
        block->links[LINK_BUCKET].next = turned;
        turned = block;
        block = older;
    }
    while (turned) {
        struct block *newer = turned->links[LINK_BUCKET].next;
        counter_set(&turned->epoch, heap_clean_epoch(cache->heap));
        turned->freed_at = bin->clean_freed_at;
        heap_accept(cache->heap, turned, thread_cache_slot(cache));
        note_moved(cache, bin, (uint64_t)-1);
        turned = newer;
    }
}

/* Counts bytes that were freed in the epoch of this stamp as no longer pending in this cache. */
static void note_no_longer_pending(struct thread_cache *cache, uint64_t stamp, uint64_t bytes)
{
    struct cache_epoch *epoch = &cache->epochs[stamp % CACHE_EPOCHS];
    if (counter_get(&epoch->stamp) == stamp)
        counter_add(&epoch->taken, bytes);
}

static void give_oldest_segment(struct thread_cache *cache, struct cache_bin *bin)
{
    struct cache_segment *segment = cache_oldest_segment(bin);
    uint64_t stamp = counter_get(&segment->stamp);
    for (struct block *older, *block = segment->newest; block; block = older) {
        older = block->links[LINK_BUCKET].next;
        counter_set(&block->epoch, stamp);
        block->freed_at = segment->opened_at;
        heap_accept(cache->heap, block, thread_cache_slot(cache));
        note_moved(cache, bin, (uint64_t)-1);
        note_no_longer_pending(cache, stamp, bin->bytes);
    }
    cache_drop_oldest_segment(bin);
}

void thread_cache_empty_bin(struct thread_cache *cache, struct cache_bin *bin)
{
    heap_lock_must_be_held(cache->heap);
    give_clean(cache, bin, 0);
    while (bin->segment_count)
        give_oldest_segment(cache, bin);
}

void thread_cache_cut_bin(struct thread_cache *cache, struct cache_bin *bin, uint64_t stay)
{
    heap_lock_must_be_held(cache->heap);
    uint64_t blocks = cache_bin_blocks(bin), pending = 0;
    for (uint32_t i = 0; i < bin->segment_count; i++)
        for (struct block *b = bin->segments[(bin->first + i) % CACHE_SEGMENTS].newest; b;
             b = b->links[LINK_BUCKET].next)
            pending++;
    if (blocks <= stay)
        return;
    give_clean(cache, bin, rest_of(stay, pending));
    while (bin->segment_count && cache_bin_blocks(bin) > stay)
        give_oldest_segment(cache, bin);
}

void thread_cache_halve_bin(struct thread_cache *cache, struct cache_bin *bin)
{
    heap_lock_must_be_held(cache->heap);
    thread_cache_cut_bin(cache, bin, bin->capacity / 2);
}

struct block *thread_cache_pop(struct thread_cache *cache, struct cache_bin *bin)
{
    heap_lock_must_be_held(cache->heap);
    struct block *block = bin->clean ? bin->clean : thread_cache_turn_clean(cache, bin);
    if (!block)
        return NULL;
    bin->clean = block->links[LINK_BUCKET].next;
    note_moved(cache, bin, (uint64_t)-1);
    return block;
}

/* A refill leaves room. The thread may free as many blocks again before the bin is full. It may
 * free as many bytes again before the cache exceeds its limit and moves half of everything to the
 * heap's lists. */
unsigned thread_cache_wants(const struct thread_cache *cache, struct cache_bin *bin)
{
    heap_lock_must_be_held(cache->heap);
    uint64_t wanted = bin->refill_blocks, most = bin->capacity / 2;
    uint64_t half = counter_get(&cache->heap->caches.most_bytes) / 2,
             has = thread_cache_bytes(cache);
    uint64_t fit = has < half ? (half - has) / bin->bytes : 0;
    bin->refill_blocks = (uint32_t)smaller_of(2 * wanted, most);
    return (unsigned)smaller_of(smaller_of(wanted, bin->room / 2), fit);
}

void thread_cache_expect(struct thread_cache *cache, struct cache_bin *bin)
{
    heap_lock_must_be_held(cache->heap);
    note_moved(cache, bin, 1);
}

void thread_cache_fill(struct cache_bin *bin, struct block *block)
{
    block->links[LINK_BUCKET].next = bin->clean;
    bin->clean = block;
    bin->clean_freed_at = block->freed_at;
    block_set_state(block, BLOCK_CACHED);
}

void cache_bin_retire(struct cache_bin *bin)
{
    struct bucket *bucket = cache_bin_bucket(bin);
    device_bucket(bucket)->granted_to_caches -= bin->capacity;
    atomic_store_explicit(&bin->bucket, NULL, memory_order_relaxed);
    bin->capacity = 0;
    bin->room = 0;
}

/* Returns how many blocks a bin of the bucket may hold; 0: too few to be worth a bin. granted:
 * blocks that the bucket's other bins may hold. */
static uint32_t capacity_for(const struct heap *heap, const struct bucket *bucket, uint64_t granted)
{
    uint64_t bytes = smaller_of(counter_get(&heap->caches.most_bytes), CACHE_BIN_BYTES);
    uint64_t all = cache_blocks_of_bucket(heap);
    if (bucket->bytes == 0 || bucket->bytes > heap->caches.largest_block || granted >= all)
        return 0;
    uint64_t blocks = smaller_of(bytes / bucket->bytes, heap->caches.most_blocks);
    blocks = smaller_of(blocks, all - granted);
    /* A lone thread's largest blocks have a bin even if only two of them fit. */
    bool few = blocks < (heap->caches.count > 1 ? CACHE_BIN_LEAST : 2) ||
               heap->caches.most_blocks < CACHE_BIN_LEAST;
    return few ? 0 : (uint32_t)blocks;
}

/* Gives the bin to the bucket. False if the bin could hold too few blocks. */
static bool serve_bucket(struct thread_cache *cache, struct cache_bin *bin, struct bucket *bucket)
{
    uint32_t capacity = capacity_for(cache->heap, bucket, device_bucket(bucket)->granted_to_caches);
    if (capacity == 0)
        return false;
    device_bucket(bucket)->granted_to_caches += capacity;
    bin->capacity = capacity;
    bin->room = capacity;
    atomic_store_explicit(&bin->bucket, bucket, memory_order_relaxed);
    bin->refill_blocks = 1;
    bin->clean = NULL;
    bin->first = 0;
    bin->segment_count = 0;
    bin->open = &bin->segments[0];
    for (unsigned i = 0; i < CACHE_SEGMENTS; i++)
        counter_set(&bin->segments[i].stamp, 0);
    return true;
}

/* Makes a bin with counters in the figures. NULL if memory is short. */
static struct cache_bin *make_bin(const struct heap *heap, const struct bucket *bucket)
{
    struct bin_counters *counters =
        figures_bin(heap->figures, KIND_DEVICE, heap->figures_id, heap->device, bucket->bytes);
    struct cache_bin *bin = counters ? allocate_in_whole_lines(sizeof *bin) : NULL;
    if (!bin)
        return NULL;
    bin->counters = counters;
    bin->bytes = bucket->bytes;
    bin->requests = size_class_span(&heap->classes, bucket->bytes, 1);
    return bin;
}

/* Whether the bucket is shared, so that no cache may hold its blocks now (see thread_caches_take).
 */
static bool is_shared(const struct heap *heap, const struct bucket *bucket)
{
    return counter_get(&heap->now) < device_bucket(bucket)->shared_until;
}

static struct cache_bin *get_bin(struct thread_cache *cache, struct bucket *bucket)
{
    _Atomic(struct cache_bin *) *place = &cache->bins[device_bucket(bucket)->bin];
    struct cache_bin *bin = atomic_load_explicit(place, memory_order_relaxed);
    if (cache_bin_bucket(bin) == bucket)
        return bin;
    if (is_shared(cache->heap, bucket))
        return NULL;
    if (bin == &cache_no_bin) {
        bin = make_bin(cache->heap, bucket);
        if (!bin)
            return NULL;
        /* Pairs with the acquire loads in sums.c. */
        atomic_store_explicit(place, bin, memory_order_release);
    }
    return serve_bucket(cache, bin, bucket) ? bin : NULL;
}

struct cache_bin *thread_cache_bin(struct thread_cache *cache, struct bucket *bucket,
                                   size_t request)
{
    heap_lock_must_be_held(cache->heap);
    struct cache_bin *bin = get_bin(cache, bucket);
    if (bin && request)
        cache->by_request[cache_index(request)] = bin;
    return bin;
}

/* Fits the bin's capacity to the present number of awake caches. */
static void resize_bin(struct thread_cache *cache, struct cache_bin *bin)
{
    struct bucket *bucket = cache_bin_bucket(bin);
    uint32_t capacity =
        capacity_for(cache->heap, bucket, device_bucket(bucket)->granted_to_caches - bin->capacity);
    if (capacity == bin->capacity)
        return;
    if (capacity + bin->room < bin->capacity)
        thread_cache_empty_bin(cache, bin);
    if (capacity == 0) {
        cache_bin_retire(bin);
        return;
    }
    device_bucket(bucket)->granted_to_caches += capacity - bin->capacity;
    bin->room += capacity - bin->capacity;
    bin->capacity = capacity;
}

struct cache_bin *cache_bin_in_use(struct thread_cache *cache, unsigned place)
{
    struct cache_bin *bin = atomic_load_explicit(&cache->bins[place], memory_order_relaxed);
    return cache_bin_bucket(bin) ? bin : NULL;
}

/* Moves blocks to the heap's lists until the cache holds at most three quarters of its limit. It
 * empties bins that the thread has not used for CACHE_UNUSED_EPOCHS first. Next are bins not used
 * in the last epoch, and then half of every bin. */
static void give_what_is_too_much(struct thread_cache *cache)
{
    static const uint64_t unused_for[] = {CACHE_UNUSED_EPOCHS, 1, 0};
    uint64_t most = counter_get(&cache->heap->caches.most_bytes), now = counter_get(&cache->stamp);
    for (unsigned round = 0; round < sizeof unused_for / sizeof unused_for[0]; round++)
        for (unsigned i = 0; i < CACHE_BINS && thread_cache_bytes(cache) > most - most / 4; i++) {
            struct cache_bin *bin = cache_bin_in_use(cache, i);
            if (bin && unused_for[round] == 0)
                thread_cache_cut_bin(cache, bin, cache_bin_blocks(bin) / 2);
            else if (bin && bin->newest_stamp + unused_for[round] < now)
                thread_cache_empty_bin(cache, bin);
        }
}

void thread_cache_fit(struct thread_cache *cache)
{
    heap_lock_must_be_held(cache->heap);
    for (unsigned i = 0; cache->sized_for != cache->heap->caches.count && i < CACHE_BINS; i++) {
        struct cache_bin *bin = cache_bin_in_use(cache, i);
        if (bin)
            resize_bin(cache, bin);
    }
    cache->sized_for = cache->heap->caches.count;
    if (thread_cache_bytes(cache) > counter_get(&cache->heap->caches.most_bytes))
        give_what_is_too_much(cache);
}

void thread_cache_empty(struct thread_cache *cache)
{
    heap_lock_must_be_held(cache->heap);
    if (thread_cache_bytes(cache) == 0)
        return;
    counter_add(&cache->heap->caches.emptied, 1);
    for (unsigned i = 0; i < CACHE_BINS; i++) {
        struct cache_bin *bin = atomic_load_explicit(&cache->bins[i], memory_order_relaxed);
        if (cache_bin_bucket(bin))
            thread_cache_empty_bin(cache, bin);
    }
}
