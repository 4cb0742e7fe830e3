#include "host_allocate.h"

#include "core/base/clock.h"
#include "core/base/numbers.h"
#include "core/contexts/epoch.h"
#include "core/contexts/fence_list.h"
#include "core/contexts/host_work.h"
#include "host_release.h"

/* What a new block takes the driver where nobody has measured it yet: nanoseconds. */
#define MISS_NANOSECONDS 100000u

/* A new block counts as no more expensive than so, whatever the driver's lock was held for
 * meanwhile: nanoseconds. */
#define MISS_MOST_NANOSECONDS UINT64_C(100000000)

/* The driver's calls for blocks that somebody could do without take at most 1 / GROWTH_SHARE of the
 * time. */
#define GROWTH_SHARE 2u

/* How long an allocation waits for a fence of its own; and stands by while others are in the
 * driver, which its own call would wait for as well: where the pool may grow, and where it may not.
 * Nanoseconds. */
#define WAIT_FOR_OWN_FENCE        UINT64_C(1000000)
#define WAIT_FOR_OTHERS           UINT64_C(1000000)
#define WAIT_FOR_OTHERS_NO_GROWTH UINT64_C(10000000)

/* Another thread may take the block that has become clean. After a few lost races the driver is
 * asked for a new one. */
#define TRIES 4

uint64_t host_key(struct pool *pool, const struct host_heap *heap,
                  const struct host_request *request)
{
    const struct host_memory *memory = host_memory_of(pool);
    uint64_t bytes = memory->keeps_any ? size_class_round(&heap->classes, request->bytes) : 0;
    if (bytes == 0)
        return 0;
    unsigned node = machine_node(&memory->machine);
    return size_class_up(bytes, SIZE_CLASS_GRANULE) | request->sort | node * HOST_SORT_NODE;
}

struct block *host_take_at_once(struct pool *pool, struct host_heap *heap, uint64_t key,
                                size_t bytes)
{
    struct block *block = NULL;
    struct host_shard *shard = host_shard_of_thread(pool, heap);
    if (!shard)
        return NULL;
    host_lock(shard);
    struct host_bin *bin = host_bin_find(shard, key);
    if (bin && !host_is_ending(heap))
        block = host_newest_clean(bin, host_clean_epoch(heap));
    if (block)
        host_hand_out(bin, block, bytes);
    host_unlock(shard);
    return block;
}

/* What a look through all shards has found. */
struct look {
    struct block *block; /* was clean, and is the program's; NULL: there was none */
    uint64_t oldest;     /* the least stamp of the pending ones; 0: none is */
};

static void look_into(struct host_heap *heap, struct host_shard *shard, uint64_t key, size_t bytes,
                      struct look *look)
{
    host_lock(shard);
    struct host_bin *bin = host_bin_find(shard, key);
    if (bin && !host_is_ending(heap)) {
        look->block = host_newest_clean(bin, host_clean_epoch(heap));
        const struct block *pending = bin->bucket.pending.first;
        if (look->block)
            host_take_over(bin, look->block, bytes);
        else if (pending && (!look->oldest || counter_get(&pending->epoch) < look->oldest))
            look->oldest = counter_get(&pending->epoch);
    }
    host_unlock(shard);
}

/* Whether it is known that something is clean there. */
static bool has_clean(const struct host_shard *shard)
{
    return counter_get(&shard->free_bytes) != counter_get(&shard->pending_bytes);
}

/* The calling thread's shard comes first. Where it has something pending, which is as good as what
 * others have pending, theirs are only looked into for what is clean. */
static struct look look_through(struct pool *pool, struct host_heap *heap, uint64_t key,
                                size_t bytes)
{
    struct look look = {NULL, 0};
    uint64_t own = thread_id(pool);
    for (unsigned i = 0; i < HOST_SHARDS && !look.block; i++) {
        struct host_shard *shard = host_shard_at(heap, (own + i) % HOST_SHARDS);
        if (shard && (!look.oldest || has_clean(shard)))
            look_into(heap, shard, key, bytes, &look);
    }
    return look;
}

/* Asks the driver whether a fence that covers the stamp is over, unless another thread is asking:
 * then that one's answer is awaited. */
static void query_fence_for(struct pool *pool, struct context *context, uint64_t stamp)
{
    context_lock(context);
    if (epoch_is_asked_about(&context->epochs))
        epoch_await_others(context, stamp);
    struct fence *fence = epoch_fence_for(&context->epochs, stamp, false);
    if (fence && stamp > epoch_clean(&context->epochs))
        epoch_query(pool, context, fence);
    context_unlock(context);
}

/* What a new block of that key would take: nanoseconds. */
static uint64_t miss_cost(struct pool *pool, struct host_heap *heap, uint64_t key)
{
    lock_must_be_held(&heap->context->lock);
    const struct bucket_counters *counters = host_bucket(pool, heap, key)->bucket.counters;
    uint64_t calls = counter_get(&counters->allocation_calls);
    uint64_t mean =
        calls ? counter_get(&counters->allocation_nanoseconds) / calls : MISS_NANOSECONDS;
    return smaller_of(mean, MISS_MOST_NANOSECONDS);
}

/* What an allocation that finds nothing clean may do. */
enum growth {
    GROWS,         /* take a new block */
    GROWS_IN_TURN, /* it could, but others have the turn, or there is no room: see host_has_room */
    WAITS          /* more is pending than the growth budget */
};

static bool is_past_budget(struct pool *pool, struct host_heap *heap)
{
    uint64_t budget = host_memory_of(pool)->growth_budget;
    return host_sum(heap).pending_bytes >= budget &&
           host_sweep_and_sum(heap).pending_bytes >= budget;
}

/* Whether it is this thread's turn to make a block that it could do without. While the GPU keeps
 * up, that is one thread's at a time, and takes a small part of the time: every fence waits for the
 * driver while it makes a block, so that those who wait for fences would take new blocks in turn.
 */
static bool growth_is_due(const struct host_heap *heap, uint64_t cost)
{
    uint64_t since = rest_of(monotonic_now(), counter_get(&heap->missed_at));
    return atomic_load_explicit(&heap->sharing, memory_order_relaxed) <= 1 ||
           !epoch_keeps_up(&heap->context->epochs) ||
           (!host_is_in_driver(heap) && since / GROWTH_SHARE >= cost);
}

static enum growth growth_of(struct pool *pool, struct host_heap *heap, uint64_t key, uint64_t cost)
{
    if (is_past_budget(pool, heap))
        return WAITS;
    return host_has_room(pool, heap, key) && growth_is_due(heap, cost) ? GROWS : GROWS_IN_TURN;
}

static bool is_unfenced(const struct context *context, uint64_t stamp)
{
    return stamp > epoch_clean(&context->epochs) &&
           !epoch_fence_for(&context->epochs, stamp, false);
}

/* While another thread records a fence, which may wait for others' calls. */
static void stand_by(struct context *context, uint64_t stamp, uint64_t patience)
{
    uint64_t started = monotonic_now();
    while (is_unfenced(context, stamp) && epoch_is_asked_about(&context->epochs) &&
           monotonic_now() - started < patience) {
        context_unlock(context);
        patient_nap(started);
        context_lock(context);
    }
}

/* What nobody's fence covers yet, one of this allocation's does: where the GPU has nothing to do,
 * all of it is clean then. None is recorded while there is work that only the host ends: the driver
 * might wait for it. */
static bool is_over_after_all(struct pool *pool, struct context *context, uint64_t stamp,
                              uint64_t patience)
{
    context_lock(context);
    epoch_await_others(context, stamp);
    stand_by(context, stamp, patience);
    bool records =
        is_unfenced(context, stamp) && host_work_limit(&context->epochs.host_work) == UINT64_MAX;
    context_unlock(context);
    if (records)
        epoch_nothing_runs(pool, context);
    context_lock(context);
    bool over = stamp <= epoch_clean(&context->epochs) ||
                epoch_wait_for_any(pool, context, stamp, WAIT_FOR_OWN_FENCE);
    context_unlock(context);
    return over;
}

/* Rung 4. False where the wait was in vain, or the thread has waited for as long as a new block
 * takes since it had the last one: so each gets as many as it needs. */
static bool wait_for(struct pool *pool, struct host_heap *heap, uint64_t key, uint64_t stamp)
{
    struct context *context = heap->context;
    const struct host_shard *shard = host_shard_of_thread(pool, heap);
    context_lock(context);
    uint64_t cost = miss_cost(pool, heap, key);
    context_unlock(context);
    enum growth growth = growth_of(pool, heap, key, cost);
    bool over = false;
    context_lock(context);
    if (growth == WAITS)
        over = epoch_wait_in_allocation(pool, context, stamp);
    else if (growth == GROWS_IN_TURN || !shard || counter_get(&shard->waited) < cost)
        over = epoch_wait_a_moment(pool, context, stamp, cost);
    context_unlock(context);
    if (over || growth == GROWS)
        return over;
    return is_over_after_all(pool, context, stamp,
                             host_has_room(pool, heap, key) ? WAIT_FOR_OTHERS
                                                            : WAIT_FOR_OTHERS_NO_GROWTH);
}

/* Rungs 2 to 4 without the counting. */
static struct block *find(struct pool *pool, struct host_heap *heap, uint64_t key, size_t bytes,
                          enum hit *hit)
{
    struct look look = look_through(pool, heap, key, bytes);
    *hit = HIT_CLEAN;
    if (look.block || !look.oldest)
        return look.block;
    query_fence_for(pool, heap->context, look.oldest);
    look = look_through(pool, heap, key, bytes);
    *hit = HIT_QUERIED;
    for (int tries = 0; tries < TRIES && !look.block && look.oldest; tries++) {
        if (!wait_for(pool, heap, key, look.oldest))
            return NULL;
        look = look_through(pool, heap, key, bytes);
        *hit = HIT_WAITED;
    }
    return look.block;
}

static void note_wait(struct pool *pool, struct host_heap *heap, uint64_t nanoseconds)
{
    struct host_shard *shard = host_shard_of_thread(pool, heap);
    if (!shard)
        return;
    host_lock(shard);
    counter_add(&shard->waited, nanoseconds);
    host_unlock(shard);
}

struct block *host_take(struct pool *pool, struct host_heap *heap, uint64_t key, size_t bytes)
{
    enum hit hit;
    uint64_t started = monotonic_now();
    struct block *block = find(pool, heap, key, bytes, &hit);
    if (!block)
        return NULL;
    if (hit != HIT_CLEAN)
        note_wait(pool, heap, monotonic_now() - started);
    /* Those of all shards: the block may be another thread's by now. */
    context_lock(heap->context);
    struct bucket_counters *counters = host_bucket(pool, heap, key)->bucket.counters;
    counter_add(&counters->requested_bytes, bytes);
    thread_count_wait(counters);
    counter_add(&counters->hits[hit], 1);
    context_unlock(heap->context);
    return block;
}
