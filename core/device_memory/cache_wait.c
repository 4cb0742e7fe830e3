#include "cache_wait.h"

#include <sched.h>

#include "core/base/clock.h"
#include "core/contexts/epoch.h"
#include "core/contexts/fence_list.h"
#include "core/contexts/pool_state.h"
#include "policies.h"

/* A lone thread with this many blocks of a size waits for a fence, which makes many of them clean.
 * With fewer blocks it takes them one by one, ordered after a barrier. */
#define BLOCKS_WORTH_A_WAIT 64u

/* The cost for a lone thread of taking a block ordered after a barrier, in nanoseconds. */
#define COST_OF_A_BARRIER 500

/* A round is LOOKS_PER_ROUND loads of the clean epoch and one look at the clock. After
 * ROUNDS_PER_YIELD rounds the thread yields its processor. */
#define LOOKS_PER_ROUND  16u
#define ROUNDS_PER_YIELD 4u

/* Queries the driver about the fence that makes the stamp clean, on behalf of all threads that
 * wait. One thread queries at a time, and not again too soon. */
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

/* Whether a fence that makes the stamp clean may be waited for, or a fence is being recorded or
 * about to be. */
static bool has_a_fence(const struct epochs *epochs, uint64_t stamp)
{
    return atomic_load_explicit(&epochs->fenced, memory_order_relaxed) >= stamp ||
           epoch_fence_is_near(epochs);
}

/* How long a thread has waited, in nanoseconds. Time in which another thread was in the driver for
 * a new block counts separately (beside), since all fences wait for that. */
struct patience {
    uint64_t started, now, beside;
};

static bool has_patience(struct heap *heap, struct patience *patience)
{
    uint64_t before = patience->now;
    patience->now = monotonic_now();
    if (atomic_load_explicit(&heap->threads_in_miss, memory_order_relaxed))
        patience->beside += patience->now - before;
    uint64_t waited = patience->now - patience->started - patience->beside;
    return waited < CACHE_WAIT_LONGEST && patience->beside < CACHE_WAIT_BESIDE &&
           heap_keeps_up(heap);
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
        /* The thread that is in the driver may need this processor. */
        if (rounds % ROUNDS_PER_YIELD == 0)
            sched_yield();
        if (!has_patience(heap_of(context), &patience))
            break;
    }
    thread_state.waited_ns += patience.now - patience.started;
    cache->waited_ns += (int64_t)(patience.now - patience.started - patience.beside);
}

void heap_take_wait(const struct cache_bin *bin)
{
    const struct bucket *bucket = cache_bin_bucket(bin);
    if (bucket)
        thread_count_wait(bucket->counters);
}

bool heap_await_fence(struct pool *pool, struct context *context, struct thread_cache *cache,
                      const struct cache_pending *pending)
{
    struct heap *heap = heap_of(context);
    const struct epochs *epochs = &context->epochs;
    uint64_t stamp = pending->stamp;
    bool may_grow = !pending->full && cache->waited_ns >= 0;
    if (epoch_clean(epochs) >= stamp)
        return true;
    /* A lone thread may take blocks ordered after a barrier. It then does not wait, but each block
     * takes the slow path. All threads may do so while memory is to stay hot, when an old block is
     * also better than a new one. */
    bool hot = policy_keeps_hot(pool, heap);
    bool lone = hot || (heap->caches.count <= 1 && pending->blocks < BLOCKS_WORTH_A_WAIT);
    if (lone && !hot)
        cache->waited_ns += COST_OF_A_BARRIER;
    bool grows =
        may_grow && cache->waited_ns >= policy_cost_of_growth(heap) && policy_growth_is_due(heap);
    if (!epoch_keeps_up(epochs) || grows)
        return false;
    if (!has_a_fence(epochs, stamp)) {
        if (!may_grow || heap->caches.count > 1)
            thread_cache_ask_again(cache);
        /* Without a fence there is nothing to wait for, unless another thread's free may record
         * one. */
        if (lone || atomic_load_explicit(&heap->threads_freeing, memory_order_relaxed) <= 1)
            return false;
    }
    if (lone || contexts_were_several(pool))
        ask_for_all(pool, context, stamp, monotonic_now());
    else
        watch_for_fence(pool, context, cache, stamp);
    return epoch_clean(epochs) >= stamp;
}
