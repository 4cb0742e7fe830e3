#include "thread_cache.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/base/cancellation.h"
#include "core/base/clock.h"
#include "core/base/size_class.h"
#include "core/contexts/pool_state.h"
#include "heap.h"

/* Of <linux/membarrier.h>, which may be older than the kernel that is run on. */
enum { MEMBARRIER_EXPEDITED = 1 << 3, MEMBARRIER_REGISTER_EXPEDITED = 1 << 4 };

/* In the place of every bin that a cache does not have. Never written. */
static struct cache_bin no_bin = {.open = &no_bin.segments[0]};

struct thread_cache no_thread_cache;

/* ---- the fast path's rarer parts; inside ---- */

static struct cache_segment *oldest_segment(struct cache_bin *bin)
{
    return &bin->segments[bin->first % CACHE_SEGMENTS];
}

static void drop_oldest_segment(struct cache_bin *bin)
{
    counter_set(&oldest_segment(bin)->stamp, 0);
    bin->first++;
    bin->segment_count--;
    uint64_t settled = counter_get(bin->segment_count ? &oldest_segment(bin)->frees_before
                                                      : &bin->counters->frees);
    counter_set(&bin->counters->settled, settled);
}

static uint64_t clean_epoch_of(const struct heap *heap)
{
    return epoch_clean(&context_of_heap(heap)->epochs);
}

static bool is_clean(const struct cache_segment *segment, const struct heap *heap)
{
    /* Acquire: the blocks are the caller's to hand out once the fence has been seen to be over. */
    return counter_get(&segment->stamp) <= clean_epoch_of(heap) + MUTATED(swept_one_early);
}

bool thread_cache_enter_strongly(struct thread_cache *cache)
{
    /* Sequentially consistent, like the closer's store and look. */
    atomic_exchange(&cache->inside, 1);
    return atomic_load(&cache->heap->closed) == CLOSED_WEAKLY;
}

/* The bin has no clean blocks below those of the segments that are moved before. */
struct block *thread_cache_turn_clean(struct thread_cache *cache, struct cache_bin *bin)
{
    bool at_once = MUTATED(pending_as_clean);
    if (MUTATED(cached_pending_as_clean))
        at_once = true;
    while (bin->segment_count && (at_once || is_clean(oldest_segment(bin), cache->heap))) {
        struct cache_segment *segment = oldest_segment(bin);
        segment->oldest->links[LINK_BUCKET].next = bin->clean;
        bin->clean = segment->newest;
        bin->clean_at = segment->opened_at;
        drop_oldest_segment(bin);
    }
    return bin->clean;
}

/* An empty segment, in which the block will be the oldest. */
static void open_segment(const struct heap *heap, struct cache_bin *bin, uint64_t stamp,
                         struct block *oldest)
{
    struct cache_segment *segment =
        &bin->segments[(bin->first + bin->segment_count) % CACHE_SEGMENTS];
    bin->segment_count++;
    bin->open = segment;
    segment->newest = NULL;
    segment->oldest = oldest;
    segment->opened_at = counter_get(&heap->now);
    bin->opened = stamp;
    counter_set(&segment->frees_before, counter_get(&bin->counters->frees));
    counter_set(&segment->stamp, stamp);
}

/* In all bins. Its thread may be changing the counters: what it hands out meanwhile still counts,
 * so that nobody takes a cache that has something for an empty one. */
static uint64_t free_bytes_in(const struct thread_cache *cache)
{
    uint64_t handed = counter_get(&cache->handed);
    /* Pairs with nothing: the looks are to come in this order. */
    counter_fence(memory_order_acquire);
    uint64_t bytes = counter_get(&cache->given) + counter_get(&cache->moved) - handed;
    return (int64_t)bytes < 0 ? 0 : bytes;
}

static uint64_t freed_in_epoch(const struct thread_cache *cache)
{
    return counter_get(&cache->given) - counter_get(&cache->given_before);
}

static void set_bytes_to_fence(struct thread_cache *cache)
{
    cache->given_to_fence =
        counter_get(&cache->given_before) +
        (device_fence_bytes(context_of_heap(cache->heap)->device) << CACHE_DOUBLINGS >>
         cache->shift);
}

/* Where there are as many segments as there can be, what the newest one has waits for the block's
 * fence as well. */
static void take_stamp(const struct heap *heap, struct cache_bin *bin, uint64_t stamp,
                       struct block *block)
{
    if (bin->segment_count < CACHE_SEGMENTS)
        open_segment(heap, bin, stamp, block);
    else if (!MUTATED(full_segment_keeps_its_stamp))
        counter_set(&bin->open->stamp, stamp);
}

/* The number has changed: somebody's fence covers, or will cover, what was freed before. */
static void note_epoch(struct thread_cache *cache, uint64_t stamp)
{
    uint64_t before = counter_get(&cache->stamp);
    if (before == stamp)
        return;
    struct cache_slot *old = &cache->slots[before % CACHE_SLOTS];
    counter_set(&old->freed, freed_in_epoch(cache));
    struct cache_slot *slot = &cache->slots[stamp % CACHE_SLOTS];
    counter_set(&slot->stamp, stamp);
    counter_set(&slot->freed, 0);
    counter_set(&slot->taken, 0);
    counter_set(&cache->given_before, counter_get(&cache->given));
    counter_set(&cache->stamp, stamp);
    cache->frees_left = cache->frees_to_fence;
    set_bytes_to_fence(cache);
    /* The slow path is to take what is too much. */
    if (free_bytes_in(cache) > counter_get(&cache->heap->caches.most))
        cache->frees_left = 1;
}

bool thread_cache_is_full(const struct cache_bin *bin)
{
    return bin->room == 0;
}

bool thread_cache_put(struct thread_cache *cache, struct cache_bin *bin, struct block *block,
                      uint64_t stamp)
{
    note_epoch(cache, stamp);
    if (counter_get(&bin->open->stamp) != stamp)
        take_stamp(cache->heap, bin, stamp, block);
    return cache_put(cache, bin, block);
}

enum given thread_cache_give(struct thread_cache *cache, struct block *block, CUdeviceptr address,
                             uint64_t stamp)
{
    struct cache_bin *bin = cache_bin_at(cache, block_bin(block));
    if (thread_cache_is_full(bin)) {
        block_set(block, address, BLOCK_LIVE);
        cache_leave(cache);
        return NOT_GIVEN;
    }
    bool due = thread_cache_put(cache, bin, block, stamp);
    cache_leave(cache);
    return due ? GIVEN_FENCE_DUE : GIVEN;
}

uint64_t thread_cache_oldest_stamp(const struct cache_bin *bin)
{
    return bin->segment_count ? counter_get(&bin->segments[bin->first % CACHE_SEGMENTS].stamp) : 0;
}

struct cache_pending thread_cache_look(const struct cache_bin *bin)
{
    return (struct cache_pending){
        .stamp = thread_cache_oldest_stamp(bin),
        .blocks = bin->capacity - bin->room,
        .full = bin->room == 0,
    };
}

static uint64_t smaller(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

/* ---- closing; the heap lock is held from here on ---- */

static void end_of_thread(void *unused);

/* Each thread reads and writes its own. */
static _Thread_local struct {
    struct thread_cache *all; /* of this thread, in all heaps */
    bool told;                /* of the thread's end we shall be */
    bool over;                /* the thread is ending */
} caches_of_thread;

/* Of all pools of the process: keys are few. Made with the first one. */
static pthread_key_t end_key;
static bool end_key_is_made;

void thread_caches_prepare(struct pool *pool, const struct thread_functions *threads)
{
    pool->expedited = syscall(SYS_membarrier, MEMBARRIER_REGISTER_EXPEDITED, 0) == 0;
    pool->process = getpid();
    if (threads->set_specific && threads->key_create && !end_key_is_made)
        end_key_is_made = threads->key_create(&end_key, end_of_thread) == 0;
    if (end_key_is_made)
        pool->thread_functions = *threads;
}

/* Of those that may hold something. Without the heap lock, one that is listed anew meanwhile may
 * lead to caches that were seen before: see heap_bytes. */
static struct thread_cache *first_cache(const struct heap *heap)
{
    /* Pairs with the release store in wake. */
    return atomic_load_explicit(&heap->caches.awake, memory_order_acquire);
}

static struct thread_cache *next_cache(const struct thread_cache *cache)
{
    /* Likewise. */
    return atomic_load_explicit(&cache->next_awake, memory_order_acquire);
}

/* Whoever enters from here on sees the bit; whoever had entered before is seen inside. Where the
 * program has since forbidden itself the call, threads enter by an exchange from now on; those who
 * are about to have entered before are given time in which every store is seen. */
static void let_all_see_the_bit(struct heap *heap, const struct pool *pool)
{
    struct timespec nap = {0, 10000000};
    if (!pool->expedited || syscall(SYS_membarrier, MEMBARRIER_EXPEDITED, 0) == 0 ||
        MUTATED(refused_membarrier_trusted))
        return;
    int cancellation = cancellation_off();
    if (!(atomic_fetch_or(&heap->closed, CLOSED_WEAKLY) & CLOSED_WEAKLY))
        nanosleep(&nap, NULL);
    cancellation_restore(cancellation);
}

void thread_caches_wait(struct heap *heap)
{
    struct thread_cache *cache = first_cache(heap);
    if (!cache)
        return;
    let_all_see_the_bit(heap, cache->pool);
    uint64_t started = monotonic_now();
    for (; cache; cache = next_cache(cache))
        while (atomic_load_explicit(&cache->inside, memory_order_seq_cst))
            patient_nap(started);
}

static uint8_t slot_of(const struct thread_cache *cache)
{
    return atomic_load_explicit(&cache->slot, memory_order_relaxed);
}

/* ---- blocks between a bin and the heap's lists ---- */

static uint64_t count_blocks(const struct cache_bin *bin)
{
    return counter_get(&bin->counters->frees) + counter_get(&bin->counters->moved) -
           counter_get(&bin->counters->hits);
}

static void note_moved(struct thread_cache *cache, struct cache_bin *bin, uint64_t blocks)
{
    counter_add(&bin->counters->moved, blocks);
    bin->room -= (uint32_t)blocks;
    counter_add(&cache->moved, blocks * bin->bytes);
}

/* So many clean blocks stay; the older ones go. They are the newest of the heap's, whose order is
 * from the oldest to the newest: so they are turned round. */
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
        counter_set(&turned->epoch, clean_epoch_of(cache->heap));
        turned->freed_at = bin->clean_at;
        heap_accept(cache->heap, turned, slot_of(cache));
        note_moved(cache, bin, (uint64_t)-1);
        turned = newer;
    }
}

/* What was freed in the epoch of this stamp is no longer pending here. */
static void note_no_longer_pending(struct thread_cache *cache, uint64_t stamp, uint64_t bytes)
{
    struct cache_slot *slot = &cache->slots[stamp % CACHE_SLOTS];
    if (counter_get(&slot->stamp) == stamp)
        counter_add(&slot->taken, bytes);
}

static void give_oldest_segment(struct thread_cache *cache, struct cache_bin *bin)
{
    struct cache_segment *segment = oldest_segment(bin);
    uint64_t stamp = counter_get(&segment->stamp);
    for (struct block *older, *block = segment->newest; block; block = older) {
        older = block->links[LINK_BUCKET].next;
        counter_set(&block->epoch, stamp);
        block->freed_at = segment->opened_at;
        heap_accept(cache->heap, block, slot_of(cache));
        note_moved(cache, bin, (uint64_t)-1);
        note_no_longer_pending(cache, stamp, bin->bytes);
    }
    drop_oldest_segment(bin);
}

void thread_cache_empty_bin(struct thread_cache *cache, struct cache_bin *bin)
{
    give_clean(cache, bin, 0);
    while (bin->segment_count)
        give_oldest_segment(cache, bin);
}

/* So many blocks stay, the newest ones; where more than those are pending, the segment that would
 * be cut goes as a whole. */
static void cut_bin(struct thread_cache *cache, struct cache_bin *bin, uint64_t stay)
{
    uint64_t blocks = count_blocks(bin), pending = 0;
    for (uint32_t i = 0; i < bin->segment_count; i++)
        for (struct block *b = bin->segments[(bin->first + i) % CACHE_SEGMENTS].newest; b;
             b = b->links[LINK_BUCKET].next)
            pending++;
    if (blocks <= stay)
        return;
    give_clean(cache, bin, stay > pending ? stay - pending : 0);
    while (bin->segment_count && count_blocks(bin) > stay)
        give_oldest_segment(cache, bin);
}

void thread_cache_halve_bin(struct thread_cache *cache, struct cache_bin *bin)
{
    cut_bin(cache, bin, bin->capacity / 2);
}

struct block *thread_cache_pop(struct thread_cache *cache, struct cache_bin *bin)
{
    struct block *block = bin->clean ? bin->clean : thread_cache_turn_clean(cache, bin);
    if (!block)
        return NULL;
    bin->clean = block->links[LINK_BUCKET].next;
    note_moved(cache, bin, (uint64_t)-1);
    return block;
}

/* As many again as it gets may be freed before it is full, and as much before it has too much and
 * gives half of everything back. */
unsigned thread_cache_wants(const struct thread_cache *cache, struct cache_bin *bin)
{
    uint64_t wanted = bin->batch, most = bin->capacity / 2;
    uint64_t half = counter_get(&cache->heap->caches.most) / 2, has = free_bytes_in(cache);
    uint64_t fit = has < half ? (half - has) / bin->bytes : 0;
    bin->batch = (uint32_t)smaller(2 * wanted, most);
    return (unsigned)smaller(smaller(wanted, bin->room / 2), fit);
}

void thread_cache_expect(struct thread_cache *cache, struct cache_bin *bin)
{
    note_moved(cache, bin, 1);
}

void thread_cache_fill(struct cache_bin *bin, struct block *block)
{
    block->links[LINK_BUCKET].next = bin->clean;
    bin->clean = block;
    bin->clean_at = block->freed_at;
    block_set_state(block, BLOCK_CACHED);
}

/* ---- bins ---- */

/* Of an empty bin, whose counts stay. */
static void retire_bin(struct cache_bin *bin)
{
    struct bucket *bucket = cache_bin_bucket(bin);
    bucket->granted -= MUTATED(caches_past_the_cap) ? 0 : bin->capacity;
    atomic_store_explicit(&bin->bucket, NULL, memory_order_relaxed);
    bin->capacity = 0;
    bin->room = 0;
}

/* Of a bucket's blocks, what all caches together may hold: the rest is for the heap's lists. */
static uint64_t blocks_for_caches(const struct heap *heap)
{
    return heap->blocks_per_bucket - heap->blocks_per_bucket / 4;
}

/* 0: too little to be worth it. granted: to the bucket's other bins. */
static uint32_t capacity_for(const struct heap *heap, const struct bucket *bucket, uint64_t granted)
{
    uint64_t bytes = smaller(counter_get(&heap->caches.most), CACHE_BIN_BYTES);
    uint64_t all = blocks_for_caches(heap);
    if (bucket->bytes == 0 || bucket->bytes > heap->caches.largest || granted >= all)
        return 0;
    uint64_t blocks = smaller(bytes / bucket->bytes, heap->caches.most_blocks);
    blocks = smaller(blocks, all - granted);
    /* A lone thread's largest blocks are worth a bin however few they are. */
    bool few = blocks < (heap->caches.count > 1 ? CACHE_BIN_LEAST : 2) ||
               heap->caches.most_blocks < CACHE_BIN_LEAST;
    return few ? 0 : (uint32_t)blocks;
}

/* The smallest request that is rounded to these bytes. */
static uint64_t least_request(const struct size_classes *classes, uint64_t bytes)
{
    uint64_t least = 1, fits = bytes;
    while (least < fits) {
        uint64_t between = least + (fits - least) / 2;
        if (size_class_round(classes, between) < bytes)
            least = between + 1;
        else
            fits = between;
    }
    return least;
}

static bool serve_bucket(struct thread_cache *cache, struct cache_bin *bin, struct bucket *bucket)
{
    uint32_t capacity = capacity_for(cache->heap, bucket, bucket->granted);
    if (capacity == 0)
        return false;
    bucket->granted += MUTATED(caches_past_the_cap) ? 0 : capacity;
    bin->capacity = capacity;
    bin->room = capacity;
    atomic_store_explicit(&bin->bucket, bucket, memory_order_relaxed);
    bin->batch = 1;
    bin->clean = NULL;
    bin->first = 0;
    bin->segment_count = 0;
    bin->open = &bin->segments[0];
    for (unsigned i = 0; i < CACHE_SEGMENTS; i++)
        counter_set(&bin->segments[i].stamp, 0);
    return true;
}

/* A bin with counters in the figures; NULL where memory is short. */
static struct cache_bin *make_bin(const struct heap *heap, const struct bucket *bucket)
{
    struct bin_counters *counters =
        figures_bin(heap->figures, KIND_DEVICE, heap->id, heap->device, bucket->bytes);
    struct cache_bin *bin = counters ? allocate_in_whole_lines(sizeof *bin) : NULL;
    if (!bin)
        return NULL;
    bin->counters = counters;
    bin->bytes = bucket->bytes;
    bin->least = least_request(&heap->classes, bucket->bytes);
    bin->more = bucket->bytes - bin->least;
    return bin;
}

/* See thread_caches_take. */
static bool is_shared(const struct heap *heap, const struct bucket *bucket)
{
    return counter_get(&heap->now) < bucket->shared_until;
}

static struct cache_bin *get_bin(struct thread_cache *cache, struct bucket *bucket)
{
    _Atomic(struct cache_bin *) *place = &cache->bins[bucket->bin];
    struct cache_bin *bin = atomic_load_explicit(place, memory_order_relaxed);
    if (cache_bin_bucket(bin) == bucket)
        return bin;
    if (is_shared(cache->heap, bucket))
        return NULL;
    if (bin == &no_bin) {
        bin = make_bin(cache->heap, bucket);
        if (!bin)
            return NULL;
        /* Pairs with the acquire loads of those who sum up. */
        atomic_store_explicit(place, bin, memory_order_release);
    }
    return serve_bucket(cache, bin, bucket) ? bin : NULL;
}

struct cache_bin *thread_cache_bin(struct thread_cache *cache, struct bucket *bucket,
                                   size_t request)
{
    struct cache_bin *bin = get_bin(cache, bucket);
    if (bin && request)
        cache->by_request[cache_index(request)] = bin;
    return bin;
}

/* ---- caches ---- */

/* The bucket may have fewer of its blocks in caches than were there before. */
static void resize_bin(struct thread_cache *cache, struct cache_bin *bin)
{
    struct bucket *bucket = cache_bin_bucket(bin);
    uint32_t capacity = capacity_for(
        cache->heap, bucket, bucket->granted - (MUTATED(caches_past_the_cap) ? 0 : bin->capacity));
    if (capacity == bin->capacity)
        return;
    if (capacity + bin->room < bin->capacity)
        thread_cache_empty_bin(cache, bin);
    if (capacity == 0) {
        retire_bin(bin);
        return;
    }
    bucket->granted += MUTATED(caches_past_the_cap) ? 0 : capacity - bin->capacity;
    bin->room += capacity - bin->capacity;
    bin->capacity = capacity;
}

static struct cache_bin *bin_in_use(struct thread_cache *cache, unsigned place)
{
    struct cache_bin *bin = atomic_load_explicit(&cache->bins[place], memory_order_relaxed);
    return cache_bin_bucket(bin) ? bin : NULL;
}

/* First what it has not used for long, then what it has not used in the last epoch, then half of
 * everything. */
static void give_what_is_too_much(struct thread_cache *cache)
{
    static const uint64_t unused_for[] = {CACHE_UNUSED_EPOCHS, 1, 0};
    uint64_t most = counter_get(&cache->heap->caches.most), now = counter_get(&cache->stamp);
    for (unsigned round = 0; round < sizeof unused_for / sizeof unused_for[0]; round++)
        for (unsigned i = 0; i < CACHE_BINS && free_bytes_in(cache) > most - most / 4; i++) {
            struct cache_bin *bin = bin_in_use(cache, i);
            if (bin && unused_for[round] == 0)
                cut_bin(cache, bin, count_blocks(bin) / 2);
            else if (bin && bin->opened + unused_for[round] < now)
                thread_cache_empty_bin(cache, bin);
        }
}

void thread_cache_fit(struct thread_cache *cache)
{
    for (unsigned i = 0; cache->shares != cache->heap->caches.count && i < CACHE_BINS; i++) {
        struct cache_bin *bin = bin_in_use(cache, i);
        if (bin)
            resize_bin(cache, bin);
    }
    cache->shares = cache->heap->caches.count;
    if (free_bytes_in(cache) > counter_get(&cache->heap->caches.most))
        give_what_is_too_much(cache);
}

static void empty_cache(struct thread_cache *cache)
{
    if (free_bytes_in(cache) == 0)
        return;
    counter_add(&cache->heap->caches.emptied, 1);
    for (unsigned i = 0; i < CACHE_BINS; i++) {
        struct cache_bin *bin = atomic_load_explicit(&cache->bins[i], memory_order_relaxed);
        if (cache_bin_bucket(bin))
            thread_cache_empty_bin(cache, bin);
    }
}

static void close_caches(struct heap *heap)
{
    /* Sequentially consistent, like the looks at it. */
    atomic_fetch_or(&heap->closed, CLOSED_COLLECTING);
    if (!MUTATED(caches_not_waited_for))
        thread_caches_wait(heap);
}

static void open_caches(struct heap *heap)
{
    heap->lately.current = 0; /* what was seen has moved */
    atomic_fetch_and(&heap->closed, ~(uint32_t)CLOSED_COLLECTING);
}

void thread_caches_collect(struct heap *heap)
{
    if (!first_cache(heap))
        return;
    close_caches(heap);
    for (struct thread_cache *c = first_cache(heap); c; c = next_cache(c))
        empty_cache(c);
    open_caches(heap);
}

/* Threads that take a size from each other's caches all the time do better without: for a while,
 * and for longer each time that it turns out so again soon. */
static void share(struct bucket *bucket, uint64_t now)
{
    bool soon = bucket->shared_for && now < bucket->shared_until + 8 * bucket->shared_for;
    bucket->shared_for = soon ? 2 * bucket->shared_for : CACHE_SHARED_FIRST;
    if (bucket->shared_for > CACHE_SHARED_LONGEST)
        bucket->shared_for = CACHE_SHARED_LONGEST;
    bucket->shared_until = now + bucket->shared_for;
}

/* Bytes: of smaller blocks so little lies in caches that threads rather take them from each other,
 * or new ones, than that they share. */
static uint64_t little(const struct heap *heap)
{
    return MUTATED(little_is_shared)
               ? 0
               : context_of_heap(heap)->device->growth_budget / CACHE_SHARED_SHARE;
}

/* What each thread's part of the bucket's free blocks would be. */
static uint64_t fair_part(const struct heap *heap, const struct bucket *bucket)
{
    uint64_t blocks = bucket->free_blocks + thread_caches_blocks(heap, bucket, NULL, false);
    uint64_t part = blocks / heap->caches.count;
    return part >= CACHE_BIN_LEAST && !MUTATED(all_taken) ? part : 0;
}

/* Each bin keeps so many. retire: no cache keeps a bin for it. */
static void take_out_of_caches(struct heap *heap, struct bucket *bucket, uint64_t stay, bool retire)
{
    close_caches(heap);
    for (struct thread_cache *c = first_cache(heap); c; c = next_cache(c)) {
        struct cache_bin *bin = atomic_load_explicit(&c->bins[bucket->bin], memory_order_relaxed);
        if (cache_bin_bucket(bin) != bucket)
            continue;
        cut_bin(c, bin, stay);
        if (retire)
            retire_bin(bin);
    }
    open_caches(heap);
}

void thread_caches_take(struct heap *heap, struct bucket *bucket, bool starved)
{
    uint64_t now = monotonic_now(), stay = fair_part(heap, bucket);
    bool soon = now - bucket->taken_at < CACHE_TAKEN_APART;
    bucket->taken = !soon ? 0 : bucket->taken + (starved && !stay && bucket->bytes > little(heap));
    bucket->taken_at = now;
    bool again = bucket->taken >= CACHE_TAKEN_OFTEN && !MUTATED(never_shared);
    if (again)
        share(bucket, now);
    take_out_of_caches(heap, bucket, again ? 0 : stay, again);
}

void thread_caches_share(struct heap *heap, struct bucket *bucket)
{
    share(bucket, monotonic_now());
    take_out_of_caches(heap, bucket, 0, true);
}

static void shut_large_bins(struct thread_cache *cache)
{
    for (unsigned i = 0; i < CACHE_BINS; i++) {
        struct cache_bin *bin = atomic_load_explicit(&cache->bins[i], memory_order_relaxed);
        if (cache_bin_bucket(bin) && bin->bytes >= KEEP_LARGE_BYTES) {
            thread_cache_empty_bin(cache, bin);
            retire_bin(bin);
        }
    }
}

void thread_caches_shut_large(struct heap *heap)
{
    if (!first_cache(heap))
        return;
    close_caches(heap);
    for (struct thread_cache *c = first_cache(heap); c; c = next_cache(c))
        shut_large_bins(c);
    open_caches(heap);
}

/* The more caches there are, the less each may hold: what lies in one another may have to do
 * without. All together they stay inside the growth budget. */
static void count_awake(struct heap *heap, unsigned count)
{
    uint64_t budget = context_of_heap(heap)->device->growth_budget;
    uint64_t all = budget > CACHES_LEAST_BYTES ? budget : CACHES_LEAST_BYTES;
    bool alone = count <= 1 || MUTATED(caches_hold_all);
    struct thread_caches *caches = &heap->caches;
    uint64_t each = alone ? UINT64_MAX : all / count;
    uint64_t blocks = blocks_for_caches(heap) / (alone ? 1 : count);
    atomic_store_explicit(&caches->count, count, memory_order_relaxed);
    caches->level = alone ? 0 : 32u - (uint32_t)__builtin_clz(count - 1);
    counter_set(&caches->most, each);
    caches->most_blocks = (uint32_t)smaller(CACHE_BIN_BLOCKS, blocks);
    caches->largest = smaller(CACHE_LARGEST, each / CACHE_BIN_LEAST);
    context_of_heap(heap)->epochs.shared = count > 1;
}

/* Around a change of the list of those that are awake, and of what is counted for one elsewhere
 * while it is not. */
static void begin_listing(struct heap *heap)
{
    counter_add(&heap->caches.listings, 1);
    /* Pairs with the fence in heap_bytes: whoever sees the change sees the number odd. */
    counter_fence(memory_order_release);
}

static void end_listing(struct heap *heap)
{
    atomic_store_explicit(&heap->caches.listings, counter_get(&heap->caches.listings) + 1,
                          memory_order_release);
}

static void wake(struct heap *heap, struct thread_cache *cache)
{
    begin_listing(heap);
    atomic_store_explicit(&cache->next_awake,
                          atomic_load_explicit(&heap->caches.awake, memory_order_relaxed),
                          memory_order_release);
    /* Pairs with the acquire load in first_cache. */
    atomic_store_explicit(&heap->caches.awake, cache, memory_order_release);
    end_listing(heap);
    cache->awake = true;
    cache->seen_at = 0;
    cache->shares = 0;
    heap->lately.current = 0;
    count_awake(heap, heap->caches.count + 1);
}

static void take_out_of_list(struct heap *heap, struct thread_cache *cache)
{
    _Atomic(struct thread_cache *) *link = &heap->caches.awake;
    struct thread_cache *c;
    while ((c = atomic_load_explicit(link, memory_order_relaxed)) != cache)
        link = &c->next_awake;
    atomic_store_explicit(link, atomic_load_explicit(&cache->next_awake, memory_order_relaxed),
                          memory_order_release);
}

/* Its thread is not inside, or it is this thread's. What it has counted for the program is the
 * heap's to count from now on. */
static void put_to_sleep(struct heap *heap, struct thread_cache *cache)
{
    empty_cache(cache);
    for (unsigned i = 0; i < CACHE_BINS; i++) {
        struct cache_bin *bin = bin_in_use(cache, i);
        if (bin)
            retire_bin(bin);
    }
    begin_listing(heap);
    if (!MUTATED(sleeping_cache_not_counted))
        counter_add(&heap->live_requested,
                    counter_get(&cache->requested_out) - counter_get(&cache->requested_back));
    counter_set(&cache->requested_out, 0);
    counter_set(&cache->requested_back, 0);
    take_out_of_list(heap, cache);
    end_listing(heap);
    cache->awake = false;
    heap->lately.current = 0;
    count_awake(heap, heap->caches.count - 1);
}

/* Looks at what its thread has done; whether that was long ago. A thread that waits in the slow
 * path has something to do. The clock is the heap's, which may be behind what was seen before. */
static bool is_idle(struct thread_cache *cache, uint64_t now)
{
    uint64_t use = counter_get(&cache->given) + counter_get(&cache->handed);
    if (cache->seen_at == 0 || cache->seen_use != use || cache->in_slow_path) {
        cache->seen_use = use;
        cache->seen_at = now;
    }
    return now > cache->seen_at + CACHE_IDLE && !MUTATED(idle_caches_awake);
}

void thread_caches_let_sleep(struct heap *heap, const struct thread_cache *but, uint64_t now)
{
    bool closed = false;
    if (heap->caches.count <= 1 || now < heap->caches.looked_for_idle_at + CACHE_IDLE / 4)
        return;
    heap->caches.looked_for_idle_at = now;
    for (struct thread_cache *next, *c = first_cache(heap); c; c = next) {
        next = next_cache(c);
        if (c == but || !is_idle(c, now))
            continue;
        if (!closed)
            close_caches(heap);
        closed = true;
        put_to_sleep(heap, c);
    }
    if (closed)
        open_caches(heap);
}

struct thread_cache *thread_cache_known(const struct heap *heap)
{
    struct thread_cache *cache = caches_of_thread.all;
    while (cache && cache->heap != heap)
        cache = cache->of_thread;
    return cache;
}

/* Its thread ends, or has ended: the cache is another's from now on. */
static void retire_cache(struct thread_cache *cache)
{
    struct heap *heap = cache->heap;
    if (cache->awake)
        put_to_sleep(heap, cache);
    cache->thread = 0;
    cache->next_spare = heap->caches.spare;
    heap->caches.spare = cache;
    heap->caches.owned--;
}

/* A signal handler may end the process in the middle of what the thread is doing here. */
static bool is_interrupted(const struct thread_cache *caches)
{
    bool inside = thread_state.context_locks != 0;
    for (const struct thread_cache *c = caches; c; c = c->of_thread)
        inside = inside || atomic_load_explicit(&c->inside, memory_order_relaxed);
    return inside;
}

/* The child of a fork has the thread and its memory, but not the other threads' locks. It need not
 * have been told: not every way to fork runs the handlers for that. */
static bool is_the_parents(const struct pool *pool)
{
    return (atomic_load_explicit(&pool->forgotten, memory_order_relaxed) &&
            !MUTATED(caches_of_parent_touched)) ||
           (pool->process != getpid() && !MUTATED(caches_touched_after_bare_fork));
}

/* Called as the thread ends, once; what it still allocates and frees after that goes the slow
 * way. */
static void end_of_thread(void *unused)
{
    struct thread_cache *cache = caches_of_thread.all;
    (void)unused;
    caches_of_thread.over = true;
    caches_of_thread.all = NULL;
    thread_state.kept = &no_thread_cache;
    if (is_interrupted(cache))
        return;
    for (struct thread_cache *next; cache; cache = next) {
        next = cache->of_thread;
        if (is_the_parents(cache->pool) || MUTATED(thread_end_missed))
            continue;
        heap_lock(cache->heap);
        retire_cache(cache);
        heap_unlock(cache->heap);
    }
}

void thread_cache_prepare_thread(const struct pool *pool)
{
    if (!caches_of_thread.told && !caches_of_thread.over && pool->thread_functions.set_specific)
        caches_of_thread.told =
            pool->thread_functions.set_specific(end_key, &caches_of_thread) == 0;
}

/* The kernel's number of the calling thread. 0 for one that is in another process than the pool,
 * with which it shares its memory: of those the kernel would not tell whether they live. */
static pid_t number_of_this_thread(const struct pool *pool)
{
    return getpid() == pool->process ? (pid_t)syscall(SYS_gettid) : 0;
}

static bool has_ended(const struct pool *pool, pid_t thread)
{
    return thread && syscall(SYS_tgkill, pool->process, thread, 0) != 0 && errno == ESRCH &&
           !MUTATED(abandoned_caches_kept);
}

/* Not every thread that ends tells so. One cache is looked at each time that a new one would be
 * made, so that no more than about every second one is without a thread. */
static void look_for_an_end(struct heap *heap)
{
    struct thread_cache *cache = heap->caches.looked_at ? heap->caches.looked_at->next : NULL;
    if (!cache)
        cache = atomic_load_explicit(&heap->caches.all, memory_order_relaxed);
    heap->caches.looked_at = cache;
    int error = errno; /* the program's */
    if (cache && has_ended(cache->pool, cache->thread))
        retire_cache(cache);
    errno = error;
}

static struct thread_cache *take_spare(struct heap *heap)
{
    if (!heap->caches.spare)
        look_for_an_end(heap);
    struct thread_cache *cache = heap->caches.spare;
    if (cache)
        heap->caches.spare = cache->next_spare;
    return cache;
}

static struct thread_cache *add_cache(struct pool *pool, struct heap *heap)
{
    struct thread_cache *cache = allocate_in_whole_lines(sizeof *cache);
    if (!cache)
        return NULL;
    cache->pool = pool;
    cache->heap = heap;
    for (unsigned i = 0; i < CACHE_BINS; i++) {
        atomic_init(&cache->bins[i], &no_bin);
        cache->by_request[i] = &no_bin;
    }
    cache->next = atomic_load_explicit(&heap->caches.all, memory_order_relaxed);
    atomic_store_explicit(&heap->caches.all, cache, memory_order_relaxed);
    return cache;
}

static struct thread_cache *make_cache(struct pool *pool, struct heap *heap)
{
    struct thread_state *thread = &thread_state;
    if (caches_of_thread.over || !caches_of_thread.told)
        return NULL;
    struct thread_cache *cache = take_spare(heap);
    if (!cache)
        cache = add_cache(pool, heap);
    if (!cache)
        return NULL;
    heap->caches.owned++;
    cache->thread = number_of_this_thread(pool);
    atomic_store_explicit(&cache->slot, (uint8_t)(thread_id(pool) % HEAP_SLOTS),
                          memory_order_relaxed);
    cache->of_thread = caches_of_thread.all;
    caches_of_thread.all = cache;
    if (thread->context && heap_of(thread->context) == heap)
        thread->kept = cache;
    return cache;
}

struct thread_cache *thread_cache_of_this_thread(struct pool *pool, struct heap *heap)
{
    struct thread_cache *cache = thread_cache_known(heap);
    cache = cache ? cache : make_cache(pool, heap);
    if (cache && !cache->awake)
        wake(heap, cache);
    return cache;
}

void thread_cache_set_fence(struct thread_cache *cache, uint32_t frees, unsigned doublings,
                            unsigned halvings)
{
    /* A fence of one serves all: so that together they have freed no more without one. What was
     * freed since the last one counts, also by the cache's last owner. */
    uint32_t done = cache->frees_to_fence - cache->frees_left;
    uint32_t left = frees > done ? frees - done : 1;
    if (!cache->frees_to_fence || cache->frees_left > left)
        cache->frees_left = left;
    cache->frees_to_fence = frees;
    cache->shift = (uint8_t)(CACHE_DOUBLINGS + halvings - doublings);
    set_bytes_to_fence(cache);
}

void thread_cache_count_again(struct thread_cache *cache)
{
    uint64_t most = device_fence_bytes(context_of_heap(cache->heap)->device) << CACHE_DOUBLINGS;
    cache->frees_left = cache->frees_to_fence / CACHE_AGAIN_SHARE + 1;
    cache->given_to_fence = counter_get(&cache->given) + (most >> cache->shift) / CACHE_AGAIN_SHARE;
}

void thread_cache_ask_again(struct thread_cache *cache)
{
    cache->frees_left = 1;
}

/* ---- sums ---- */

static uint64_t pending_in(const struct thread_cache *cache, uint64_t clean)
{
    uint64_t newest = counter_get(&cache->stamp), bytes = freed_in_epoch(cache);
    if (newest <= clean)
        return 0;
    bytes -= counter_get(&cache->slots[newest % CACHE_SLOTS].taken);
    for (uint64_t stamp = newest - 1; stamp > clean && newest - stamp < CACHE_SLOTS; stamp--) {
        const struct cache_slot *slot = &cache->slots[stamp % CACHE_SLOTS];
        if (counter_get(&slot->stamp) == stamp)
            bytes += counter_get(&slot->freed) - counter_get(&slot->taken);
    }
    uint64_t free = free_bytes_in(cache);
    return bytes < free ? bytes : free;
}

uint64_t thread_cache_bytes(const struct thread_cache *cache)
{
    return free_bytes_in(cache);
}

uint64_t thread_cache_pending(const struct thread_cache *cache)
{
    return pending_in(cache, clean_epoch_of(cache->heap));
}

struct cached_sums thread_caches_sum(const struct heap *heap)
{
    struct cached_sums sums = {0};
    const struct epochs *epochs = &context_of_heap(heap)->epochs;
    uint64_t clean = epoch_clean(epochs), current = epoch_current(epochs);
    for (const struct thread_cache *c = first_cache(heap); c; c = next_cache(c)) {
        sums.requested_out += counter_get(&c->requested_out);
        sums.freeing += counter_get(&c->stamp) + 1 >= current;
        uint64_t bytes = free_bytes_in(c), pending = bytes ? pending_in(c, clean) : 0;
        sums.free_bytes += bytes;
        sums.pending_bytes += pending;
        sums.pending_slots |= (uint64_t)(pending != 0) << slot_of(c);
    }
    return sums;
}

uint64_t thread_caches_requested_out(const struct heap *heap)
{
    uint64_t bytes = 0;
    for (const struct thread_cache *c = first_cache(heap); c; c = next_cache(c))
        bytes += counter_get(&c->requested_out);
    return bytes;
}

uint64_t thread_caches_requested_back(const struct heap *heap)
{
    uint64_t bytes = 0;
    for (const struct thread_cache *c = first_cache(heap); c; c = next_cache(c))
        bytes += counter_get(&c->requested_back);
    return bytes;
}

/* The bin's blocks in segments that are not clean. */
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
    uint64_t sum = 0, epoch = clean ? clean_epoch_of(heap) : 0;
    for (const struct thread_cache *c = first_cache(heap); c; c = next_cache(c)) {
        const struct cache_bin *bin =
            atomic_load_explicit(&c->bins[bucket->bin], memory_order_acquire);
        if (c == but || cache_bin_bucket(bin) != bucket)
            continue;
        uint64_t blocks = count_blocks(bin), pending = clean ? pending_blocks(bin, epoch) : 0;
        /* Of counters that its thread may be changing. */
        sum += blocks > CACHE_BIN_BLOCKS || pending > blocks ? 0 : blocks - pending;
    }
    return sum;
}

static void settle_bin(struct cache_bin *bin, uint64_t clean)
{
    uint64_t frees = counter_get(&bin->counters->frees);
    counter_raise_to(&bin->counters->settled, frees - pending_blocks(bin, clean));
}

void thread_caches_settle(struct heap *heap)
{
    uint64_t clean = clean_epoch_of(heap);
    for (struct thread_cache *c = first_cache(heap); c; c = next_cache(c))
        for (unsigned i = 0; i < CACHE_BINS; i++) {
            struct cache_bin *bin = atomic_load_explicit(&c->bins[i], memory_order_acquire);
            if (cache_bin_bucket(bin))
                settle_bin(bin, clean);
        }
    counter_raise_to(&heap->counters->peak_requested, heap_bytes(heap).requested);
}

uint64_t thread_caches_newest_stamp(const struct heap *heap)
{
    uint64_t newest = 0, clean = clean_epoch_of(heap);
    for (const struct thread_cache *c = first_cache(heap); c; c = next_cache(c)) {
        uint64_t stamp = counter_get(&c->stamp);
        if (stamp > newest && free_bytes_in(c))
            newest = stamp;
    }
    return newest > clean ? newest : 0;
}
