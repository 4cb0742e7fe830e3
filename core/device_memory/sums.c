#include "sums.h"
#include "core/base/numbers.h"

/* heap_bytes tries this often to see no change of the list. Then it uses the sums that it has. */
#define LISTING_TRIES 100u

/* Bytes that the cache's thread has freed since the clean epoch, without those that slow paths have
 * taken away. */
static uint64_t pending_in(const struct thread_cache *cache, uint64_t clean)
{
    uint64_t newest = counter_get(&cache->stamp), bytes = cache_freed_in_epoch(cache);
    if (newest <= clean)
        return 0;
    bytes -= counter_get(&cache->epochs[newest % CACHE_EPOCHS].taken);
    for (uint64_t stamp = newest - 1; stamp > clean && newest - stamp < CACHE_EPOCHS; stamp--) {
        const struct cache_epoch *epoch = &cache->epochs[stamp % CACHE_EPOCHS];
        if (counter_get(&epoch->stamp) == stamp)
            bytes += counter_get(&epoch->freed) - counter_get(&epoch->taken);
    }
    uint64_t free = thread_cache_bytes(cache);
    return smaller_of(bytes, free);
}

uint64_t thread_cache_pending(const struct thread_cache *cache)
{
    return pending_in(cache, heap_clean_epoch(cache->heap));
}

struct cached_sums thread_caches_sum(const struct heap *heap)
{
    struct cached_sums sums = {0};
    const struct epochs *epochs = &context_of_heap(heap)->epochs;
    uint64_t clean = epoch_clean(epochs), current = epoch_current(epochs);
    for (const struct thread_cache *c = thread_caches_first(heap); c; c = thread_cache_next(c)) {
        sums.requested_out += counter_get(&c->requested_out);
        sums.freeing += counter_get(&c->stamp) + 1 >= current;
        uint64_t bytes = thread_cache_bytes(c), pending = bytes ? pending_in(c, clean) : 0;
        sums.free_bytes += bytes;
        sums.pending_bytes += pending;
        sums.pending_slots |= (uint64_t)(pending != 0) << thread_cache_slot(c);
    }
    return sums;
}

uint64_t thread_caches_requested_out(const struct heap *heap)
{
    uint64_t bytes = 0;
    for (const struct thread_cache *c = thread_caches_first(heap); c; c = thread_cache_next(c))
        bytes += counter_get(&c->requested_out);
    return bytes;
}

uint64_t thread_caches_requested_back(const struct heap *heap)
{
    uint64_t bytes = 0;
    for (const struct thread_cache *c = thread_caches_first(heap); c; c = thread_cache_next(c))
        bytes += counter_get(&c->requested_freed);
    return bytes;
}

/* The number of the bin's blocks in segments that are not clean. */
static uint64_t pending_blocks(const struct cache_bin *bin, uint64_t clean)
{
    uint64_t frees = counter_get(&bin->counters->frees), before = frees;
    for (unsigned i = 0; i < CACHE_SEGMENTS; i++) {
        const struct cache_segment *segment = &bin->segments[i];
        uint64_t then = counter_get(&segment->frees_before);
        if (counter_get(&segment->stamp) > clean && then < before)
            before = then;
    }
    return frees - before;
}

uint64_t thread_caches_blocks(const struct heap *heap, const struct bucket *bucket,
                              const struct thread_cache *but, bool clean)
{
    uint64_t sum = 0, epoch = clean ? heap_clean_epoch(heap) : 0;
    for (const struct thread_cache *c = thread_caches_first(heap); c; c = thread_cache_next(c)) {
        const struct cache_bin *bin =
            atomic_load_explicit(&c->bins[device_bucket(bucket)->bin], memory_order_acquire);
        if (c == but || cache_bin_bucket(bin) != bucket)
            continue;
        uint64_t blocks = cache_bin_blocks(bin), pending = clean ? pending_blocks(bin, epoch) : 0;
        /* The bin's thread may be changing the counters, so an impossible count is left out. */
        sum += blocks > CACHE_BIN_BLOCKS || pending > blocks ? 0 : blocks - pending;
    }
    return sum;
}

uint64_t thread_caches_newest_stamp(const struct heap *heap)
{
    uint64_t newest = 0, clean = heap_clean_epoch(heap);
    for (const struct thread_cache *c = thread_caches_first(heap); c; c = thread_cache_next(c)) {
        uint64_t stamp = counter_get(&c->stamp);
        if (stamp > newest && thread_cache_bytes(c))
            newest = stamp;
    }
    return newest > clean ? newest : 0;
}

/* What the program holds. handed_out: thread_caches_requested_out, read before this call. Nothing
 * counts twice (see thread_caches_requested_back). Otherwise the peak, and with it the reserve,
 * would rise whenever the summing thread is delayed between two reads. */
static uint64_t requested_bytes(const struct heap *heap, uint64_t handed_out)
{
    uint64_t live = handed_out + counter_get(&heap->live_requested);
    uint64_t reserved = counter_get(&heap->reserved_bytes);
    live -= thread_caches_requested_back(heap);
    /* A block that moved between two reads may make the sum negative. */
    if ((int64_t)live < 0)
        return 0;
    return smaller_of(live, reserved);
}

static struct heap_bytes sum_bytes(const struct heap *heap)
{
    struct cached_sums cached = thread_caches_sum(heap);
    uint64_t spare = counter_get(&heap->counters->segments.spare_bytes);
    return (struct heap_bytes){
        .clean = counter_get(&heap->clean_bytes) + spare + cached.free_bytes - cached.pending_bytes,
        .spare = spare,
        .pending = counter_get(&heap->pending_bytes) + cached.pending_bytes,
        .requested = requested_bytes(heap, cached.requested_out),
    };
}

/* Sums up again if a cache fell asleep or woke meanwhile. What its thread holds might otherwise
 * count both in the cache and in the heap. */
struct heap_bytes heap_bytes(const struct heap *heap)
{
    const counter *listings = &heap->caches.list_changes;
    for (unsigned tries = 0;; tries++) {
        /* The acquire load pairs with the release store in end_listing, the fence with the one in
         * begin_listing. */
        uint64_t before = atomic_load_explicit(listings, memory_order_acquire);
        struct heap_bytes bytes = sum_bytes(heap);
        counter_fence(memory_order_acquire);
        if ((before % 2 == 0 && counter_get(listings) == before) || tries == LISTING_TRIES)
            return bytes;
    }
}

uint64_t heap_peak_requested(const struct heap *heap)
{
    uint64_t peak = heap_counters_peak(heap->counters), now = heap_bytes(heap).requested;
    return larger_of(peak, now);
}

void heap_note_requested(struct heap *heap, uint64_t requested)
{
    heap_lock_must_be_held(heap);
    counter_raise_to(&heap->counters->peak_requested, requested);
    counter_raise_to(&heap->peaks.live, requested);
    counter_raise_to(&heap->peaks.reserved, counter_get(&heap->reserved_bytes));
}

const struct recent_sums *heap_recent_sums(struct heap *heap, uint64_t epochs_old)
{
    heap_lock_must_be_held(heap);
    const struct epochs *epochs = &context_of_heap(heap)->epochs;
    struct recent_sums *recent = &heap->recent;
    uint64_t current = epoch_current(epochs), clean = epoch_clean(epochs);
    bool is_new = epochs_old ? current - recent->current <= epochs_old
                             : recent->current == current && recent->clean == clean;
    if (heap->caches.count > SUMS_FEW_THREADS && recent->current && is_new)
        return recent;
    struct cached_sums cached = thread_caches_sum(heap);
    *recent = (struct recent_sums){
        .current = current,
        .clean = clean,
        .pending_bytes = cached.pending_bytes,
        .pending_slots = cached.pending_slots,
        .requested = requested_bytes(heap, cached.requested_out),
        .freeing = cached.freeing,
    };
    atomic_store_explicit(&heap->threads_freeing, cached.freeing, memory_order_relaxed);
    heap_note_requested(heap, recent->requested);
    return recent;
}

uint64_t heap_kept_bytes(struct heap *heap)
{
    heap_lock_must_be_held(heap);
    uint64_t held = counter_get(&heap->reserved_bytes);
    uint64_t requested = heap_recent_sums(heap, 0)->requested;
    return rest_of(held, requested + counter_get(&heap->counters->segments.spare_bytes));
}

uint64_t heap_free_blocks(const struct heap *heap, const struct bucket *bucket)
{
    heap_lock_must_be_held(heap);
    uint64_t most = bucket->free_blocks + device_bucket(bucket)->granted_to_caches;
    if (most < heap->blocks_per_bucket)
        return most;
    return bucket->free_blocks + thread_caches_blocks(heap, bucket, NULL, false);
}

uint64_t heap_newest_pending(const struct heap *heap)
{
    heap_lock_must_be_held(heap);
    uint64_t listed = heap->pending.last ? counter_get(&heap->pending.last->epoch) : 0;
    uint64_t cached = thread_caches_newest_stamp(heap);
    return larger_of(listed, cached);
}

void heap_raise_peaks(struct heap *heap, const struct bucket *bucket)
{
    heap_lock_must_be_held(heap);
    struct bucket_counters *counters = bucket->counters;
    heap->unseen_bytes = 0;
    uint64_t free = counter_get(&counters->free_bytes);
    if (device_bucket(bucket)->bin != CACHE_NO_BIN)
        free += thread_caches_blocks(heap, bucket, NULL, false) * bucket->bytes;
    uint64_t reserved = counter_get(&counters->reserved_bytes);
    uint64_t requested = requested_bytes(heap, thread_caches_requested_out(heap));
    heap_note_requested(heap, requested);
    counter_raise_to(&counters->peak_live_bytes, rest_of(reserved, free));
}

void thread_cache_note_peaks(struct thread_cache *cache, const struct cache_bin *bin)
{
    struct heap *heap = cache->heap;
    cache_follow_live(cache);
    if (cache_raises_no_peak(cache, counter_get(&cache->requested_out)))
        return;
    heap_lock(heap);
    const struct bucket *bucket = cache_bin_bucket(bin);
    heap_raise_peaks(heap, bucket ? bucket : &heap->unkept.bucket);
    heap_unlock(heap);
    counter_set(&cache->live_noted_up_to, INT64_MAX);
    cache_follow_live(cache);
}

void heap_count_live(struct heap *heap, struct block *block)
{
    heap_lock_must_be_held(heap);
    counter_add(&heap->live_requested, counter_get(&block->requested));
    heap->unseen_bytes += block->bytes;
    if (heap->caches.count <= SUMS_FEW_THREADS || heap->unseen_bytes >= SUMS_STEP)
        heap_raise_peaks(heap, block->bucket);
}

static void count_clean_of_bin(struct cache_bin *bin, uint64_t clean)
{
    uint64_t frees = counter_get(&bin->counters->frees);
    counter_raise_to(&bin->counters->not_pending, frees - pending_blocks(bin, clean));
}

void thread_caches_count_clean(struct heap *heap)
{
    uint64_t clean = heap_clean_epoch(heap);
    for (struct thread_cache *c = thread_caches_first(heap); c; c = thread_cache_next(c))
        for (unsigned i = 0; i < CACHE_BINS; i++) {
            struct cache_bin *bin = atomic_load_explicit(&c->bins[i], memory_order_acquire);
            if (cache_bin_bucket(bin))
                count_clean_of_bin(bin, clean);
        }
    counter_raise_to(&heap->counters->peak_requested, heap_bytes(heap).requested);
}
