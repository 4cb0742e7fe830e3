#include "cache_set.h"

#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cache_bin.h"
#include "core/base/cancellation.h"
#include "core/base/clock.h"
#include "core/contexts/pool_state.h"
#include "sums.h"

/* Values of <linux/membarrier.h>. That header may be older than the kernel on which the pool runs.
 */
enum { MEMBARRIER_EXPEDITED = 1 << 3, MEMBARRIER_REGISTER_EXPEDITED = 1 << 4 };

bool thread_caches_prepare_closing(void)
{
    return syscall(SYS_membarrier, MEMBARRIER_REGISTER_EXPEDITED, 0) == 0;
}

/* After this, a thread that enters a cache sees the bit, and a thread that entered earlier is seen
 * inside. If the program has forbidden itself the system call after the start (seccomp), threads
 * enter by an exchange from now on. A thread that has just entered by a plain store may not be
 * visible yet. The nap lasts long enough for that store to become visible. */
static void let_all_see_the_bit(struct heap *heap, const struct pool *pool)
{
    struct timespec nap = {0, 10000000};
    int error = errno;
    if (!pool->expedited || syscall(SYS_membarrier, MEMBARRIER_EXPEDITED, 0) == 0)
        return;
    int cancellation = cancellation_off();
    if (!(atomic_fetch_or(&heap->closed, CLOSED_WEAKLY) & CLOSED_WEAKLY))
        while (nanosleep(&nap, &nap) != 0 && errno == EINTR)
            continue;
    cancellation_restore(cancellation);
    errno = error;
}

void thread_caches_wait(struct heap *heap)
{
    heap_lock_must_be_held(heap);
    struct thread_cache *cache = thread_caches_first(heap);
    if (!cache)
        return;
    let_all_see_the_bit(heap, cache->pool);
    uint64_t started = monotonic_now();
    for (; cache; cache = thread_cache_next(cache))
        while (atomic_load_explicit(&cache->inside, memory_order_seq_cst))
            patient_nap(started);
}

static void close_caches(struct heap *heap)
{
    /* Sequentially consistent, like the loads in cache_enter and thread_cache_enter_strongly. */
    atomic_fetch_or(&heap->closed, CLOSED_COLLECTING);
    thread_caches_wait(heap);
}

static void open_caches(struct heap *heap)
{
    heap->recent.current = 0; /* blocks have moved: sum again */
    atomic_fetch_and(&heap->closed, ~(uint32_t)CLOSED_COLLECTING);
}

void thread_caches_collect(struct heap *heap)
{
    heap_lock_must_be_held(heap);
    if (!thread_caches_first(heap))
        return;
    close_caches(heap);
    for (struct thread_cache *c = thread_caches_first(heap); c; c = thread_cache_next(c))
        thread_cache_empty(c);
    open_caches(heap);
}

static void thin_out(struct thread_cache *cache, uint64_t stay, uint64_t of)
{
    const struct heap *heap = cache->heap;
    for (unsigned i = 0; i < heap->bins; i++) {
        struct cache_bin *bin = cache_bin_in_use(cache, i);
        if (bin && (bin->bytes < SIZE_CLASS_PAGE || heap_splits(heap)))
            thread_cache_cut_bin(cache, bin, cache_bin_blocks(bin) * stay / of);
    }
}

void thread_caches_thin_out(struct heap *heap, uint64_t stay, uint64_t of)
{
    heap_lock_must_be_held(heap);
    close_caches(heap);
    for (struct thread_cache *c = thread_caches_first(heap); c; c = thread_cache_next(c))
        thin_out(c, stay, of);
    open_caches(heap);
}

/* Keeps the bucket out of caches for a while (thread_caches_take and thread_caches_share say why).
 * If sharing begins again soon, the span is doubled. The caller takes the blocks out. */
static void begin_sharing(struct bucket *bucket, uint64_t now)
{
    bool soon = device_bucket(bucket)->shared_for &&
                now < device_bucket(bucket)->shared_until + 8 * device_bucket(bucket)->shared_for;
    device_bucket(bucket)->shared_for =
        soon ? 2 * device_bucket(bucket)->shared_for : CACHE_SHARED_FIRST;
    if (device_bucket(bucket)->shared_for > CACHE_SHARED_LONGEST)
        device_bucket(bucket)->shared_for = CACHE_SHARED_LONGEST;
    device_bucket(bucket)->shared_until = now + device_bucket(bucket)->shared_for;
}

/* A bucket whose blocks are no larger than this is not shared, however often they are taken. All
 * its blocks in caches together are little memory. So threads had better take them from each other,
 * or get new ones. */
static uint64_t least_bytes_to_share(const struct heap *heap)
{
    return context_of_heap(heap)->device->growth_budget / CACHE_SHARED_SHARE;
}

/* Returns each thread's part of the bucket's free blocks; 0: too few to be worth a bin. */
static uint64_t fair_part(const struct heap *heap, const struct bucket *bucket)
{
    uint64_t blocks = bucket->free_blocks + thread_caches_blocks(heap, bucket, NULL, false);
    uint64_t part = blocks / heap->caches.count;
    return part >= CACHE_BIN_LEAST ? part : 0;
}

/* Moves all but `stay` blocks of each of the bucket's bins to the heap's lists. retire: also takes
 * the bins away from the bucket. */
static void take_out_of_caches(struct heap *heap, struct bucket *bucket, uint64_t stay, bool retire)
{
    close_caches(heap);
    for (struct thread_cache *c = thread_caches_first(heap); c; c = thread_cache_next(c)) {
        struct cache_bin *bin =
            atomic_load_explicit(&c->bins[device_bucket(bucket)->bin], memory_order_relaxed);
        if (cache_bin_bucket(bin) != bucket)
            continue;
        thread_cache_cut_bin(c, bin, stay);
        if (retire)
            cache_bin_retire(bin);
    }
    open_caches(heap);
}

void thread_caches_take(struct heap *heap, struct bucket *bucket, bool starved)
{
    heap_lock_must_be_held(heap);
    uint64_t now = monotonic_now(), stay = fair_part(heap, bucket);
    bool soon = now - device_bucket(bucket)->taken_from_caches_at < CACHE_TAKEN_APART;
    device_bucket(bucket)->taken_in_a_row =
        !soon ? 0
              : device_bucket(bucket)->taken_in_a_row +
                    (starved && !stay && bucket->bytes > least_bytes_to_share(heap));
    device_bucket(bucket)->taken_from_caches_at = now;
    bool again = device_bucket(bucket)->taken_in_a_row >= CACHE_TAKEN_OFTEN;
    if (again)
        begin_sharing(bucket, now);
    take_out_of_caches(heap, bucket, again ? 0 : stay, again);
}

void thread_caches_share(struct heap *heap, struct bucket *bucket)
{
    heap_lock_must_be_held(heap);
    begin_sharing(bucket, monotonic_now());
    take_out_of_caches(heap, bucket, 0, true);
}

/* Returns when the bin will have been unused for `idle` nanoseconds; UINT64_MAX: it is empty. */
static uint64_t idle_at(struct cache_bin *bin, uint64_t now, uint64_t idle)
{
    uint64_t use = counter_get(&bin->counters->hits) + counter_get(&bin->counters->frees);
    if (bin->seen_use != use || bin->seen_at == 0) {
        bin->seen_use = use;
        bin->seen_at = now;
    }
    return cache_bin_blocks(bin) ? bin->seen_at + idle : UINT64_MAX;
}

/* Returns when the first bin of the cache will have been unused for `idle` nanoseconds. closed: the
 * caches are closed, and bins that have been unused for so long now are emptied and left out. */
static uint64_t take_idle_bins(struct thread_cache *cache, uint64_t now, uint64_t idle, bool closed)
{
    uint64_t first = UINT64_MAX;
    for (unsigned i = 0; i < cache->heap->bins; i++) {
        struct cache_bin *bin = cache_bin_in_use(cache, i);
        uint64_t at = bin ? idle_at(bin, now, idle) : UINT64_MAX;
        if (closed && at <= now)
            thread_cache_empty_bin(cache, bin);
        else
            first = smaller_of(first, at);
    }
    return first;
}

static uint64_t take_idle(struct heap *heap, uint64_t now, uint64_t idle, bool closed)
{
    uint64_t first = UINT64_MAX;
    for (struct thread_cache *c = thread_caches_first(heap); c; c = thread_cache_next(c))
        first = smaller_of(first, take_idle_bins(c, now, idle, closed));
    return first;
}

uint64_t thread_caches_take_idle(struct heap *heap, uint64_t now, uint64_t idle)
{
    heap_lock_must_be_held(heap);
    uint64_t first = take_idle(heap, now, idle, false);
    if (first > now)
        return first;
    close_caches(heap);
    first = take_idle(heap, now, idle, true);
    open_caches(heap);
    return first;
}

bool thread_caches_watch(struct heap *heap)
{
    heap_lock_must_be_held(heap);
    bool any = false;
    if (!thread_caches_first(heap))
        return false;
    close_caches(heap);
    for (struct thread_cache *c = thread_caches_first(heap); c; c = thread_cache_next(c)) {
        thread_cache_ask_again(c);
        any = any || thread_cache_bytes(c);
    }
    open_caches(heap);
    return any;
}

static void retire_large_bins(struct thread_cache *cache)
{
    for (unsigned i = 0; i < CACHE_BINS; i++) {
        struct cache_bin *bin = atomic_load_explicit(&cache->bins[i], memory_order_relaxed);
        if (cache_bin_bucket(bin) && bin->bytes >= KEEP_LARGE_BYTES) {
            thread_cache_empty_bin(cache, bin);
            cache_bin_retire(bin);
        }
    }
}

/* Takes all large blocks out of the caches, because large blocks are on trial or soon may be
 * (keep.h). */
static void take_large_blocks(struct heap *heap)
{
    if (!thread_caches_first(heap))
        return;
    close_caches(heap);
    for (struct thread_cache *c = thread_caches_first(heap); c; c = thread_cache_next(c))
        retire_large_bins(c);
    open_caches(heap);
}

void thread_caches_update_closed(struct heap *heap)
{
    heap_lock_must_be_held(heap);
    bool held_none_before = heap->caches_hold_no_large;
    heap_set_closed(heap, CLOSED_ENDING, heap->ending);
    heap_set_closed(heap, CLOSED_FINEST_SIZES, heap->finest_sizes);
    heap_set_closed(heap, CLOSED_HOST_WORK,
                    host_work_limit(&context_of_heap(heap)->epochs.host_work) != UINT64_MAX);
    heap->caches_hold_no_large = keep_is_on_trial(&heap->keep) || heap->keep.unused_returns;
    if (heap->caches_hold_no_large && !held_none_before)
        take_large_blocks(heap);
}

/* Sets the limits of each cache for this number of awake caches. With more caches each limit is
 * lower, since a block in one cache may be the one that another thread waits for. Several caches
 * together stay inside the growth budget, or CACHES_LEAST_BYTES if that is more. A lone cache has
 * no limit in bytes. */
static void count_awake(struct heap *heap, unsigned count)
{
    uint64_t budget = context_of_heap(heap)->device->growth_budget;
    uint64_t all = budget > CACHES_LEAST_BYTES ? budget : CACHES_LEAST_BYTES;
    bool alone = count <= 1;
    struct thread_caches *caches = &heap->caches;
    uint64_t each = alone ? UINT64_MAX : all / count;
    uint64_t blocks = cache_blocks_of_bucket(heap) / (alone ? 1 : count);
    atomic_store_explicit(&caches->count, count, memory_order_relaxed);
    counter_set(&caches->most_bytes, each);
    caches->most_blocks = (uint32_t)smaller_of(CACHE_BIN_BLOCKS, blocks);
    caches->largest_block = smaller_of(CACHE_LARGEST, each / CACHE_BIN_LEAST);
    context_of_heap(heap)->epochs.shared = count > 1;
}

/* begin_listing and end_listing stand around a change of the list of awake caches, and of what the
 * heap counts for a cache that is asleep. */
static void begin_listing(struct heap *heap)
{
    counter_add(&heap->caches.list_changes, 1);
    /* Pairs with the acquire fence in heap_bytes: a reader that sees any of the change also sees
     * that the number has changed. */
    counter_fence(memory_order_release);
}

static void end_listing(struct heap *heap)
{
    /* Pairs with the acquire load in heap_bytes. */
    atomic_store_explicit(&heap->caches.list_changes, counter_get(&heap->caches.list_changes) + 1,
                          memory_order_release);
}

void thread_cache_wake(struct thread_cache *cache)
{
    heap_lock_must_be_held(cache->heap);
    struct heap *heap = cache->heap;
    begin_listing(heap);
    atomic_store_explicit(&cache->next_awake,
                          atomic_load_explicit(&heap->caches.awake, memory_order_relaxed),
                          memory_order_release);
    /* Pairs with the acquire load in thread_caches_first. */
    atomic_store_explicit(&heap->caches.awake, cache, memory_order_release);
    end_listing(heap);
    cache->awake = true;
    cache->seen_at = 0;
    cache->sized_for = 0;
    heap->recent.current = 0;
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

void thread_cache_put_to_sleep(struct thread_cache *cache)
{
    heap_lock_must_be_held(cache->heap);
    struct heap *heap = cache->heap;
    thread_cache_empty(cache);
    for (unsigned i = 0; i < CACHE_BINS; i++) {
        struct cache_bin *bin = cache_bin_in_use(cache, i);
        if (bin)
            cache_bin_retire(bin);
    }
    begin_listing(heap);
    counter_add(&heap->live_requested,
                counter_get(&cache->requested_out) - counter_get(&cache->requested_freed));
    counter_set(&cache->requested_out, 0);
    counter_set(&cache->requested_freed, 0);
    counter_set(&cache->out_noted_up_to, 0);
    counter_set(&cache->live_noted_up_to, 0);
    take_out_of_list(heap, cache);
    end_listing(heap);
    cache->awake = false;
    heap->recent.current = 0;
    count_awake(heap, heap->caches.count - 1);
}

/* Whether the cache's thread has done nothing for CACHE_IDLE. A thread that waits in the slow path
 * is not idle. now: the heap's clock, which may be earlier than cache->seen_at. */
static bool is_idle(struct thread_cache *cache, uint64_t now)
{
    uint64_t use = counter_get(&cache->freed_bytes) + counter_get(&cache->handed_out_bytes);
    if (cache->seen_at == 0 || cache->seen_use != use || cache->in_slow_path) {
        cache->seen_use = use;
        cache->seen_at = now;
    }
    return now > cache->seen_at + CACHE_IDLE;
}

void thread_caches_let_sleep(struct heap *heap, const struct thread_cache *but, uint64_t now)
{
    heap_lock_must_be_held(heap);
    bool closed = false;
    if (heap->caches.count <= 1 || now < heap->caches.looked_for_idle_at + CACHE_IDLE / 4)
        return;
    heap->caches.looked_for_idle_at = now;
    for (struct thread_cache *next, *c = thread_caches_first(heap); c; c = next) {
        next = thread_cache_next(c);
        if (c == but || !is_idle(c, now))
            continue;
        if (!closed)
            close_caches(heap);
        closed = true;
        thread_cache_put_to_sleep(c);
    }
    if (closed)
        open_caches(heap);
}
