#include "thread_cache.h"

#include "core/base/numbers.h"
#include "core/contexts/device.h"
#include "core/contexts/pool_state.h"

struct cache_bin cache_no_bin = {.open = &cache_no_bin.segments[0]};

struct thread_cache no_thread_cache;

static inline void drop_oldest_segment(struct cache_bin *bin)
{
    struct bin_counters *counters = bin->counters;
    counter_set(&cache_oldest_segment(bin)->stamp, 0);
    bin->first++;
    bin->segment_count--;
    uint64_t settled = counter_get(bin->segment_count ? &cache_oldest_segment(bin)->frees_before
                                                      : &counters->frees);
    counter_set(&counters->not_pending, settled);
}

void cache_drop_oldest_segment(struct cache_bin *bin)
{
    drop_oldest_segment(bin);
}

bool thread_cache_enter_strongly(struct thread_cache *cache)
{
    /* Sequentially consistent, like the closer's store to heap->closed and its load of
     * cache->inside. */
    atomic_exchange(&cache->inside, 1);
    return atomic_load(&cache->heap->closed) == CLOSED_WEAKLY;
}

/* Segments become clean in the order in which they were opened. So each goes on top of the clean
 * blocks that were there before. */
struct block *thread_cache_turn_clean(struct thread_cache *cache, struct cache_bin *bin)
{
    /* An acquire load, which pairs with the release store to epochs->clean. Once it shows that the
     * fence has completed, the caller may hand the blocks out. */
    uint64_t clean = heap_clean_epoch(cache->heap);
    while (bin->segment_count) {
        struct cache_segment *segment = cache_oldest_segment(bin);
        if (counter_get(&segment->stamp) > clean)
            break;
        block_set_cached_next(segment->oldest, bin->clean);
        cache_set_block(&bin->clean, segment->newest);
        bin->clean_freed_at = segment->opened_at;
        drop_oldest_segment(bin);
    }
    return bin->clean;
}

/* Opens an empty segment. oldest: the block that the caller puts there first. */
static inline void open_segment(const struct heap *heap, struct cache_bin *bin, uint64_t stamp,
                                struct block *oldest)
{
    struct cache_segment *segment =
        &bin->segments[(bin->first + bin->segment_count) % CACHE_SEGMENTS];
    bin->segment_count++;
    bin->open = segment;
    cache_set_block(&segment->newest, NULL);
    segment->oldest = oldest;
    segment->opened_at = counter_get(&heap->now);
    bin->newest_stamp = stamp;
    counter_set(&segment->frees_before, counter_get(&bin->counters->frees));
    counter_set(&segment->stamp, stamp);
}

/* Bytes that may be freed without a fence of their own where no memory is to stay hot. */
static uint64_t most_without_fence(const struct thread_cache *cache)
{
    return device_fence_bytes(context_of_heap(cache->heap)->device) << CACHE_DOUBLINGS >>
           cache->fence_bytes_shift;
}

/* at_most: the value of freed_bytes_at_fence is no larger. */
static void set_bytes_to_fence(struct thread_cache *cache, uint64_t at_most)
{
    uint64_t bytes = most_without_fence(cache);
    if (cache->hot_fence_bytes)
        bytes = smaller_of(bytes, cache->hot_fence_bytes);
    cache->freed_bytes_at_fence =
        smaller_of(counter_get(&cache->freed_bytes_before) + bytes, at_most);
}

bool thread_cache_puts_fence_off(struct thread_cache *cache)
{
    uint32_t launches = thread_state.launches - cache->launches_before;
    uint64_t freed = cache_freed_in_epoch(cache), most = most_without_fence(cache);
    if (!launches && cache->fence_bytes_shift == 0)
        most *= 2;
    if (cache->frees_left == 0 || launches >= CACHE_HOT_LAUNCHES || freed >= most)
        return false;
    cache->freed_bytes_at_fence =
        counter_get(&cache->freed_bytes_before) +
        smaller_of(freed + cache->hot_fence_bytes / CACHE_AGAIN_SHARE, most);
    return true;
}

/* Makes the newest segment one of this stamp. If all segments are in use, the newest one takes the
 * newer stamp: its blocks then wait for a later fence than they need. */
static inline void take_stamp(const struct heap *heap, struct cache_bin *bin, uint64_t stamp,
                              struct block *block)
{
    if (bin->segment_count < CACHE_SEGMENTS)
        open_segment(heap, bin, stamp, block);
    else
        counter_set(&bin->open->stamp, stamp);
}

/* The thread has read a new number. If a free or a synchronise advanced it, what this thread freed
 * before has a waitable fence, or is clean. Otherwise the thread goes on counting, unless a fence
 * was due: that free has recorded one, which may be of another sort. */
static void note_epoch(struct thread_cache *cache, uint64_t stamp)
{
    uint64_t before = counter_get(&cache->stamp);
    struct cache_epoch *old = &cache->epochs[before % CACHE_EPOCHS];
    counter_set(&old->freed, cache_freed_in_epoch(cache));
    struct cache_epoch *new = &cache->epochs[stamp % CACHE_EPOCHS];
    counter_set(&new->stamp, stamp);
    counter_set(&new->freed, 0);
    counter_set(&new->taken, 0);
    counter_set(&cache->freed_bytes_before, counter_get(&cache->freed_bytes));
    counter_set(&cache->stamp, stamp);
    cache_follow_live(cache);
    bool spent =
        cache->frees_left == 0 || counter_get(&cache->freed_bytes) >= cache->freed_bytes_at_fence;
    if (spent || epoch_is_closed(&context_of_heap(cache->heap)->epochs, before)) {
        cache->frees_left = cache->frees_to_fence;
        set_bytes_to_fence(cache, UINT64_MAX);
    }
    /* The next free takes the slow path, which moves surplus blocks to the heap's lists, or starts
     * the housekeeper. */
    if (thread_cache_bytes(cache) > counter_get(&cache->heap->caches.most_bytes) ||
        housekeeping_is_watched(&cache->pool->housekeeping))
        cache->frees_left = 1;
}

__attribute__((always_inline)) static inline bool
push_stamped(struct thread_cache *cache, struct cache_bin *bin, struct block *block, uint64_t stamp)
{
    if (counter_get(&cache->stamp) != stamp)
        note_epoch(cache, stamp);
    if (counter_get(&bin->open->stamp) != stamp)
        take_stamp(cache->heap, bin, stamp, block);
    return cache_push(cache, bin, block);
}

bool thread_cache_push(struct thread_cache *cache, struct cache_bin *bin, struct block *block,
                       uint64_t stamp)
{
    return push_stamped(cache, bin, block, stamp);
}

enum cache_pushed thread_cache_push_claimed(struct thread_cache *cache, struct block *block,
                                            CUdeviceptr address, uint64_t stamp)
{
    struct cache_bin *bin = cache_bin_at(cache, block_bin(block));
    if (thread_cache_is_full(bin)) {
        block_set(block, address, BLOCK_LIVE);
        cache_leave(cache);
        return NOT_PUSHED;
    }
    bool due = push_stamped(cache, bin, block, stamp);
    cache_leave(cache);
    return due ? PUSHED_FENCE_DUE : PUSHED;
}

struct cache_pending thread_cache_look(const struct cache_bin *bin)
{
    return (struct cache_pending){
        .stamp = thread_cache_oldest_stamp(bin),
        .blocks = bin->capacity - bin->room,
        .full = bin->room == 0,
    };
}

void thread_cache_set_fence(struct thread_cache *cache, uint32_t frees, unsigned doublings,
                            unsigned halvings)
{
    heap_lock_must_be_held(cache->heap);
    /* One thread's fence serves all threads, so all together free no more without one than one
     * thread alone may. Frees and bytes since the last fence count even if the cache's last owner
     * made them. */
    uint32_t done = cache->frees_to_fence - cache->frees_left;
    uint32_t left = frees > done ? frees - done : 1;
    if (!cache->frees_to_fence || cache->frees_left > left)
        cache->frees_left = left;
    if (housekeeping_is_watched(&cache->pool->housekeeping))
        cache->frees_left = 1;
    cache->fence_bytes_shift = (uint8_t)(CACHE_DOUBLINGS + halvings - doublings);
    set_bytes_to_fence(cache, cache->frees_to_fence ? cache->freed_bytes_at_fence : UINT64_MAX);
    cache->frees_to_fence = frees;
}

void thread_cache_count_again(struct thread_cache *cache)
{
    cache->frees_left = cache->frees_to_fence / CACHE_AGAIN_SHARE + 1;
    cache->freed_bytes_at_fence =
        counter_get(&cache->freed_bytes) + most_without_fence(cache) / CACHE_AGAIN_SHARE;
}

void thread_cache_ask_again(struct thread_cache *cache)
{
    cache->frees_left = 1;
    cache->freed_bytes_at_fence = counter_get(&cache->freed_bytes) + 1;
}
