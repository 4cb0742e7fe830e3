#include "heap.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/mutation.h"
#include "core/base/size_class.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/surroundings.h"
#include "core/driver/calls.h"
#include "core/reclaim/reclaim.h"
#include "core/reclaim/room.h"
#include "release.h"
#include "thread_cache.h"

/* A fence serves the frees before it as well, so not every free records one: at most so many frees
 * go without, or device->fence_bytes. A block of so many bytes has a fence of its own. Twice as
 * much of either while one thread uses the heap: no other waits for what it has freed; and while
 * the GPU keeps up: then nothing has to wait. */
#define FENCE_EVERY_FREES 16u

/* While the GPU keeps up, this part of what a thread's cache may hold goes without a fence. */
#define FENCE_SHARE 2u

/* This share of the growth budget may lie clean in other threads' caches, in blocks of one size,
 * while a thread takes a new one: sooner or later each has its own. */
#define STRANDED_SHARE 4u

/* With more threads than so many, all caches are not looked through at each step of a slow path;
 * who the others are does not change in so many epochs. */
#define FEW_THREADS 2u
#define EPOCHS_OLD  2u

/* A lone thread that has so many blocks of a size waits for them rather than that it takes each
 * behind a barrier. */
#define BLOCKS_WORTH_A_WAIT 64u

/* So long a thread leaves it to another to close an epoch: nanoseconds. */
#define RELIED_NANOSECONDS 30000u

#define COST_OF_A_BARRIER 500 /* nanoseconds */

/* What is pending may be missed where it is more than this share of what is left besides. */
#define MISSED_SHARE 8u

/* How long frees wait after an allocation has waited in vain, at first and at most: nanoseconds. */
#define FREES_WAIT_FIRST   (UINT64_C(10) * 1000 * 1000 * 1000)
#define FREES_WAIT_LONGEST (UINT64_C(600) * 1000 * 1000 * 1000)

/* Blocks that somebody could do without take at most one part in so many of the time. */
#define GROWTH_SHARE 16u

/* Of the driver's call for a new block: nanoseconds. */
#define LEAST_COST_OF_GROWTH 10000

/* So often it is tried to sum up caches without the lock while their list changes. */
#define LISTING_TRIES 100u

/* Looks at what others have published before the clock is looked at, and so often that before
 * others get the processor. */
#define LOOKS_PER_ROUND  16u
#define ROUNDS_PER_YIELD 4u

/* ---- buckets; the heap lock is held from here down to the ladder ---- */

static uint32_t first_slot(uint64_t bytes, uint32_t slots)
{
    /* Fibonacci hashing: the sizes are multiples of large powers of two. */
    return (uint32_t)((bytes * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (slots - 1);
}

/* The place of this size, which may be empty. */
static _Atomic(struct bucket *) *find_place(struct bucket_table *table, uint64_t bytes)
{
    uint32_t i = first_slot(bytes, table->slots);
    struct bucket *bucket;
    while ((bucket = atomic_load_explicit(&table->buckets[i], memory_order_relaxed)) != NULL &&
           bucket->bytes != bytes)
        i = (i + 1) & (table->slots - 1);
    return &table->buckets[i];
}

static struct bucket_table *make_table(uint32_t slots, struct bucket_table *previous)
{
    struct bucket_table *table = calloc(1, sizeof *table + slots * sizeof table->buckets[0]);
    if (table) {
        table->slots = slots;
        table->previous = previous;
    }
    return table;
}

/* The old table stays: the report may be reading it. */
static bool grow_table(struct heap *heap)
{
    struct bucket_table *old = atomic_load_explicit(&heap->table, memory_order_relaxed);
    struct bucket_table *table = make_table(2 * old->slots, old);
    if (!table)
        return false;
    for (uint32_t i = 0; i < old->slots; i++) {
        struct bucket *bucket = atomic_load_explicit(&old->buckets[i], memory_order_relaxed);
        if (bucket)
            atomic_store_explicit(find_place(table, bucket->bytes), bucket, memory_order_relaxed);
    }
    /* Pairs with the acquire load in heap_visit_buckets. */
    atomic_store_explicit(&heap->table, table, memory_order_release);
    return true;
}

static struct bucket_table *table_of(struct heap *heap)
{
    return atomic_load_explicit(&heap->table, memory_order_relaxed);
}

static bool bucket_init(struct heap *heap, struct bucket *bucket, uint64_t bytes)
{
    bucket->bytes = bytes;
    bucket->counters = figures_bucket(heap->figures, KIND_DEVICE, heap->id, heap->device, bytes);
    return bucket->counters != NULL;
}

static struct bucket *add_bucket(struct heap *heap, uint64_t bytes)
{
    if (heap->bucket_count >= HEAP_BUCKETS_MAX)
        return NULL;
    if (2 * heap->bucket_count >= table_of(heap)->slots && !grow_table(heap))
        return NULL;
    struct bucket *bucket = calloc(1, sizeof *bucket);
    if (!bucket || !bucket_init(heap, bucket, bytes)) {
        free(bucket);
        return NULL;
    }
    bucket->bin = bytes <= CACHE_LARGEST && heap->bins < CACHE_NO_BIN ? heap->bins++ : CACHE_NO_BIN;
    /* Pairs with the acquire load in heap_visit_buckets. */
    atomic_store_explicit(find_place(table_of(heap), bytes), bucket, memory_order_release);
    heap->bucket_count++;
    return bucket;
}

bool heap_init(struct pool *pool, struct context *context)
{
    struct heap *heap = heap_of(context);
    const struct device_settings *settings = &pool->settings.device;
    heap->alone = HEAP_ALONE;
    heap->figures = &pool->figures;
    heap->id = context->figures_id;
    heap->device = context->device->ordinal;
    heap->counters = context->counters;
    heap->blocks_per_bucket = settings->caps.blocks_per_bucket;
    bucket_settings_resolve(&settings->buckets, context->device->total_bytes, &heap->classes);
    atomic_init(&heap->closed, (settings->free_synchronizes ? CLOSED_SYNCHRONISING : 0u) |
                                   (pool->expedited ? 0u : CLOSED_WEAKLY));
    struct bucket_table *table = make_table(64, NULL);
    atomic_init(&heap->table, table);
    heap->unkept.bin = CACHE_NO_BIN;
    return table != NULL && bucket_init(heap, &heap->unkept, 0);
}

/* The bucket of this block size; the one of blocks that are not kept where it can't be made. */
static struct bucket *get_bucket(struct heap *heap, uint64_t bytes)
{
    struct bucket *bucket =
        atomic_load_explicit(find_place(table_of(heap), bytes), memory_order_relaxed);
    if (!bucket)
        bucket = add_bucket(heap, bytes);
    return bucket ? bucket : &heap->unkept;
}

void heap_visit_buckets(struct heap *heap, void (*visit)(struct bucket *, void *), void *argument)
{
    struct bucket_table *table = atomic_load_explicit(&heap->table, memory_order_acquire);
    for (uint32_t i = 0; i < table->slots; i++) {
        struct bucket *bucket = atomic_load_explicit(&table->buckets[i], memory_order_acquire);
        if (bucket)
            visit(bucket, argument);
    }
    visit(&heap->unkept, argument);
}

/* ---- blocks coming and going ---- */

static inline void note_user(struct pool *pool, struct heap *heap)
{
    uint64_t self = thread_id(pool);
    if (__builtin_expect(heap->user != self, 0)) {
        /* The very first user is alone from the start. */
        heap->alone = heap->user ? 0 : HEAP_ALONE;
        heap->user = self;
    } else if (__builtin_expect(heap->alone < HEAP_ALONE, 0)) {
        heap->alone++;
    }
}

/* The thread is known: note_user has been called. */
static uint8_t slot_of_this_thread(void)
{
    return (uint8_t)(thread_state.id % HEAP_SLOTS);
}

static void count_pending(struct heap *heap, struct block *block)
{
    uint64_t *pending = &heap->pending_of[block->slot];
    heap->slots_pending += *pending == 0;
    *pending += block->bytes;
    heap->pending_slots |= UINT64_C(1) << block->slot;
}

static void count_no_longer_pending(struct heap *heap, struct block *block)
{
    uint64_t *pending = &heap->pending_of[block->slot];
    *pending -= block->bytes;
    heap->slots_pending -= *pending == 0;
    heap->pending_slots &= ~((uint64_t)(*pending == 0) << block->slot);
}

static inline void take_pending(struct heap *heap, struct block *block)
{
    block_list_remove(&block->bucket->pending, block, LINK_BUCKET);
    block_list_remove(&heap->pending, block, LINK_HEAP);
    counter_subtract(&heap->pending_bytes, block->bytes);
    count_no_longer_pending(heap, block);
}

static inline void take_clean(struct heap *heap, struct block *block)
{
    block_list_remove(&block->bucket->clean, block, LINK_BUCKET);
    counter_subtract(&block->bucket->counters->clean_bytes, block->bytes);
    counter_subtract(&heap->clean_bytes, block->bytes);
}

__attribute__((always_inline)) static inline void detach_free(struct heap *heap,
                                                              struct block *block)
{
    if (block_state(block) == BLOCK_CLEAN)
        take_clean(heap, block);
    else
        take_pending(heap, block);
    block->bucket->free_blocks--;
    counter_subtract(&block->bucket->counters->free_bytes, block->bytes);
}

void heap_detach_free(struct heap *heap, struct block *block)
{
    detach_free(heap, block);
}

void heap_begin_leaving(struct heap *heap, struct block *block)
{
    counter_subtract(&block->bucket->counters->reserved_bytes, block->bytes);
    heap_detach_free(heap, block);
    block_set_state(block, BLOCK_LEAVING);
}

void heap_count_back(struct block *block)
{
    struct bucket *bucket = block->bucket;
    bucket->free_blocks++;
    counter_add(&bucket->counters->free_bytes, block->bytes);
    counter_add(&bucket->counters->reserved_bytes, block->bytes);
}

void heap_add_clean(struct heap *heap, struct block *block)
{
    struct bucket *bucket = block->bucket;
    block_set_state(block, BLOCK_CLEAN);
    block_list_append(&bucket->clean, block, LINK_BUCKET);
    counter_add(&bucket->counters->clean_bytes, block->bytes);
    counter_add(&heap->clean_bytes, block->bytes);
}

/* Nothing is counted twice: see thread_caches_requested_back. Otherwise the peak would rise, and
 * the reserve with it, as often as a thread that looks is held up between two looks. */
static uint64_t requested_bytes(const struct heap *heap, uint64_t handed_out)
{
    uint64_t live = handed_out + counter_get(&heap->live_requested);
    uint64_t reserved = counter_get(&heap->reserved_bytes);
    live -= MUTATED(taken_back_not_counted) ? 0 : thread_caches_requested_back(heap);
    /* A block may have changed hands between two looks: less than nothing is nothing. */
    if ((int64_t)live < 0)
        return 0;
    return live < reserved ? live : reserved;
}

static struct heap_bytes sum_bytes(const struct heap *heap)
{
    struct cached_sums cached = thread_caches_sum(heap);
    if (MUTATED(cached_pending_not_counted))
        cached.pending_bytes = 0;
    return (struct heap_bytes){
        .clean = counter_get(&heap->clean_bytes) + cached.free_bytes - cached.pending_bytes,
        .pending = counter_get(&heap->pending_bytes) + cached.pending_bytes,
        .requested = requested_bytes(heap, cached.requested_out),
    };
}

/* Where caches fall asleep or wake meanwhile, what the program holds might count twice. */
struct heap_bytes heap_bytes(const struct heap *heap)
{
    const counter *listings = &heap->caches.listings;
    for (unsigned tries = 0;; tries++) {
        /* Acquire, and a fence: pair with those in begin_listing and end_listing. */
        uint64_t before = atomic_load_explicit(listings, memory_order_acquire);
        struct heap_bytes bytes = sum_bytes(heap);
        counter_fence(memory_order_acquire);
        if ((before % 2 == 0 && counter_get(listings) == before) || tries == LISTING_TRIES)
            return bytes;
    }
}

/* Lock held. Each look costs every thread a cache line or two, so what was seen so many epochs ago
 * will do; 0: what is pending must be of now. */
static const struct lately *look_around(struct heap *heap, uint64_t old)
{
    const struct epochs *epochs = &context_of_heap(heap)->epochs;
    struct lately *lately = &heap->lately;
    uint64_t current = epoch_current(epochs), clean = epoch_clean(epochs);
    bool is_new = old ? current - lately->current <= old
                      : lately->current == current && lately->clean == clean;
    if (heap->caches.count > FEW_THREADS && lately->current && is_new)
        return lately;
    struct cached_sums cached = thread_caches_sum(heap);
    *lately = (struct lately){
        .current = current,
        .clean = clean,
        .pending_bytes = MUTATED(cached_pending_not_counted) ? 0 : cached.pending_bytes,
        .pending_slots = cached.pending_slots,
        .requested = requested_bytes(heap, cached.requested_out),
        .freeing = cached.freeing,
    };
    atomic_store_explicit(&heap->freeing, cached.freeing, memory_order_relaxed);
    counter_raise_to(&heap->counters->peak_requested, lately->requested);
    return lately;
}

/* The peaks are those that a slow path has seen. */
static void raise_peaks(struct heap *heap, const struct bucket *bucket)
{
    struct bucket_counters *counters = bucket->counters;
    uint64_t free = counter_get(&counters->free_bytes);
    if (bucket->bin != CACHE_NO_BIN)
        free += thread_caches_blocks(heap, bucket, NULL, false) * bucket->bytes;
    uint64_t reserved = counter_get(&counters->reserved_bytes);
    uint64_t requested = requested_bytes(heap, thread_caches_requested_out(heap));
    counter_raise_to(&heap->counters->peak_requested, requested);
    counter_raise_to(&counters->peak_live_bytes, reserved > free ? reserved - free : 0);
}

static void count_live(struct heap *heap, struct block *block)
{
    counter_add(&heap->live_requested, counter_get(&block->requested));
    if (heap->caches.count <= FEW_THREADS)
        raise_peaks(heap, block->bucket);
}

void heap_forget_block(struct pool *pool, struct heap *heap, struct block *block)
{
    struct device *device = context_of_heap(heap)->device;
    if (block_state(block) != BLOCK_LEAVING)
        counter_subtract(&block->bucket->counters->reserved_bytes, block->bytes);
    if (block_state(block) == BLOCK_LIVE)
        counter_subtract(&heap->live_requested, counter_get(&block->requested));
    else if (block_state(block) != BLOCK_LEAVING)
        heap_detach_free(heap, block);
    counter_subtract(&heap->reserved_bytes, block->bytes);
    block_table_remove(&pool->blocks, block_address(block), block);
    /* Relaxed: a number that is compared with limits, and orders nothing. */
    atomic_fetch_sub_explicit(&device->reserved_bytes, block->bytes, memory_order_relaxed);
    block_records_put(&heap->records, block);
}

/* Gives a free block to the program: of a list, or just taken out of a thread's cache. */
static void hand_out(struct heap *heap, struct block *block, size_t bytes, enum hit hit)
{
    struct bucket_counters *counters = block->bucket->counters;
    if (block_state(block) != BLOCK_CACHED)
        detach_free(heap, block);
    counter_set(&block->requested, bytes);
    block_set_state(block, BLOCK_LIVE);
    if (__builtin_expect(heap->keep.vain != 0, 0)) {
        keep_note_hit(&heap->keep, block->bytes);
        heap_look_at_caches(heap);
    }
    counter_add(&counters->requested_bytes, bytes);
    count_live(heap, block);
    counter_add(&counters->hits[hit], 1);
}

static void make_clean(struct heap *heap, struct block *block)
{
    take_pending(heap, block);
    heap_add_clean(heap, block);
}

void heap_sweep(struct context *context)
{
    struct heap *heap = heap_of(context);
    uint64_t clean = epoch_clean(&context->epochs) + MUTATED(swept_one_early);
    while (heap->pending.first && counter_get(&heap->pending.first->epoch) <= clean)
        make_clean(heap, heap->pending.first);
}

/* Lists of pending blocks ascend by stamp. What comes from a thread's cache is seldom much older
 * than what is there. */
static void insert_pending(struct block_list *list, struct block *block, enum block_link link)
{
    uint64_t stamp = counter_get(&block->epoch);
    struct block *before = list->last;
    while (before && counter_get(&before->epoch) > stamp)
        before = before->links[link].previous;
    block_list_insert_after(list, before, block, link);
}

/* The blocks of a segment come one after the other: where the last one went, the next one goes. */
static void insert_by_stamp(struct heap *heap, struct block *block)
{
    struct block *last = heap->accepted;
    bool is_next =
        last && block_state(last) == BLOCK_PENDING && last->bucket == block->bucket &&
        (counter_get(&last->epoch) == counter_get(&block->epoch) || MUTATED(segments_out_of_order));
    if (is_next) {
        block_list_insert_after(&block->bucket->pending, last, block, LINK_BUCKET);
        block_list_insert_after(&heap->pending, last, block, LINK_HEAP);
    } else {
        insert_pending(&block->bucket->pending, block, LINK_BUCKET);
        insert_pending(&heap->pending, block, LINK_HEAP);
    }
    heap->accepted = block;
}

static void note_free_block(struct heap *heap, const struct block *block)
{
    struct bucket *bucket = block->bucket;
    if (++bucket->free_blocks + bucket->granted > heap->blocks_per_bucket)
        heap->crowded = true;
    counter_add(&bucket->counters->free_bytes, block->bytes);
}

static void accept_pending(struct heap *heap, struct block *block)
{
    insert_by_stamp(heap, block);
    block_set_state(block, BLOCK_PENDING);
    counter_add(&heap->pending_bytes, block->bytes);
    count_pending(heap, block);
    if (counter_get(&block->epoch) == epoch_current(&context_of_heap(heap)->epochs)) {
        heap->frees_since_fence++;
        heap->bytes_since_fence += block->bytes;
    }
}

void heap_accept(struct heap *heap, struct block *block, uint8_t slot)
{
    block->slot = slot;
    note_free_block(heap, block);
    if (counter_get(&block->epoch) <= epoch_clean(&context_of_heap(heap)->epochs))
        heap_add_clean(heap, block);
    else
        accept_pending(heap, block);
}

uint64_t heap_newest_pending(const struct heap *heap)
{
    uint64_t listed = heap->pending.last ? counter_get(&heap->pending.last->epoch) : 0;
    uint64_t cached = thread_caches_newest_stamp(heap);
    return listed > cached ? listed : cached;
}

/* Sequentially consistent, like the looks at it. */
static void set_closed(struct heap *heap, uint32_t bit, bool set)
{
    bool is_set = (atomic_load(&heap->closed) & bit) != 0;
    if (set && !is_set)
        atomic_fetch_or(&heap->closed, bit);
    else if (is_set && !set)
        atomic_fetch_and(&heap->closed, ~bit);
}

void heap_look_at_caches(struct heap *heap)
{
    bool was_wary = heap->wary;
    set_closed(heap, CLOSED_ENDING, heap->ending);
    set_closed(heap, CLOSED_FINE, heap->fine);
    set_closed(heap, CLOSED_HOST_WORK,
               host_work_limit(&context_of_heap(heap)->epochs.host_work) != UINT64_MAX);
    heap->wary = keep_is_on_trial(&heap->keep) || heap->keep.vain;
    if (heap->wary && !was_wary)
        thread_caches_shut_large(heap);
}

uint64_t heap_peak_requested(const struct heap *heap)
{
    uint64_t peak = heap_counters_peak(heap->counters), now = heap_bytes(heap).requested;
    return peak > now ? peak : now;
}

struct forgetting {
    struct pool *pool;
    struct heap *heap;
};

static void forget_visited(struct block *block, void *argument)
{
    struct forgetting *forgetting = argument;
    struct bucket_counters *counters = block->bucket->counters;
    bool live = block_state(block) == BLOCK_LIVE;
    heap_forget_block(forgetting->pool, forgetting->heap, block);
    if (live && !MUTATED(lost_blocks_live_on))
        bucket_count_lost(counters);
    else
        counter_add(&counters->evictions[EVICTION_CONTEXT], 1);
}

void heap_set_ending(struct heap *heap, bool ending)
{
    heap_lock(heap);
    heap->ending = ending;
    heap->unusual = heap->fine || ending;
    heap_look_at_caches(heap);
    if (ending && !MUTATED(caches_open_at_the_end))
        thread_caches_wait(heap);
    heap_unlock(heap);
}

void heap_reset(struct pool *pool, struct context *context)
{
    struct heap *heap = heap_of(context);
    struct forgetting forgetting = {pool, heap};
    if (MUTATED(dead_blocks_kept))
        return;
    heap_lock(heap);
    if (!MUTATED(death_misses_caches))
        thread_caches_collect(heap);
    block_records_visit(&heap->records, forget_visited, &forgetting);
    epoch_reset(&context->epochs);
    heap->frees_since_fence = 0;
    heap->bytes_since_fence = 0;
    counter_set(&heap->counters->earlier_peak, heap_peak_requested(heap));
    counter_set(&heap->counters->peak_requested, 0);
    keep_reset(&heap->keep);
    heap_look_at_caches(heap);
    heap_unlock(heap);
}

/* ---- the ladder; the heap lock is held, and released where the functions below say so ---- */

/* Where an allocation looks: a bucket, and what the thread's cache has of it. */
struct place {
    struct bucket *bucket;
    struct thread_cache *cache; /* NULL: there is none */
    struct cache_bin *bin;      /* NULL: there is none, or it is closed and empty */
};

static bool keeps_up(const struct heap *heap)
{
    return epoch_keeps_up(&context_of_heap(heap)->epochs);
}

static uint32_t fence_frees(const struct heap *heap)
{
    uint32_t frees = heap->caches.most_blocks / FENCE_SHARE;
    return frees > 1 ? frees : 1;
}

static unsigned halvings_for(unsigned threads)
{
    return threads > 1 ? 32u - (unsigned)__builtin_clz(threads - 1) : 0;
}

/* While the GPU keeps up, a thread needs no fence before half of the blocks that a bin may hold
 * wait for one: the other half lasts until then. All that are awake together may free as many bytes
 * as one: those that have not freed lately may begin at once. */
static void refresh_cache(struct heap *heap, struct thread_cache *cache)
{
    unsigned alone = heap->alone == HEAP_ALONE, caches = heap->caches.count;
    thread_cache_fit(cache);
    cache->kept_up = keeps_up(heap);
    uint32_t frees = cache->kept_up ? fence_frees(heap) : FENCE_EVERY_FREES << alone;
    /* As many bytes as without caches: what has no fence can neither be given back nor be waited
     * for, where an allocation needs it. */
    thread_cache_set_fence(cache, frees, alone, halvings_for(caches));
}

static bool is_for_caches(const struct heap *heap, const struct bucket *bucket)
{
    return bucket->bin != CACHE_NO_BIN &&
           !(atomic_load_explicit(&heap->closed, memory_order_relaxed) &
             (CLOSED_SYNCHRONISING | CLOSED_UNUSABLE));
}

/* This thread's. What it has cached while the heap wants it otherwise goes to the heap. */
static struct place find_place_of_thread(struct pool *pool, struct heap *heap,
                                         struct bucket *bucket, size_t request)
{
    struct place place = {bucket, NULL, NULL};
    if (is_for_caches(heap, bucket))
        place.cache = thread_cache_of_this_thread(pool, heap);
    if (!place.cache)
        return place;
    if (place.cache->shares != heap->caches.count || place.cache->kept_up != keeps_up(heap))
        refresh_cache(heap, place.cache);
    if (heap->wary && bucket->bytes >= KEEP_LARGE_BYTES)
        return place;
    place.bin = thread_cache_bin(place.cache, bucket, request);
    if (place.bin && heap->unusual) {
        thread_cache_empty_bin(place.cache, place.bin);
        place.bin = NULL;
    }
    return place;
}

/* One that the thread's cache has comes first: its memory is the likeliest to be in the GPU's
 * cache. */
static struct block *newest_clean(const struct place *place)
{
    struct block *cached = place->bin ? thread_cache_pop(place->cache, place->bin) : NULL;
    if (cached)
        return cached;
    if (MUTATED(pending_as_clean) && !place->bucket->clean.last)
        return place->bucket->pending.last;
    return place->bucket->clean.last;
}

/* 0: none is pending. */
static uint64_t oldest_stamp(const struct place *place)
{
    const struct block *listed = place->bucket->pending.first;
    uint64_t stamp = listed ? counter_get(&listed->epoch) : UINT64_MAX;
    uint64_t cached = place->bin ? thread_cache_oldest_stamp(place->bin) : 0;
    if (cached && cached < stamp)
        stamp = cached;
    return stamp == UINT64_MAX ? 0 : stamp;
}

static void empty_bin(const struct place *place)
{
    if (place->bin)
        thread_cache_empty_bin(place->cache, place->bin);
}

/* Threads that take and free without the lock are seen by what they free. */
static bool barriers_may_be_used(struct pool *pool, struct heap *heap)
{
    bool others = heap->caches.count > 1 && look_around(heap, EPOCHS_OLD)->freeing > 1 &&
                  !MUTATED(hidden_thread_forgotten);
    bool alone = heap->alone == HEAP_ALONE && !others && launches_alone(pool);
    return (alone || MUTATED(barrier_beside_threads)) && barriers_are_open(pool);
}

/* A pending block that a barrier raised earlier covers. */
static struct block *take_behind_barrier(struct pool *pool, struct context *context,
                                         const struct place *place)
{
    uint64_t stamp = oldest_stamp(place);
    uint64_t barrier = context->epochs.barrier + MUTATED(barrier_covers_one_more);
    if (!stamp || stamp > barrier || !barriers_are_open(pool))
        return NULL;
    empty_bin(place);
    return place->bucket->pending.first;
}

/* Releases and retakes the lock. */
static void query_for(struct pool *pool, struct context *context, uint64_t stamp)
{
    if (epoch_is_asked_about(&context->epochs))
        epoch_await_others(context, stamp);
    struct fence *fence = epoch_fence_for(&context->epochs, stamp, false);
    if (fence && stamp > epoch_clean(&context->epochs))
        epoch_query(pool, context, fence);
}

static struct block *wait_for_one(struct pool *pool, struct context *context,
                                  const struct place *place, enum hit *hit)
{
    struct bucket *bucket = place->bucket;
    struct block *first = bucket->pending.first;
    if (barriers_may_be_used(pool, heap_of(context))) {
        struct fence *fence = epoch_fence_for(&context->epochs, counter_get(&first->epoch), true);
        *hit = HIT_BARRIER;
        if (fence && pool->driver->cuCtxWaitEvent)
            epoch_raise_barrier(pool, context, fence);
        struct block *clean = newest_clean(place);
        return clean ? clean : take_behind_barrier(pool, context, place);
    }
    *hit = HIT_WAITED;
    if (MUTATED(wait_left_out))
        return first;
    /* Others may be faster: after a few lost races the driver is asked. */
    for (int tries = 0; tries < 4 && bucket->pending.first; tries++) {
        if (!epoch_wait_in_allocation(pool, context, counter_get(&bucket->pending.first->epoch)))
            return NULL;
        struct block *clean = newest_clean(place);
        if (clean)
            return clean;
    }
    return NULL;
}

/* For a moment, without a look at others' blocks. Releases and retakes the lock. */
static struct block *wait_in_place(struct pool *pool, struct context *context,
                                   const struct place *place, enum hit *hit)
{
    *hit = HIT_WAITED;
    bool over = epoch_wait_a_moment(pool, context, oldest_stamp(place));
    return over && !heap_of(context)->ending ? newest_clean(place) : NULL;
}

/* Whether the reserve stays inside its ratio. */
static bool is_inside_bound(const struct pool *pool, struct context *context, uint64_t bytes)
{
    uint64_t requested = look_around(heap_of(context), 0)->requested;
    return counter_get(&heap_of(context)->reserved_bytes) + bytes <=
           release_bound(pool, context, requested, bytes);
}

uint64_t heap_free_blocks(const struct heap *heap, const struct bucket *bucket)
{
    uint64_t most = bucket->free_blocks + bucket->granted;
    if (most < heap->blocks_per_bucket)
        return most;
    return bucket->free_blocks + thread_caches_blocks(heap, bucket, NULL, false);
}

/* What the heap has that the program does not hold. */
static uint64_t kept_now(struct heap *heap)
{
    uint64_t held = counter_get(&heap->reserved_bytes);
    uint64_t requested = look_around(heap, 0)->requested;
    return held > requested ? held - requested : 0;
}

/* Whether a new block would have something else given back, now or when it is freed. */
static bool is_one_for_another(struct context *context, const struct bucket *bucket)
{
    const struct heap *heap = heap_of(context);
    uint64_t bytes = bucket->bytes;
    const struct device *device = context->device;
    uint64_t reserved = atomic_load_explicit(&device->reserved_bytes, memory_order_relaxed);
    return (reserved + bytes > device->limit ||
            kept_now(heap_of(context)) + bytes > device->cached_cap ||
            heap_free_blocks(heap, bucket) >= heap->blocks_per_bucket) &&
           !MUTATED(limits_ignored_in_growth);
}

/* Whether a new block keeps what is pending inside the growth budget, too. */
static bool may_grow(struct pool *pool, struct context *context, const struct bucket *bucket)
{
    struct heap *heap = heap_of(context);
    uint64_t pending = counter_get(&heap->pending_bytes) + look_around(heap, 0)->pending_bytes;
    return (pending <= context->device->growth_budget || MUTATED(budget_ignored)) &&
           is_inside_bound(pool, context, bucket->bytes) && !is_one_for_another(context, bucket);
}

/* Rung 2. Releases and retakes the lock. */
static struct block *query(struct pool *pool, struct context *context, const struct place *place,
                           enum hit *hit)
{
    if (!oldest_stamp(place))
        return NULL;
    struct block *block = take_behind_barrier(pool, context, place);
    *hit = HIT_BARRIER;
    if (block)
        return block;
    query_for(pool, context, oldest_stamp(place));
    *hit = HIT_QUERIED;
    if (heap_of(context)->ending)
        return NULL;
    return newest_clean(place);
}

/* Whether there is something pending that a fence covers, or will soon. */
static bool can_wait(const struct context *context, const struct place *place)
{
    const struct epochs *epochs = &context->epochs;
    uint64_t stamp = oldest_stamp(place);
    return stamp && (epoch_fence_is_near(epochs) || epoch_fence_for(epochs, stamp, true));
}

/* Whether other threads' caches have what this one would have to ask the driver for, or, where the
 * reserve may not grow, to wait for: clean blocks, or any where it has nothing to wait for. */
static bool others_have_some(struct context *context, const struct place *place, bool grows)
{
    struct heap *heap = heap_of(context);
    bool plenty = grows && !device_is_short(context->device) &&
                  kept_now(heap_of(context)) <= context->device->cached_cap / 2;
    uint64_t most = plenty ? context->device->growth_budget / STRANDED_SHARE : 0;
    bool waits = can_wait(context, place), clean = plenty || waits;
    if (waits &&
        (keeps_up(heap) || counter_get(&heap->now) < place->bucket->taken_at + CACHE_TAKEN_APART))
        return false;
    uint64_t blocks = thread_caches_blocks(heap, place->bucket, place->cache, clean);
    return blocks * place->bucket->bytes > most;
}

/* Whether the reserve may grow rather than that the thread waits. */
static bool grows(struct pool *pool, struct context *context, const struct place *place)
{
    uint64_t bytes = place->bucket->bytes;
    return oldest_stamp(place) ? may_grow(pool, context, place->bucket)
                               : is_inside_bound(pool, context, bytes) &&
                                     !is_one_for_another(context, place->bucket);
}

/* Nanoseconds. */
static int64_t cost_of_growth(const struct heap *heap)
{
    int64_t lately = (int64_t)counter_get(&heap->miss_ns);
    return lately > LEAST_COST_OF_GROWTH ? lately : LEAST_COST_OF_GROWTH;
}

/* A new block takes the driver's lock for long, and every fence waits for it: where others wait for
 * those, and a wait is short, blocks that somebody could do without come one at a time, and take no
 * more than a small part of the time. */
static bool growth_is_due(const struct heap *heap, uint64_t now)
{
    uint64_t since = now - counter_get(&heap->missed_at);
    return heap->caches.count <= 1 || !keeps_up(heap) || MUTATED(growth_at_any_time) ||
           (atomic_load_explicit(&heap->missing, memory_order_relaxed) == 0 &&
            since / GROWTH_SHARE >= counter_get(&heap->miss_ns));
}

/* Whether much lies in the heap's lists, which threads that use it would have in their caches: then
 * some of it may be given back for a block of a size that is wanted. */
static bool may_be_traded(struct context *context, const struct bucket *bucket)
{
    const struct heap *heap = heap_of(context);
    uint64_t budget = context->device->growth_budget;
    uint64_t unused = counter_get(&heap->clean_bytes);
    uint64_t own = counter_get(&bucket->counters->clean_bytes);
    return unused - own > budget / STRANDED_SHARE && counter_get(&heap->pending_bytes) <= budget &&
           !is_one_for_another(context, bucket);
}

/* Whether this thread has waited for as long as a new block would have taken; then it takes one. */
static bool has_waited_enough(struct pool *pool, struct context *context, const struct place *place)
{
    struct thread_cache *cache = place->bin ? place->cache : NULL;
    if (!cache || cache->waited < cost_of_growth(heap_of(context)) ||
        !growth_is_due(heap_of(context), monotonic_now()))
        return false;
    /* Of a device that is full the driver has no more: what is kept would go for it. */
    bool grows = (!device_is_short(context->device) || MUTATED(short_device_grows)) &&
                 (may_grow(pool, context, place->bucket) || may_be_traded(context, place->bucket));
    cache->waited = grows ? 0 : -(int64_t)CACHE_WAIT_NO_GROWTH;
    return grows;
}

/* As in a program that only allocates: there is nothing to ask about. Of many threads' caches that
 * is not looked up for each block. */
static bool nobody_has_one(const struct heap *heap, const struct bucket *bucket)
{
    return bucket->free_blocks == 0 && heap->caches.count <= FEW_THREADS &&
           thread_caches_blocks(heap, bucket, NULL, false) == 0;
}

/* Rungs 2 to 4: a block that is not known to be unused yet, or NULL for a new one. Releases and
 * retakes the lock. */
static struct block *climb(struct pool *pool, struct context *context, const struct place *place,
                           enum hit *hit)
{
    struct heap *heap = heap_of(context);
    if (has_waited_enough(pool, context, place) || nobody_has_one(heap, place->bucket))
        return NULL;
    struct block *block = query(pool, context, place, hit);
    if (block || heap->ending)
        return block;
    if (others_have_some(context, place, grows(pool, context, place))) {
        thread_caches_take(heap, place->bucket, !can_wait(context, place));
        *hit = HIT_CLEAN;
        block = newest_clean(place);
        if (!block)
            block = query(pool, context, place, hit);
        if (block || heap->ending)
            return block;
    }
    if (!oldest_stamp(place))
        return NULL;
    if (may_grow(pool, context, place->bucket))
        return growth_is_due(heap, monotonic_now()) ? NULL
                                                    : wait_in_place(pool, context, place, hit);
    if (place->cache)
        place->cache->waited = -(int64_t)CACHE_WAIT_NO_GROWTH;
    if (place->bin && !keeps_up(heap) && heap->caches.count > 1)
        thread_caches_share(heap, place->bucket);
    empty_bin(place);
    block = newest_clean(place);
    if (!block && place->bucket->pending.first)
        block = wait_for_one(pool, context, place, hit);
    if (!heap->ending)
        return block;
    /* It was the cache's, and comes to the heap. */
    if (block && place->cache && block_state(block) == BLOCK_CACHED)
        heap_accept(heap, block, slot_of_this_thread());
    return NULL;
}

/* Whether this thread has more than its share of what is pending. */
static bool is_ahead(struct context *context, const struct thread_cache *cache)
{
    struct heap *heap = heap_of(context);
    uint64_t budget = context->device->growth_budget;
    uint8_t slot = slot_of_this_thread();
    if (heap->caches.count <= 1 && !(heap->pending_slots & ~(UINT64_C(1) << slot)))
        return false;
    /* As many as there may be, and as much. */
    uint64_t share = budget / (heap->caches.count + heap->slots_pending + 1);
    uint64_t own = heap->pending_of[slot];
    if (own + (cache ? thread_cache_bytes(cache) : 0) <= share)
        return false;
    own += cache ? thread_cache_pending(cache) : 0;
    if (own <= share)
        return false;
    uint64_t slots = heap->pending_slots | look_around(heap, EPOCHS_OLD)->pending_slots;
    unsigned threads = (unsigned)__builtin_popcountll(slots);
    return threads > 1 && own > budget / threads;
}

/* Holds a thread back that runs ahead of the others. Releases and retakes the lock. False where the
 * context is ending by then. */
static bool wait_for_the_others(struct pool *pool, struct context *context,
                                const struct thread_cache *cache)
{
    while (is_ahead(context, cache) &&
           epoch_wait_in_allocation(pool, context, epoch_clean(&context->epochs) + 1))
        continue;
    return !heap_of(context)->ending;
}

/* ---- misses; no lock held ---- */

/* Several threads may do this at once, and one look be lost. */
static void note_cost(struct heap *heap, uint64_t nanoseconds)
{
    counter_set(&heap->miss_ns, (3 * counter_get(&heap->miss_ns) + nanoseconds) / 4);
}

static CUresult ask_driver(struct pool *pool, struct heap *heap, struct bucket_counters *cost,
                           CUdeviceptr *address, uint64_t bytes)
{
    uint64_t started = monotonic_now();
    enter_driver();
    atomic_fetch_add_explicit(&heap->missing, 1, memory_order_relaxed);
    struct relaxed_mode mode = {false, 0};
    if (MUTATED(allocation_in_relaxed_mode))
        mode = relaxed_mode_begin(pool->driver);
    CUresult result = pool->driver->cuMemAlloc_v2(address, bytes);
    relaxed_mode_end(pool->driver, mode);
    leave_driver();
    uint64_t nanoseconds = monotonic_now() - started;
    bucket_count_call(cost, nanoseconds, result == CUDA_SUCCESS);
    note_cost(heap, nanoseconds);
    counter_set(&heap->missed_at, started + nanoseconds);
    atomic_fetch_sub_explicit(&heap->missing, 1, memory_order_relaxed);
    return result;
}

/* The driver, and everything that may help when it is out of memory. *bytes falls back to what was
 * requested where only that fits. */
static CUresult ask_driver_hard(struct pool *pool, struct context *context,
                                struct bucket_counters *cost, CUdeviceptr *address, uint64_t *bytes,
                                size_t requested)
{
    struct device *device = context->device;
    CUresult result = ask_driver(pool, heap_of(context), cost, address, *bytes);
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        return result;
    struct reclaim progress = {.bytes = *bytes, .wanted = requested};
    while (result == CUDA_ERROR_OUT_OF_MEMORY && reclaim_for_retry(pool, device, &progress))
        result = ask_driver(pool, heap_of(context), cost, address, *bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && *bytes != requested &&
        !MUTATED(exact_size_left_out)) {
        atomic_fetch_sub_explicit(&device->reserved_bytes, *bytes - requested,
                                  memory_order_relaxed);
        *bytes = requested;
        result = ask_driver(pool, heap_of(context), cost, address, requested);
    }
    return result;
}

/* Threads of several contexts may be here at once. Relaxed: a number for the report. What is on the
 * way from the driver does not count yet. */
static void note_reserved(struct pool *pool, struct device *device)
{
    uint64_t reserved = 0;
    for (struct context *c = context_next(pool, NULL, device); c; c = context_next(pool, c, device))
        reserved += counter_get(&heap_of(c)->reserved_bytes);
    counter_raise_shared(&device->memory->peak_reserved, reserved);
    counter_raise_shared(&device->memory->recent_peak, reserved);
}

/* Lock held. False where there is no memory for a record. */
static bool record_block(struct pool *pool, struct heap *heap, struct bucket *bucket,
                         CUdeviceptr address, uint64_t bytes, size_t requested)
{
    struct block *block = block_records_take(&heap->records, heap);
    if (block) {
        /* Before it can be found: whoever frees it takes no lock. */
        block_set_bytes(block, bytes);
        atomic_store_explicit(&block->bin, bucket->bin, memory_order_relaxed);
        block->bucket = bucket;
        counter_set(&block->requested, requested);
        block_set(block, address, BLOCK_LIVE);
    }
    if (!block || !block_table_insert(&pool->blocks, address, block)) {
        /* Without a record the memory is the program's and the driver's business alone. */
        if (block)
            block_records_put(&heap->records, block);
        atomic_fetch_sub_explicit(&context_of_heap(heap)->device->reserved_bytes, bytes,
                                  memory_order_relaxed);
        return false;
    }
    counter_add(&heap->reserved_bytes, bytes);
    note_reserved(pool, context_of_heap(heap)->device);
    /* The peak first: a process may be killed at any moment, and its figures are read. */
    counter_raise_to(&bucket->counters->peak_reserved_bytes,
                     counter_get(&bucket->counters->reserved_bytes) + bytes);
    counter_add(&bucket->counters->reserved_bytes, bytes);
    counter_add(&heap->live_requested, requested);
    raise_peaks(heap, bucket);
    return true;
}

/* Lock held: of the lists and counters, not of the block, which another thread may be claiming. */
static bool claim_live(struct heap *heap, struct block *block, CUdeviceptr address,
                       enum block_state state)
{
    if (!block_claim(block, address, state))
        return false;
    counter_subtract(&heap->live_requested, counter_get(&block->requested));
    if (state == BLOCK_LEAVING)
        counter_subtract(&block->bucket->counters->reserved_bytes, block->bytes);
    return true;
}

bool heap_let_go(struct pool *pool, CUdeviceptr address)
{
    struct block *block = block_table_find(&pool->blocks, address);
    if (!block)
        return true;
    struct heap *heap = block->heap;
    heap_lock(heap);
    bool live = claim_live(heap, block, address, BLOCK_LEAVING);
    if (live) {
        struct bucket_counters *counters = block->bucket->counters;
        heap_forget_block(pool, heap, block);
        bucket_count_lost(counters);
    }
    heap_unlock(heap);
    return live;
}

static bool is_listed(const struct block *block)
{
    return block_state(block) == BLOCK_PENDING || block_state(block) == BLOCK_CLEAN;
}

void heap_forget_address(struct pool *pool, CUdeviceptr address)
{
    struct block *block = block_table_find(&pool->blocks, address);
    if (!block || MUTATED(stale_record_kept))
        return;
    struct heap *heap = block->heap;
    heap_lock(heap);
    bool live = claim_live(heap, block, address, BLOCK_LEAVING);
    if (!live && block_address(block) == address && block_state(block) == BLOCK_CACHED)
        thread_caches_collect(heap);
    if (live || (block_address(block) == address && is_listed(block))) {
        struct bucket_counters *counters = block->bucket->counters;
        heap_forget_block(pool, heap, block);
        counter_add(&counters->evictions[EVICTION_CONTEXT], 1);
        counter_add(&counters->frees, live);
    }
    heap_unlock(heap);
}

/* Lock held. Half of the share turns it off again, so that it does not change all the time. */
static void watch_waste(struct heap *heap, const struct device *device)
{
    struct heap_bytes bytes = heap_bytes(heap);
    uint64_t used = bytes.clean + bytes.pending + bytes.requested;
    uint64_t reserved = counter_get(&heap->reserved_bytes);
    uint64_t waste = reserved > used ? reserved - used : 0;
    uint64_t most = device->total_bytes / HEAP_WASTE_SHARE;
    heap->fine = waste > (heap->fine ? most / 2 : most);
    heap->unusual = heap->fine || heap->ending;
    heap_look_at_caches(heap);
}

/* Lock held. Bytes that could be kept as well as what the context holds. */
static uint64_t room_to_keep(const struct pool *pool, const struct context *context)
{
    uint64_t held = counter_get(&heap_of(context)->reserved_bytes);
    uint64_t bound = release_bound(pool, context, heap_bytes(heap_of(context)).requested, 0);
    uint64_t most = bound < context->device->total_bytes ? bound : context->device->total_bytes;
    return held < most ? most - held : 0;
}

/* What this thread has waited lately, for a block of this bucket. */
static void take_wait(const struct bucket *bucket)
{
    uint64_t waited = thread_state.waited_ns;
    if (__builtin_expect(!waited, 1))
        return;
    thread_state.waited_ns = 0;
    bucket_count_wait(bucket->counters, waited);
}

/* A free of any size: it waits for what all sizes have pending, so it counts with what is of no
 * size. */
static void count_waiting_free(const struct bucket *bucket)
{
    take_wait(bucket);
    /* Relaxed, like every counter. */
    atomic_fetch_add_explicit(&bucket->counters->waiting_frees, 1, memory_order_relaxed);
}

void heap_take_wait(const struct cache_bin *bin)
{
    const struct bucket *bucket = cache_bin_bucket(bin);
    if (bucket)
        take_wait(bucket);
}

/* generation: of the context, from before the driver was asked. Where it has died since, what the
 * driver gave has died with it, and another context may own the heap. */
static void finish_miss(struct pool *pool, struct context *context, uint64_t generation,
                        struct bucket *bucket, CUdeviceptr address, uint64_t bytes,
                        size_t requested, CUresult result)
{
    struct heap *heap = heap_of(context);
    bool lives = context_generation(context) == generation && (generation & 1) != 0;
    /* Whoever freed this address did so behind our back. */
    if (result == CUDA_SUCCESS && lives)
        heap_forget_address(pool, address);
    heap_lock(heap);
    /* A death from here on finds the record: it takes the lock after changing the generation. */
    lives = lives && context_generation(context) == generation;
    counter_add(&bucket->counters->requested_bytes, requested);
    counter_add(&heap->misses, 1);
    take_wait(bucket);
    counter_raise_to(&heap->largest_request, result == CUDA_SUCCESS ? requested : 0);
    bool met = result == CUDA_SUCCESS, recorded = false;
    if (met && lives)
        recorded = record_block(pool, heap, bucket, address, bytes, requested);
    else
        atomic_fetch_sub_explicit(&context->device->reserved_bytes, bytes, memory_order_relaxed);
    counter_add(bucket_outcome(bucket->counters, met, result == CUDA_ERROR_OUT_OF_MEMORY), 1);
    if (met && !recorded)
        bucket_count_lost(bucket->counters);
    if (keep_is_on_trial(&heap->keep))
        keep_note_miss(&heap->keep, &bucket->ghosts, bytes, room_to_keep(pool, context));
    watch_waste(heap, context->device);
    counter_raise_to(&heap->now, counter_get(&heap->missed_at));
    heap_unlock(heap);
}

/* Past the hard limit: the driver is not asked, and has nothing to count. */
static CUresult refuse(struct heap *heap, struct bucket *bucket, size_t requested)
{
    heap_lock(heap);
    counter_add(&bucket->counters->requested_bytes, requested);
    take_wait(bucket);
    counter_add(MUTATED(failures_are_misses) ? &bucket->counters->misses
                                             : &bucket->counters->failures[FAILURE_LIMIT],
                1);
    heap_unlock(heap);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Nothing is taken into the reserved bytes beforehand: with so many, what other threads ask for
 * meanwhile would seem to be past every limit. */
static CUresult ask_in_vain(struct pool *pool, struct context *context, CUdeviceptr *address,
                            size_t requested)
{
    uint64_t generation = context_generation(context);
    struct bucket *bucket = &heap_of(context)->unkept;
    CUresult result = ask_driver(pool, heap_of(context), bucket->counters, address, requested);
    uint64_t bytes = result == CUDA_SUCCESS ? requested : 0;
    atomic_fetch_add_explicit(&context->device->reserved_bytes, bytes, memory_order_relaxed);
    finish_miss(pool, context, generation, bucket, *address, bytes, requested, result);
    return result;
}

static CUresult miss(struct pool *pool, struct context *context, struct bucket *bucket,
                     CUdeviceptr *address, uint64_t bytes, size_t requested)
{
    struct heap *heap = heap_of(context);
    uint64_t generation = context_generation(context);
    /* What no device can hold is not worth giving anything back for. */
    if (requested > context->device->total_bytes)
        return ask_in_vain(pool, context, address, requested);
    release_excess(pool, context, RELEASE_IN_ALLOCATION);
    release_before_growth(pool, context, bytes);
    if (!reserve_take(pool, context, bytes, false)) {
        if (bytes == requested || !reserve_take(pool, context, requested, false))
            return refuse(heap, bucket, requested);
        bytes = requested;
    }
    uint64_t taken = bytes;
    CUresult result = ask_driver_hard(pool, context, bucket->counters, address, &taken, requested);
    /* A block that is smaller than its bucket must not serve it again. A failure is the bucket's.
     */
    bool fits =
        taken == bucket->bytes || result != CUDA_SUCCESS || MUTATED(smaller_block_in_bucket);
    finish_miss(pool, context, generation, fits ? bucket : &heap->unkept, *address, taken,
                requested, result);
    release_look_at_memory(pool, context);
    return result;
}

CUresult heap_allocate_unkept(struct pool *pool, struct context *context, CUdeviceptr *address,
                              size_t bytes)
{
    return miss(pool, context, &heap_of(context)->unkept, address, bytes, bytes);
}

void heap_adopt(struct pool *pool, struct context *context, uint64_t generation,
                CUdeviceptr address, size_t bytes, size_t reserved)
{
    /* Modulo 2^64: less, where fewer bytes came than were reserved. */
    atomic_fetch_add_explicit(&context->device->reserved_bytes, (uint64_t)bytes - reserved,
                              memory_order_relaxed);
    finish_miss(pool, context, generation, &heap_of(context)->unkept, address, bytes, bytes,
                CUDA_SUCCESS);
}

/* Lock held. Clean blocks of the bucket, for the thread's next allocations: the newest on top. */
static void refill(struct heap *heap, const struct place *place)
{
    struct block *block = place->bin ? place->bucket->clean.last : NULL;
    /* While much is pending, another thread may be waiting for the next one. */
    unsigned wanted = block && keeps_up(heap) ? thread_cache_wants(place->cache, place->bin) : 0;
    if (wanted == 0)
        return;
    for (unsigned i = 1; i < wanted && block->links[LINK_BUCKET].previous; i++)
        block = block->links[LINK_BUCKET].previous;
    for (struct block *newer; block; block = newer) {
        newer = block->links[LINK_BUCKET].next;
        thread_cache_expect(place->cache, place->bin);
        detach_free(heap, block);
        thread_cache_fill(place->bin, block);
    }
}

/* Releases and retakes the lock. */
static struct block *find_block(struct pool *pool, struct context *context,
                                const struct place *place, enum hit *hit)
{
    struct thread_cache *cache = place->cache;
    if (is_ahead(context, cache) && !wait_for_the_others(pool, context, cache))
        return NULL;
    struct block *block = newest_clean(place);
    if (block && cache && cache->waited > 0)
        cache->waited = 0;
    if (!block)
        block = climb(pool, context, place, hit);
    /* A fence is cheap beside a new block, which may be the only one of its size. */
    if (!block && cache && keeps_up(heap_of(context)) && heap_of(context)->caches.count > 1)
        thread_cache_ask_again(cache);
    return block;
}

/* Lock held on entry and return, perhaps released in between. */
static bool take_from(struct pool *pool, struct context *context, struct bucket *bucket,
                      CUdeviceptr *address, size_t bytes)
{
    enum hit hit = HIT_CLEAN;
    struct heap *heap = heap_of(context);
    note_user(pool, heap);
    struct place place = find_place_of_thread(pool, heap, bucket, bytes);
    if (place.cache)
        place.cache->in_slow_path = true;
    struct block *block = find_block(pool, context, &place, &hit);
    if (place.cache)
        place.cache->in_slow_path = false;
    if (!block)
        return false;
    hand_out(heap, block, bytes, hit);
    *address = block_address(block);
    refill(heap, &place);
    return true;
}

CUresult heap_allocate(struct pool *pool, struct context *context, CUdeviceptr *address,
                       size_t bytes)
{
    struct heap *heap = heap_of(context);
    uint64_t block_bytes = size_class_round(&heap->classes, bytes);
    if (MUTATED(fence_in_allocation))
        epoch_fence_the_rest(pool, context);
    if (block_bytes == 0)
        return heap_allocate_unkept(pool, context, address, bytes);

    thread_cache_prepare_thread(pool);
    heap_lock(heap);
    if (__builtin_expect(heap->unusual, 0)) {
        if (heap->ending) {
            heap_unlock(heap);
            return heap_allocate_unkept(pool, context, address, bytes);
        }
        if (heap->classes.policy != BUCKETS_EXACT)
            block_bytes = size_class_finest(bytes);
    }
    struct bucket *bucket = get_bucket(heap, block_bytes);
    bool hit = bucket != &heap->unkept && take_from(pool, context, bucket, address, bytes);
    if (hit)
        take_wait(bucket);
    heap_unlock(heap);
    if (hit)
        return CUDA_SUCCESS;
    return miss(pool, context, bucket, address, bucket == &heap->unkept ? bytes : block_bytes,
                bytes);
}

/* ---- freeing ---- */

/* Lock held. */
static bool fence_is_due(const struct context *context)
{
    const struct heap *heap = heap_of(context);
    unsigned alone = heap->alone == HEAP_ALONE;
    return heap->frees_since_fence >= FENCE_EVERY_FREES << (alone || keeps_up(heap)) ||
           heap->bytes_since_fence >= device_fence_bytes(context->device) << alone;
}

/* Lock held. */
static bool deserves_fence(const struct context *context, const struct block *block)
{
    return fence_is_due(context) || block->bucket->bytes == 0;
}

/* Lock held. */
static struct fence *close_epoch(struct context *context, bool waitable)
{
    struct fence *fence = epoch_begin_close(context, waitable);
    if (fence) {
        thread_caches_let_sleep(heap_of(context), thread_cache_known(heap_of(context)),
                                counter_get(&heap_of(context)->now));
        heap_of(context)->frees_since_fence = 0;
        heap_of(context)->bytes_since_fence = 0;
    }
    /* Whoever is recording looks again when that is done. */
    context->epochs.owed = !fence && context->epochs.recording && !MUTATED(owed_fence_forgotten);
    return fence;
}

/* Lock held, perhaps released in between. What is not kept goes as soon as it is clean. */
static void ask_about_unkept(struct pool *pool, struct context *context)
{
    const struct block *unkept = heap_of(context)->unkept.pending.first;
    struct fence *fence =
        unkept ? epoch_fence_for(&context->epochs, counter_get(&unkept->epoch), false) : NULL;
    if (fence)
        epoch_query(pool, context, fence);
}

static CUresult synchronise_like_the_driver(struct pool *pool, struct context *context)
{
    bool pushed;
    if (!context_push(pool, context, &pushed))
        return CUDA_SUCCESS;
    uint64_t epoch = epoch_synchronise_begin(pool, context);
    enter_driver();
    CUresult result = pool->driver->cuCtxSynchronize();
    leave_driver();
    context_pop(pool, pushed);
    epoch_synchronise_end(pool, context, epoch, result);
    return result;
}

/* The pool records no fence in this context any more. Relaxed: see where it is set. */
static bool is_without_fences(const struct context *context)
{
    return atomic_load_explicit(&context->unusable, memory_order_relaxed);
}

static bool is_the_drivers_to_free(struct pool *pool, const struct context *context,
                                   const struct block *block)
{
    return (block_is_shared(block) && !MUTATED(shared_block_kept)) ||
           (captures_are_going_on(&pool->captures) && !MUTATED(free_in_capture_kept)) ||
           (is_without_fences(context) && !MUTATED(kept_without_fences));
}

/* Lock held. Not worth keeping; only where the plain call would have waited too. */
static bool goes_directly(struct heap *heap, struct block *block, bool waitable)
{
    if (!keep_is_on_trial(&heap->keep) || !waitable)
        return false;
    bool directly = keep_free_is_the_drivers(&heap->keep, &block->bucket->ghosts, block->bytes);
    heap_look_at_caches(heap);
    return directly;
}

/* Lock held. A free that came while this thread was recording, or an allocation that waits for one
 * that came before (await_fence_for in epoch.c), may be owed a fence still. */
static struct fence *close_if_owed(struct context *context, bool waitable)
{
    const struct heap *heap = heap_of(context);
    bool owed =
        context_of_heap(heap)->epochs.owed || (heap->frees_since_fence && fence_is_due(context));
    return owed ? close_epoch(context, waitable) : NULL;
}

/* A free that failed has freed nothing. False where the block has a new owner already. */
static bool take_back(struct heap *heap, struct block *block, CUdeviceptr address, uint64_t stamp)
{
    heap_lock(heap);
    bool pending = block_address(block) == address && block_state(block) == BLOCK_PENDING &&
                   counter_get(&block->epoch) == stamp;
    if (pending) {
        heap_detach_free(heap, block);
        block_set_state(block, BLOCK_LIVE);
        counter_subtract(&block->bucket->counters->frees, 1);
        count_live(heap, block);
    }
    heap_unlock(heap);
    return pending;
}

/* The wait that the settings ask for. It may fail, where another thread has just begun a capture
 * for one, and the program then goes on using the block. */
__attribute__((noinline)) static CUresult wait_in_free(struct pool *pool, struct block *block,
                                                       CUdeviceptr address, uint64_t stamp)
{
    struct heap *heap = block->heap;
    const struct bucket *bucket = block->bucket;
    uint64_t started = monotonic_now();
    CUresult result = synchronise_like_the_driver(pool, context_of_heap(heap));
    bucket_count_wait(bucket->counters, monotonic_now() - started);
    atomic_fetch_add_explicit(&bucket->counters->waiting_frees, 1, memory_order_relaxed);
    bool freed = result == CUDA_SUCCESS || MUTATED(failed_wait_frees) ||
                 !take_back(heap, block, address, stamp);
    return freed ? CUDA_SUCCESS : result;
}

/* ---- waiting in a free ---- */

/* Once several contexts have existed, what is left of a fence may be the work of others only, which
 * the plain driver does not wait for: that is asked about, and never waited for. */
static bool others_work_may_count(struct pool *pool)
{
    return atomic_load_explicit(&pool->several_contexts, memory_order_acquire) &&
           !MUTATED(other_contexts_awaited);
}

static uint64_t next_span(const struct heap *heap, uint64_t now)
{
    uint64_t span = heap->frees_wait_for, quiet_since = heap->frees_wait_until;
    for (; span > FREES_WAIT_FIRST && now - quiet_since > span; span /= 2)
        quiet_since += span;
    if (span == 0 || now - quiet_since > span)
        return FREES_WAIT_FIRST;
    return 2 * span < FREES_WAIT_LONGEST ? 2 * span : FREES_WAIT_LONGEST;
}

void heap_note_vain_wait(struct pool *pool, struct context *context)
{
    struct heap *heap = heap_of(context);
    uint64_t now = monotonic_now();
    counter_add(&heap->counters->vain_waits, 1);
    if (pool->settings.device.free_synchronizes || heap->frees_wait)
        return;
    heap->frees_wait_for = next_span(heap, now);
    heap->frees_wait_until = now + heap->frees_wait_for;
    heap->frees_wait = !MUTATED(vain_wait_without_effect);
    set_closed(heap, CLOSED_SYNCHRONISING, heap->frees_wait);
    thread_caches_collect(heap);
}

/* Lock held. Whether a free waits as the plain one does. */
static bool frees_wait(const struct pool *pool, struct heap *heap)
{
    if (pool->settings.device.free_synchronizes)
        return !MUTATED(free_synchronizes_ignored);
    if (heap->frees_wait && monotonic_now() >= heap->frees_wait_until) {
        heap->frees_wait = false;
        set_closed(heap, CLOSED_SYNCHRONISING, false);
    }
    return heap->frees_wait;
}

/* Lock held. Whether the context has work that ends only if the host acts: frees wait for it. */
static bool has_host_work(const struct context *context)
{
    return host_work_limit(&context->epochs.host_work) != UINT64_MAX &&
           !MUTATED(free_beside_host_work_returns);
}

/* No lock held. Waits as the plain free does for what was submitted before the block of that stamp
 * was freed. False where no fence could be had: a capture has just begun, or another context is
 * ending. */
static bool wait_for_stamp(struct pool *pool, struct context *context, uint64_t stamp)
{
    struct heap *heap = heap_of(context);
    heap_lock(heap);
    uint64_t waited_before = thread_state.waited_ns;
    epoch_wait_in_free(pool, context, stamp);
    if (thread_state.waited_ns != waited_before)
        count_waiting_free(&heap->unkept);
    bool fenced = epoch_clean(&context->epochs) >= stamp ||
                  epoch_fence_for(&context->epochs, stamp, true) ||
                  host_work_limit(&context->epochs.host_work) >= stamp;
    heap_unlock(heap);
    return fenced;
}

/* Lock held. Whether an allocation might miss what is pending, and the host have to act before it
 * is over, though nothing tells so (a kernel that another thread lets go): where it is much beside
 * the room, or the largest request so far fits with it and might not without. */
static bool is_missed(const struct heap *heap, uint64_t pending, uint64_t room)
{
    uint64_t largest = counter_get(&heap->largest_request);
    room += counter_get(&heap->clean_bytes);
    return room < MISSED_SHARE * pending || (room < pending + largest && largest <= room + pending);
}

/* No lock needed. Whether the room is so large that what caches may hold makes no difference. */
static bool nothing_is_missed(const struct context *context, uint64_t room)
{
    const struct heap *heap = heap_of(context);
    uint64_t most =
        counter_get(&heap->pending_bytes) + context->device->growth_budget + CACHES_LEAST_BYTES;
    return MUTATED(pending_never_missed) ||
           (room >= MISSED_SHARE * most && room >= most + counter_get(&heap->largest_request));
}

/* Lock held. */
static bool pending_is_missed(struct context *context, uint64_t room)
{
    struct heap *heap = heap_of(context);
    uint64_t pending = counter_get(&heap->pending_bytes) + look_around(heap, 0)->pending_bytes;
    return pending && is_missed(heap, pending, room);
}

/* No lock held. Waits as the plain free does, until what is pending can be done without. Where only
 * other contexts' work keeps it pending, the driver alone knows whether that has to do with it:
 * what is pending goes to the driver. */
__attribute__((noinline)) static void
wait_for_what_is_missed(struct pool *pool, struct context *context, uint64_t room)
{
    struct heap *heap = heap_of(context);
    heap_lock(heap);
    uint64_t waited_before = thread_state.waited_ns;
    /* What others free meanwhile is theirs to wait for. */
    uint64_t last = epoch_current(&context->epochs) - 1;
    while (epoch_clean(&context->epochs) < last && pending_is_missed(context, room) &&
           epoch_wait_in_free(pool, context, epoch_clean(&context->epochs) + 1))
        continue;
    if (thread_state.waited_ns != waited_before)
        count_waiting_free(&heap->unkept);
    bool kept_by_others = others_work_may_count(pool) && epoch_clean(&context->epochs) < last &&
                          pending_is_missed(context, room) && !MUTATED(kept_by_other_contexts);
    heap_unlock(heap);
    if (kept_by_others)
        heap_free_pending(pool, context);
}

/* No lock held. now: on the monotonic clock, in nanoseconds. */
static inline void wait_if_missed(struct pool *pool, struct context *context, uint64_t now)
{
    uint64_t room = room_left(pool, context, now);
    if (__builtin_expect(!nothing_is_missed(context, room), 0))
        wait_for_what_is_missed(pool, context, room);
}

/* The slow part of a free: its fence. The lock is taken as seldom as can be: others wait for it
 * meanwhile. Nobody else waits for what a lone thread has freed, and it knows best when it needs
 * it: so there the driver is not asked at once. */
__attribute__((noinline)) static CUresult end_free(struct pool *pool, struct context *context,
                                                   struct fence *fence, bool waitable)
{
    struct heap *heap = heap_of(context);
    CUresult result = CUDA_SUCCESS;
    struct release_excess excess = {0};
    for (int i = 0; fence && i < 4; i++) {
        struct epoch_recorded recorded =
            epoch_record_and_lock(pool, context, fence, keeps_up(heap) && heap->caches.count > 1);
        bool good =
            context->epochs.failures == 0 && !recorded.unusable && !is_without_fences(context);
        fence = i < 3 && good ? close_if_owed(context, waitable) : NULL;
        /* Whoever waits says so again while there is a record; another's is to come back to it. */
        context_of_heap(heap)->epochs.owed =
            context_of_heap(heap)->epochs.owed && context->epochs.recording;
        if (!fence)
            ask_about_unkept(pool, context);
        if (!fence)
            excess = release_look_for_excess(pool, heap);
        heap_unlock(heap);
        result = epoch_settle_record(pool, context, &recorded);
    }
    /* Made while there is memory: it is needed when there is none. */
    if (pool->driver->cuMemFreeAsync &&
        !atomic_load_explicit(&context->return_stream, memory_order_relaxed))
        return_stream(pool, context);
    if (waitable)
        wait_if_missed(pool, context, excess.now);
    release_found_excess(pool, context, &excess, RELEASE_IN_FREE);
    if (device_is_short(context->device))
        room_look_again(pool, context);
    return result;
}

/* Lock held. */
static void put_back_pending(struct pool *pool, struct heap *heap, struct block *block)
{
    if (!block_table_insert(&pool->blocks, block_address(block), block))
        return;
    block_set_state(block, BLOCK_PENDING);
    block_list_prepend(&block->bucket->pending, block, LINK_BUCKET);
    block_list_prepend(&heap->pending, block, LINK_HEAP);
    heap_count_back(block);
    counter_add(&heap->pending_bytes, block->bytes);
    count_pending(heap, block);
}

/* Lock held on entry and return, released in between. */
static bool free_oldest_pending(struct pool *pool, struct heap *heap)
{
    struct block *block = heap->pending.first;
    heap_begin_leaving(heap, block);
    block_table_remove(&pool->blocks, block_address(block), block);
    struct bucket_counters *counters = block->bucket->counters;
    heap_unlock(heap);
    uint64_t started = monotonic_now();
    enter_driver();
    CUresult result = pool->driver->cuMemFree_v2(block_address(block));
    leave_driver();
    uint64_t nanoseconds = monotonic_now() - started;
    heap_lock(heap);
    if (result == CUDA_SUCCESS) {
        heap_forget_block(pool, heap, block);
        bucket_count_return(counters, EVICTION_FREE, nanoseconds);
    } else {
        put_back_pending(pool, heap, block);
    }
    return result == CUDA_SUCCESS;
}

void heap_free_pending(struct pool *pool, struct context *context)
{
    struct heap *heap = heap_of(context);
    if (captures_are_going_on(&pool->captures) ||
        !context_pin(context, context_generation(context)))
        return;
    heap_lock(heap);
    thread_caches_collect(heap);
    while (heap->pending.first && free_oldest_pending(pool, heap))
        continue;
    heap_unlock(heap);
    context_unpin(context);
}

/* No lock held. The driver waits with its own lock held. What it waits for may need another thread
 * to allocate first, whose frees have not waited: so where there is one, it is waited for before.
 */
static void wait_before_the_driver(struct pool *pool, struct context *context)
{
    struct heap *heap = heap_of(context);
    if (captures_are_going_on(&pool->captures) || is_without_fences(context) ||
        !pool->driver->cuCtxRecordEvent || MUTATED(driver_waits_alone))
        return;
    heap_lock(heap);
    bool others = heap->caches.count > 1 || heap->alone < HEAP_ALONE;
    struct fence *fence = others ? close_epoch(context, true) : NULL;
    uint64_t stamp = epoch_current(&context->epochs) - 1;
    heap_unlock(heap);
    if (fence)
        epoch_record(pool, context, fence);
    if (others)
        wait_for_stamp(pool, context, stamp);
}

/* A free that the driver answers. */
__attribute__((noinline)) static CUresult free_past_the_pool(struct pool *pool, struct block *block,
                                                             CUdeviceptr address,
                                                             const struct free_call *call)
{
    struct context *context = context_of_heap(block->heap);
    if (call->waitable)
        wait_before_the_driver(pool, context);
    CUresult result = heap_free_by_driver(pool, block, address, call->release, call->argument);
    if (call->waitable && is_without_fences(context))
        heap_free_pending(pool, context);
    return result;
}

/* Lock held. What a free is stamped with. */
static uint64_t stamp_of_now(struct pool *pool, const struct context *context)
{
    bool green;
    if (MUTATED(stamped_by_current_context) && context_current(pool, &green)) {
        uint64_t least = epoch_clean(&context->epochs) + 1;
        uint64_t current = epoch_current(&context_current(pool, &green)->epochs);
        return current > least ? current : least;
    }
    return epoch_current(&context->epochs);
}

/* Lock held. Where this thread may put a block of this size. */
static struct place make_place(struct pool *pool, struct heap *heap, struct bucket *bucket)
{
    struct place place = find_place_of_thread(pool, heap, bucket, 0);
    if (MUTATED(stamped_by_current_context))
        place.bin = NULL;
    if (place.bin && thread_cache_is_full(place.bin))
        thread_cache_halve_bin(place.cache, place.bin);
    return place;
}

/* One of those who wait asks the driver; it is not asked again too soon. */
static void ask_for_all(struct pool *pool, struct context *context, uint64_t stamp, uint64_t now)
{
    struct epochs *epochs = &context->epochs;
    if (!epoch_may_be_asked(epochs, now) || epoch_fence_is_near(epochs) ||
        atomic_load_explicit(&epochs->asked_for, memory_order_relaxed) ||
        atomic_exchange_explicit(&epochs->asked_for, true, memory_order_acquire))
        return;
    heap_lock(heap_of(context));
    struct fence *fence = epoch_fence_for(epochs, stamp, true);
    if (fence && epoch_clean(epochs) < stamp)
        epoch_query(pool, context, fence);
    heap_unlock(heap_of(context));
    atomic_store_explicit(&epochs->asked_for, false, memory_order_release);
}

/* Whether a fence that may be waited for covers the stamp, or one is being made. */
static bool has_a_fence(const struct epochs *epochs, uint64_t stamp)
{
    return atomic_load_explicit(&epochs->fenced, memory_order_relaxed) >= stamp ||
           epoch_fence_is_near(epochs);
}

/* Nanoseconds between two moments, but for those in which another thread was getting a new block,
 * for which all fences wait. */
struct patience {
    uint64_t started, now, beside;
};

static bool has_patience(struct heap *heap, struct patience *patience)
{
    uint64_t before = patience->now;
    patience->now = monotonic_now();
    if (atomic_load_explicit(&heap->missing, memory_order_relaxed))
        patience->beside += patience->now - before;
    uint64_t waited = patience->now - patience->started - patience->beside;
    return waited < CACHE_WAIT_LONGEST && patience->beside < CACHE_WAIT_BESIDE && keeps_up(heap);
}

static void watch_for_fence(struct pool *pool, struct context *context, struct thread_cache *cache,
                            uint64_t stamp)
{
    const struct epochs *epochs = &context->epochs;
    uint64_t now = monotonic_now();
    struct patience patience = {now, now, 0};
    for (unsigned rounds = 1; epoch_clean(epochs) < stamp; rounds++) {
        ask_for_all(pool, context, stamp, patience.now);
        for (unsigned i = 0; i < LOOKS_PER_ROUND && epoch_clean(epochs) < stamp; i++)
            let_the_processor_rest();
        /* Whoever is in the driver may need the processor. */
        if (rounds % ROUNDS_PER_YIELD == 0)
            sched_yield();
        if (!has_patience(heap_of(context), &patience))
            break;
    }
    thread_state.waited_ns += patience.now - patience.started;
    cache->waited += (int64_t)(patience.now - patience.started - patience.beside);
}

bool heap_await_fence(struct pool *pool, struct context *context, struct thread_cache *cache,
                      const struct cache_pending *pending)
{
    struct heap *heap = heap_of(context);
    const struct epochs *epochs = &context->epochs;
    uint64_t stamp = pending->stamp;
    bool may_grow = !pending->full && cache->waited >= 0;
    /* A barrier costs no time to wait for, but a slow path for each block. */
    bool lone = heap->caches.count <= 1 && pending->blocks < BLOCKS_WORTH_A_WAIT;
    if (epoch_clean(epochs) >= stamp)
        return true;
    if (lone)
        cache->waited += COST_OF_A_BARRIER;
    bool grows =
        may_grow && cache->waited >= cost_of_growth(heap) && growth_is_due(heap, monotonic_now());
    if (!epoch_keeps_up(epochs) || grows)
        return false;
    if (!has_a_fence(epochs, stamp)) {
        if (!may_grow || heap->caches.count > 1)
            thread_cache_ask_again(cache);
        /* Another thread's free may bring one. */
        if (lone || atomic_load_explicit(&heap->freeing, memory_order_relaxed) <= 1)
            return false;
    }
    if (lone || others_work_may_count(pool))
        ask_for_all(pool, context, stamp, monotonic_now());
    else
        watch_for_fence(pool, context, cache, stamp);
    return epoch_clean(epochs) >= stamp;
}

/* Whether this thread has left the epoch to another for so long that it may have lost its
 * processor. */
static bool has_relied_enough(struct thread_cache *cache)
{
    uint64_t now = monotonic_now(), stamp = counter_get(&cache->stamp);
    if (cache->relied_for != stamp) {
        cache->relied_for = stamp;
        cache->relied_since = now;
    }
    return now - cache->relied_since > RELIED_NANOSECONDS && !MUTATED(closer_relied_on);
}

/* A thread whose cache's fence is due. Another that is just about to close the epoch serves it,
 * too: it has not advanced the number yet. closed_for is a hint: who closes is decided under the
 * lock. */
static bool another_closes(struct epochs *epochs, struct thread_cache *cache)
{
    if (MUTATED(closed_twice) ||
        !(atomic_load_explicit(&epochs->closed_for, memory_order_relaxed) ||
          atomic_exchange_explicit(&epochs->closed_for, true, memory_order_acquire)))
        return false;
    return !cache || !has_relied_enough(cache);
}

CUresult heap_close_epoch(struct pool *pool, struct context *context)
{
    struct heap *heap = heap_of(context);
    struct thread_cache *cache = thread_cache_known(heap);
    if (another_closes(&context->epochs, cache)) {
        if (cache)
            thread_cache_count_again(cache);
        return CUDA_SUCCESS;
    }
    heap_lock(heap);
    note_user(pool, heap);
    if (cache && epoch_is_closed(&context->epochs, counter_get(&cache->stamp))) {
        atomic_store_explicit(&context->epochs.closed_for, false, memory_order_release);
        heap_unlock(heap);
        return CUDA_SUCCESS;
    }
    if (heap->caches.count > 1)
        look_around(heap, EPOCHS_OLD);
    if (cache)
        refresh_cache(heap, cache);
    struct fence *fence = close_epoch(context, true);
    /* Whoever is recording makes the fence that is owed. */
    if (cache && !fence && context_of_heap(heap)->epochs.owed)
        thread_cache_count_again(cache);
    else if (cache && !fence)
        thread_cache_ask_again(cache);
    atomic_store_explicit(&context->epochs.closed_for, false, memory_order_release);
    heap_unlock(heap);
    return fence ? end_free(pool, context, fence, true) : CUDA_SUCCESS;
}

/* Lock held. A block that this thread has claimed, and has no place for in a cache. True: a fence
 * is due. */
static bool make_pending(struct context *context, struct block *block, uint64_t epoch)
{
    struct heap *heap = heap_of(context);
    struct bucket *bucket = block->bucket;
    counter_subtract(&heap->live_requested, counter_get(&block->requested));
    counter_set(&block->epoch, epoch);
    block->freed_at = counter_get(&heap->now);
    block->slot = slot_of_this_thread();
    note_free_block(heap, block);
    block_list_append(&bucket->pending, block, LINK_BUCKET);
    block_list_append(&heap->pending, block, LINK_HEAP);
    counter_add(&heap->pending_bytes, block->bytes);
    counter_add(&bucket->counters->frees, 1);
    count_pending(heap, block);
    heap->frees_since_fence++;
    heap->bytes_since_fence += block->bytes;
    return deserves_fence(context, block);
}

/* Lock held, and released. The address is not a live block's (any more). */
static CUresult refuse_free(struct heap *heap)
{
    heap_unlock(heap);
    return MUTATED(double_free_taken) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult heap_free(struct pool *pool, struct block *block, CUdeviceptr address,
                   const struct free_call *call)
{
    struct heap *heap = block->heap;
    struct context *context = context_of_heap(heap);
    thread_cache_prepare_thread(pool);
    heap_lock(heap);
    if (!block_is_live_at(block, address))
        return refuse_free(heap);
    if (is_the_drivers_to_free(pool, context, block) ||
        goes_directly(heap, block, call->waitable)) {
        heap_unlock(heap);
        return free_past_the_pool(pool, block, address, call);
    }
    note_user(pool, heap);
    struct place place = make_place(pool, heap, block->bucket);
    bool host = call->waitable && has_host_work(context);
    /* In the lists it can be taken back. */
    if (host)
        place.bin = NULL;
    if (!block_claim(block, address, place.bin ? BLOCK_CACHED : BLOCK_PENDING))
        return refuse_free(heap);
    bool synchronise = frees_wait(pool, heap) && call->waitable;
    uint64_t stamp = stamp_of_now(pool, context);
    bool due = place.bin ? thread_cache_put(place.cache, place.bin, block, stamp)
                         : make_pending(context, block, stamp);
    struct fence *fence = NULL;
    if (due && place.cache)
        refresh_cache(heap, place.cache);
    if (!synchronise && (due || host))
        fence = close_epoch(context, call->waitable);
    /* It is looked again soon whether another's has come. */
    if (due && !fence && place.cache)
        thread_cache_count_again(place.cache);
    heap_unlock(heap);
    CUresult result = CUDA_SUCCESS;
    if (synchronise) {
        result = wait_in_free(pool, block, address, stamp);
        /* Of its own context nothing is left. */
        if (others_work_may_count(pool))
            wait_if_missed(pool, context, monotonic_now());
        return result;
    }
    if (fence)
        result = end_free(pool, context, fence, call->waitable);
    /* Without a fence the driver's own free waits. */
    if (host && !wait_for_stamp(pool, context, stamp) && take_back(heap, block, address, stamp))
        return free_past_the_pool(pool, block, address, call);
    return result;
}

/* Lock held on entry and return, released in between. The driver knows nothing of the work that a
 * barrier orders before the block. */
static void wait_for_barrier_of(struct pool *pool, struct context *context,
                                const struct block *block)
{
    if (counter_get(&block->epoch) > epoch_clean(&context->epochs) &&
        !MUTATED(barrier_forgotten_at_free))
        epoch_wait_until(pool, context, counter_get(&block->epoch), UINT64_MAX);
}

/* Lock not held. Puts a live block out of the way of its address's next owner. */
static bool begin_leaving(struct pool *pool, struct block *block, CUdeviceptr address)
{
    struct heap *heap = block->heap;
    heap_lock(heap);
    if (block_is_live_at(block, address))
        wait_for_barrier_of(pool, context_of_heap(heap), block);
    bool live = claim_live(heap, block, address, BLOCK_LEAVING);
    if (live)
        block_table_remove(&pool->blocks, address, block);
    heap_unlock(heap);
    return live;
}

static void come_back(struct pool *pool, struct block *block)
{
    if (!block_table_insert(&pool->blocks, block_address(block), block))
        return;
    block_set_state(block, BLOCK_LIVE);
    counter_add(&block->bucket->counters->reserved_bytes, block->bytes);
    count_live(block->heap, block);
}

CUresult heap_free_by_driver(struct pool *pool, struct block *block, CUdeviceptr address,
                             heap_release *release, void *argument)
{
    struct heap *heap = block->heap;
    if (!begin_leaving(pool, block, address))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t started = monotonic_now();
    enter_driver();
    CUresult result = release(pool, address, argument);
    leave_driver();
    uint64_t nanoseconds = monotonic_now() - started;
    heap_lock(heap);
    if (block_state(block) == BLOCK_LEAVING && block_address(block) == address) {
        if (result == CUDA_SUCCESS) {
            const struct bucket *bucket = block->bucket;
            take_wait(bucket);
            heap_forget_block(pool, heap, block);
            if (!MUTATED(direct_frees_not_counted))
                bucket_count_return(bucket->counters, EVICTION_FREE, nanoseconds);
            counter_add(&bucket->counters->frees, 1);
        } else {
            come_back(pool, block);
        }
    }
    heap_unlock(heap);
    return result;
}
