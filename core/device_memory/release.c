#include "release.h"

#include "cache_set.h"
#include "core/base/clock.h"
#include "core/base/mutation.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/surroundings.h"
#include "core/driver/calls.h"
#include "core/reclaim/managed.h"
#include "core/stream_memory/stream_release.h"
#include "heap.h"
#include "sums.h"

/* How long the device may take to tell that an event is over which has nothing to wait for; and how
 * long it is not tried again after that was in vain. */
#define ANSWER_NANOSECONDS (UINT64_C(20) * 1000 * 1000)
#define VAIN_NANOSECONDS   (UINT64_C(200) * 1000 * 1000)

/* How long a call is tried again that may concern any device: nobody knows how much it needs of
 * which, and each time all that is cached goes back. */
#define ANY_DEVICE_NANOSECONDS (UINT64_C(1) * 1000 * 1000 * 1000)

/* How long it waits for a context that another thread is ending. */
#define DYING_NANOSECONDS (UINT64_C(1) * 1000 * 1000 * 1000)

/* Giving back costs milliseconds however little it is, so it is at least this share of what is
 * cached. */
#define RELEASE_SHARE 8u

/* Every so many misses the driver is asked how much memory is left. */
#define MISSES_PER_LOOK 64u

/* And every so many frees that cost more: a look costs as much as 40 records of an event. */
#define COSTLY_FREES_PER_LOOK 256u

/* What is left of a device is not asked for again sooner: nanoseconds. */
#define ROOM_INTERVAL (UINT64_C(500) * 1000 * 1000)

/* Memory is short when less than this share of the device is left, and not any more when twice as
 * much is. */
#define SHORT_SHARE 8u

/* ---- giving back ---- */

/* A stream of the context's own, made when it is first needed. */
static CUstream own_stream(struct pool *pool, struct context *context, _Atomic(CUstream) *place)
{
    /* Relaxed: the handle is a number to us, and the driver knows what it means. */
    CUstream stream = atomic_load_explicit(place, memory_order_relaxed);
    bool pushed;
    if (stream || !context_push(pool, context, &pushed))
        return stream;
    CUstream created = NULL;
    enter_driver();
    CUresult result = pool->driver->cuStreamCreate(&created, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS &&
        atomic_compare_exchange_strong_explicit(place, &stream, created, memory_order_relaxed,
                                                memory_order_relaxed))
        stream = created;
    else if (result == CUDA_SUCCESS)
        pool->driver->cuStreamDestroy_v2(created);
    leave_driver();
    context_pop(pool, pushed);
    return stream;
}

CUstream release_stream(struct pool *pool, struct context *context)
{
    return own_stream(pool, context, &context->return_stream);
}

CUstream release_late_stream(struct pool *pool, struct context *context)
{
    return own_stream(pool, context, &context->late_stream);
}

/* Lock not held. The pool has handed out a block behind a barrier, behind which the stream comes as
 * well: what that waits for may need this thread to go on. *in_vain: that was waited for in vain.
 */
static bool is_behind_own_barrier(struct context *context, bool *in_vain)
{
    const struct epochs *epochs = &context->epochs;
    heap_lock(heap_of(context));
    bool behind = epochs->barrier > epoch_clean(epochs) && !MUTATED(own_barrier_forgotten);
    *in_vain = epochs->barrier > host_work_limit(&epochs->host_work);
    heap_unlock(heap_of(context));
    return behind;
}

/* Like any other wait in an allocation: for a second at most, and then as if such work were known.
 */
static void wait_for_own_barrier(struct pool *pool, struct context *context, CUstream stream,
                                 enum release_place place)
{
    uint64_t started = monotonic_now();
    uint64_t longest =
        place == RELEASE_OUT_OF_MEMORY ? LAST_RESORT_NANOSECONDS : VAIN_WAIT_NANOSECONDS;
    CUresult result = CUDA_ERROR_NOT_READY;
    while (result == CUDA_ERROR_NOT_READY && monotonic_now() - started < longest) {
        patient_nap(started);
        result = pool->driver->cuStreamQuery(stream);
    }
    if (result != CUDA_ERROR_NOT_READY || place == RELEASE_OUT_OF_MEMORY)
        return;
    heap_lock(heap_of(context));
    epoch_give_up_waiting(pool, context);
    heap_unlock(heap_of(context));
}

/* Behind a barrier of the program's own the memory comes back when the barrier lets it, and only
 * who is out of memory waits for that, and not for long. */
static void wait_patiently(struct pool *pool, CUstream stream, enum release_place place)
{
    uint64_t started = monotonic_now();
    if (place != RELEASE_OUT_OF_MEMORY || !pool->driver->cuStreamQuery)
        return;
    while (pool->driver->cuStreamQuery(stream) == CUDA_ERROR_NOT_READY &&
           monotonic_now() - started < LAST_RESORT_NANOSECONDS)
        patient_nap(started);
}

void release_wait(struct pool *pool, struct context *context, CUstream stream,
                  enum release_place place)
{
    bool in_vain;
    if (atomic_load_explicit(&context->barred, memory_order_relaxed))
        wait_patiently(pool, stream, place);
    else if (is_behind_own_barrier(context, &in_vain)) {
        if (pool->driver->cuStreamQuery && (!in_vain || place == RELEASE_OUT_OF_MEMORY))
            wait_for_own_barrier(pool, context, stream, place);
    } else if (!MUTATED(given_back_without_synchronise))
        pool->driver->cuStreamSynchronize(stream);
}

/* The driver's part; no lock held, the context pinned. Blocks that it refuses stay BLOCK_LEAVING,
 * the others become BLOCK_UNUSED, which is looked at under the lock later. */
static void hand_to_driver(struct pool *pool, struct context *context, CUstream stream,
                           struct block *blocks, enum release_place place)
{
    const struct driver *driver = pool->driver;
    if (MUTATED(given_back_by_plain_free)) {
        stream = NULL;
        place = RELEASE_IN_FREE;
    }
    for (struct block *b = blocks; b; b = b->links[LINK_HEAP].next) {
        b->refused = !stream || driver->cuMemFreeAsync(block_address(b), stream) != CUDA_SUCCESS;
        /* A device without memory pools has the function, but it never succeeds. */
        if (b->refused && (place != RELEASE_IN_ALLOCATION || MUTATED(plain_free_in_allocation)))
            b->refused = driver->cuMemFree_v2(block_address(b)) != CUDA_SUCCESS;
    }
    if (stream)
        release_wait(pool, context, stream, place);
}

static void put_back(struct pool *pool, struct heap *heap, struct block *block)
{
    if (!block_table_insert(&pool->blocks, block_address(block), block))
        return;
    heap_count_back(block);
    heap_add_clean(heap, block);
}

/* Lock held. Returns the bytes that the driver has taken. */
static uint64_t settle(struct pool *pool, struct heap *heap, struct block *blocks,
                       enum eviction reason, uint64_t nanoseconds_each)
{
    uint64_t released = 0;
    for (struct block *next, *b = blocks; b; b = next) {
        struct bucket_counters *counters = b->bucket->counters;
        next = b->links[LINK_HEAP].next;
        if (b->refused) {
            put_back(pool, heap, b);
            continue;
        }
        released += b->bytes;
        if (reason != EVICTION_IDLE && b->bucket->bytes)
            keep_note_vain(&heap->keep, b->bytes);
        thread_caches_update_closed(heap);
        heap_forget_block(pool, heap, b);
        bucket_count_return(counters, reason, nanoseconds_each);
    }
    return released;
}

struct search {
    struct block *found;
};

static void prefer_larger(struct bucket *bucket, void *argument)
{
    struct search *search = argument;
    struct block *oldest = bucket->clean.first;
    if (oldest && (!search->found || oldest->bytes > search->found->bytes))
        search->found = oldest;
}

static void prefer_older(struct bucket *bucket, void *argument)
{
    struct search *search = argument;
    struct block *oldest = bucket->clean.first;
    if (oldest &&
        (!search->found || counter_get(&oldest->epoch) < counter_get(&search->found->epoch)))
        search->found = oldest;
}

static struct block *find_clean(struct heap *heap, void (*prefer)(struct bucket *, void *))
{
    struct search search = {NULL};
    heap_visit_buckets(heap, prefer, &search);
    return search.found;
}

/* The largest bucket stays the largest until it is empty. */
static struct block *find_largest(struct heap *heap)
{
    struct block *found =
        heap->draining && heap->draining->clean.first ? heap->draining->clean.first : NULL;
    if (!found)
        found = find_clean(heap, prefer_larger);
    heap->draining = found ? found->bucket : NULL;
    return found;
}

/* Lock held. Blocks that are not kept go before all others. */
static struct block *choose_victim(const struct pool *pool, struct heap *heap)
{
    bool lru = pool->settings.device.evict == EVICT_LEAST_RECENTLY_USED;
    if (MUTATED(pending_given_back) && heap->pending.first)
        return heap->pending.first;
    if (heap->unkept.clean.first)
        return heap->unkept.clean.first;
    return lru ? find_clean(heap, prefer_older) : find_largest(heap);
}

/* What a release may take: the next block to give back, or NULL. Called with the lock held. */
typedef struct block *chooser(const struct pool *pool, struct context *context, uint64_t released,
                              void *argument);

/* Takes clean blocks out of the heap, chained through their heap links. */
static struct block *collect(struct pool *pool, struct context *context, chooser *choose,
                             void *argument, uint64_t *count)
{
    struct block *chain = NULL, *block;
    uint64_t bytes = 0;
    heap_lock(heap_of(context));
    heap_of(context)->draining = NULL;
    while ((block = choose(pool, context, bytes, argument)) != NULL) {
        heap_begin_leaving(heap_of(context), block);
        block_table_remove(&pool->blocks, block_address(block), block);
        block->links[LINK_HEAP].next = chain;
        chain = block;
        bytes += block->bytes;
        ++*count;
    }
    /* Relaxed: whoever finds the heap without these blocks has taken the lock after this. */
    atomic_fetch_add_explicit(&context->device->returning, *count, memory_order_relaxed);
    heap_unlock(heap_of(context));
    return chain;
}

/* Bytes of all contexts of a device (NULL: of all devices) that are clean, and pending too if
 * wanted. */
static inline uint64_t kept_bytes(struct pool *pool, struct device *device, bool pending)
{
    uint64_t bytes = 0;
    for (struct context *c = context_next(pool, NULL, device); c;
         c = context_next(pool, c, device)) {
        struct heap_bytes of_one = heap_bytes(heap_of(c));
        bytes += of_one.clean + (pending ? of_one.pending : 0);
    }
    return bytes;
}

static bool can_release(const struct pool *pool, enum release_place place)
{
    return returns_in_stream_order(pool) || place != RELEASE_IN_ALLOCATION ||
           MUTATED(plain_free_in_allocation);
}

static void refuse_all(struct block *chain)
{
    for (struct block *b = chain; b; b = b->links[LINK_HEAP].next)
        b->refused = true;
}

static void give_back(struct pool *pool, struct context *context, struct block *chain,
                      enum release_place place)
{
    bool pushed;
    look_at_objects(pool);
    enter_driver();
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    bool current = context_push(pool, context, &pushed);
    CUstream stream = returns_in_stream_order(pool) ? release_stream(pool, context) : NULL;
    if (current)
        hand_to_driver(pool, context, stream, chain, place);
    else
        refuse_all(chain);
    context_pop(pool, pushed);
    relaxed_mode_end(pool->driver, mode);
    leave_driver();
}

/* Pinned for the whole of it, so that a death of the context finds no block half gone. */
static uint64_t release_pinned(struct pool *pool, struct context *context, chooser *choose,
                               void *argument, enum eviction reason, enum release_place place)
{
    uint64_t count = 0;
    struct block *chain = collect(pool, context, choose, argument, &count);
    if (!chain)
        return 0;
    uint64_t started = monotonic_now();
    give_back(pool, context, chain, place);
    uint64_t each = (monotonic_now() - started) / count;
    heap_lock(heap_of(context));
    uint64_t released = settle(pool, heap_of(context), chain, reason, each);
    atomic_fetch_sub_explicit(&context->device->returning, count, memory_order_relaxed);
    heap_unlock(heap_of(context));
    return released;
}

/* A context that is about to end may live on after all: memory that is needed now is waited for,
 * but not for long. */
static bool pin_patiently(struct context *context, enum release_place place)
{
    uint64_t generation = context_generation(context);
    uint64_t started = monotonic_now();
    while (!context_pin(context, generation)) {
        bool over = context_generation(context) != generation || (generation & 1) == 0;
        if (over || place != RELEASE_OUT_OF_MEMORY || monotonic_now() - started > DYING_NANOSECONDS)
            return false;
        patient_nap(started);
    }
    return true;
}

static uint64_t release_chosen(struct pool *pool, struct context *context, chooser *choose,
                               void *argument, enum eviction reason, enum release_place place)
{
    if (!can_release(pool, place) || !pin_patiently(context, place))
        return 0;
    uint64_t released = release_pinned(pool, context, choose, argument, reason, place);
    context_unpin(context);
    return released;
}

/* ---- which blocks ---- */

static struct block *choose_until(const struct pool *pool, struct context *context,
                                  uint64_t released, void *argument)
{
    const uint64_t *wanted = argument;
    return released < *wanted ? choose_victim(pool, heap_of(context)) : NULL;
}

/* What threads have in their caches can be chosen too. */
static void collect_caches(struct context *context)
{
    if (MUTATED(caches_not_reached))
        return;
    heap_lock(heap_of(context));
    thread_caches_collect(heap_of(context));
    heap_unlock(heap_of(context));
}

uint64_t release_clean(struct pool *pool, struct context *context, uint64_t bytes,
                       enum eviction reason, enum release_place place)
{
    if (counter_get(&heap_of(context)->clean_bytes) < bytes)
        collect_caches(context);
    return release_chosen(pool, context, choose_until, &bytes, reason, place);
}

struct crowded {
    const struct heap *heap;
    uint64_t cap;
    bool any;            /* a bucket is over the cap, perhaps with nothing clean in it yet */
    struct block *block; /* to give back */
};

static void find_crowded(struct bucket *bucket, void *argument)
{
    struct crowded *crowded = argument;
    if (bucket->free_blocks + bucket->granted <= crowded->cap || MUTATED(blocks_cap_ignored))
        return;
    crowded->any = true;
    if (!crowded->block && heap_free_blocks(crowded->heap, bucket) > crowded->cap)
        crowded->block = bucket->clean.first;
}

static struct block *choose_crowded(const struct pool *pool, struct heap *heap)
{
    struct crowded crowded = {heap, pool->settings.device.caps.blocks_per_bucket, false, NULL};
    if (heap->crowded)
        heap_visit_buckets(heap, find_crowded, &crowded);
    heap->crowded = crowded.any;
    return crowded.block;
}

/* Blocks over the caps, the bytes cap being exceeded by *argument, and those that are not kept. */
static struct block *choose_over_cap(const struct pool *pool, struct context *context,
                                     uint64_t released, void *argument)
{
    struct heap *heap = heap_of(context);
    const uint64_t *excess = argument;
    if (heap->unkept.clean.first)
        return heap->unkept.clean.first;
    if (released < *excess)
        return choose_victim(pool, heap);
    return choose_crowded(pool, heap);
}

static struct block *choose_idle(const struct pool *pool, struct context *context,
                                 uint64_t released, void *argument)
{
    struct block *oldest = find_clean(heap_of(context), prefer_older);
    const uint64_t *now = argument;
    (void)released;
    bool idle = !MUTATED(idle_ignored) && oldest &&
                oldest->freed_at + pool->settings.device.release_after_idle_ns <= *now;
    return idle ? oldest : NULL;
}

struct release_excess release_look_for_excess(const struct pool *pool, struct heap *heap)
{
    uint64_t idle = pool->settings.device.release_after_idle_ns;
    struct release_excess excess = {.now = monotonic_now()};
    excess.idle = idle && excess.now - heap->idle_checked_at >= idle / 4;
    excess.other = heap->crowded || heap->unkept.clean.first;
    if (excess.idle)
        heap->idle_checked_at = excess.now;
    counter_set(&heap->now, excess.now);
    return excess;
}

/* Bytes by which all contexts of the device together are over the cap, or in the way of managed
 * memory. */
static uint64_t bytes_over_cap(struct pool *pool, struct context *context)
{
    uint64_t cap = context->device->cached_cap;
    /* Looking through all caches costs their threads something: not where it cannot be. */
    if (atomic_load_explicit(&context->device->reserved_bytes, memory_order_relaxed) <= cap &&
        !managed_is_crowded(context->device))
        return 0;
    uint64_t cached = MUTATED(bytes_cap_of_one_context) ? heap_bytes(heap_of(context)).clean
                                                        : kept_bytes(pool, context->device, true);
    uint64_t over = cached > cap && !MUTATED(bytes_cap_ignored) ? cached - cap : 0;
    uint64_t in_the_way = managed_in_the_way(context->device, cached);
    return over > in_the_way ? over : in_the_way;
}

/* What the context itself could not give. cuMemFree would wait for the others' work. */
static void release_in_other_contexts(struct pool *pool, struct context *context)
{
    struct device *device = context->device;
    uint64_t over = bytes_over_cap(pool, context);
    for (struct context *c = context_next(pool, NULL, device); c && over;
         c = context_next(pool, c, device)) {
        uint64_t released =
            c == context ? 0 : release_clean(pool, c, over, EVICTION_CAP, RELEASE_IN_ALLOCATION);
        over -= released < over ? released : over;
    }
}

/* Where nothing can be given back before a miss, the reserve is held to its ratio in the frees. */
static void release_over_bound(struct pool *pool, struct context *context)
{
    struct heap *heap = heap_of(context);
    heap_lock(heap);
    uint64_t bound = release_bound(pool, context, heap_bytes(heap).requested, 0);
    heap_unlock(heap);
    uint64_t reserved = counter_get(&heap->reserved_bytes);
    if (reserved > bound && !MUTATED(reserve_ratio_ignored))
        release_clean(pool, context, reserved - bound, EVICTION_CAP, RELEASE_IN_FREE);
}

void release_found_excess(struct pool *pool, struct context *context,
                          const struct release_excess *excess, enum release_place place)
{
    uint64_t now = excess->now, over = bytes_over_cap(pool, context);
    figures_sample(&pool->figures, now);
    if (over || excess->idle)
        collect_caches(context);
    if (over || excess->other)
        release_chosen(pool, context, choose_over_cap, &over, EVICTION_CAP, place);
    if (over)
        release_in_other_contexts(pool, context);
    if (excess->idle)
        release_chosen(pool, context, choose_idle, &now, EVICTION_IDLE, place);
    if (place == RELEASE_IN_FREE && !returns_in_stream_order(pool))
        release_over_bound(pool, context);
}

void release_excess(struct pool *pool, struct context *context, enum release_place place)
{
    heap_lock(heap_of(context));
    struct release_excess excess = release_look_for_excess(pool, heap_of(context));
    heap_unlock(heap_of(context));
    release_found_excess(pool, context, &excess, place);
}

/* ---- before a miss ---- */

uint64_t release_bound(const struct pool *pool, const struct context *context, uint64_t requested,
                       uint64_t bytes)
{
    const struct heap *heap = heap_of(context);
    uint64_t held = requested + bytes;
    uint64_t peak = counter_get(&heap->counters->peak_requested);
    if (peak < held)
        peak = held;
    return (uint64_t)((double)peak * pool->settings.device.caps.reserve_ratio) +
           context->device->growth_budget;
}

/* Waits for the oldest fence, if an allocation may. */
static bool wait_for_oldest(struct pool *pool, struct context *context)
{
    struct heap *heap = heap_of(context);
    heap_lock(heap);
    bool waited = heap->pending.first &&
                  epoch_wait_in_allocation(pool, context, counter_get(&heap->pending.first->epoch));
    heap_unlock(heap);
    return waited;
}

void release_before_growth(struct pool *pool, struct context *context, uint64_t bytes)
{
    struct heap *heap = heap_of(context);
    heap_lock(heap);
    uint64_t bound = release_bound(pool, context, heap_bytes(heap).requested, bytes);
    heap_unlock(heap);
    for (;;) {
        uint64_t after = counter_get(&heap->reserved_bytes) + bytes;
        if (after <= bound || MUTATED(reserve_ratio_ignored))
            return;
        struct heap_bytes kept = heap_bytes(heap);
        if (kept.clean + kept.pending == 0)
            return;
        uint64_t share = kept.clean / RELEASE_SHARE;
        uint64_t wanted = after - bound > share ? after - bound : share;
        if (release_clean(pool, context, wanted, EVICTION_CAP, RELEASE_IN_ALLOCATION) == 0 &&
            !wait_for_oldest(pool, context))
            return;
    }
}

static bool take_reserve(struct device *device, uint64_t bytes)
{
    uint64_t reserved = atomic_load_explicit(&device->reserved_bytes, memory_order_relaxed);
    do {
        if ((bytes > device->limit || reserved > device->limit - bytes) && !MUTATED(limit_ignored))
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&device->reserved_bytes, &reserved,
                                                    reserved + bytes, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

bool release_reserve(struct pool *pool, struct context *context, uint64_t bytes,
                     bool in_stream_order)
{
    struct device *device = context->device;
    struct reclaim progress = {
        .bytes = bytes, .wanted = bytes, .within_limit = true, .in_stream_order = in_stream_order};
    bool taken = take_reserve(device, bytes);
    while (!taken && bytes <= device->limit && release_for_retry(pool, device, &progress))
        taken = take_reserve(device, bytes);
    return taken;
}

/* ---- out of memory ---- */

/* Memory has become short: large blocks are kept only if that turns out to be worth it. */
static void note_shortage(struct context *context)
{
    if (device_is_short(context->device))
        return;
    device_set_short(context->device, true);
    heap_lock(heap_of(context));
    keep_begin_trial(&heap_of(context)->keep);
    thread_caches_update_closed(heap_of(context));
    heap_unlock(heap_of(context));
}

static uint64_t release_clean_everywhere(struct pool *pool, struct device *device, uint64_t bytes)
{
    uint64_t released = 0;
    for (struct context *c = context_next(pool, NULL, device); c && released < bytes;
         c = context_next(pool, c, device)) {
        note_shortage(c);
        released +=
            release_clean(pool, c, bytes - released, EVICTION_MEMORY, RELEASE_OUT_OF_MEMORY);
    }
    if (released < bytes)
        released += stream_release_clean(pool, device, bytes - released, EVICTION_MEMORY,
                                         RELEASE_OUT_OF_MEMORY);
    return released;
}

static uint64_t newest_waitable(const struct epochs *epochs)
{
    uint64_t newest = 0;
    for (const struct fence *f = epochs->oldest; f; f = f->next)
        if (f->waitable)
            newest = f->epoch;
    return newest;
}

void release_wait_for_pending(struct pool *pool, struct context *context, uint64_t give_up_at)
{
    struct heap *heap = heap_of(context);
    heap_lock(heap);
    thread_caches_collect(heap);
    if (heap->pending.last)
        epoch_wait_until(pool, context, counter_get(&heap->pending.last->epoch),
                         MUTATED(last_resort_unbounded) ? UINT64_MAX : give_up_at);
    heap_unlock(heap);
}

/* Frees that no waitable fence covers: a fence of now covers later work too, so the wait for it is
 * bounded. */
static void settle_the_rest(struct pool *pool, struct context *context, uint64_t give_up_at)
{
    epoch_fence_the_rest(pool, context);
    release_wait_for_pending(pool, context, give_up_at);
}

/* Also where nothing of ours is pending: the plain frees would have waited, and what the program
 * freed in a stream's order, past the pool, would have been back after that. Bounded: the program
 * may have taken a lock since that the work needs. */
static void settle_fenced(struct pool *pool, struct context *context, uint64_t give_up_at)
{
    struct heap *heap = heap_of(context);
    heap_lock(heap);
    uint64_t stamp = newest_waitable(&context->epochs);
    if (stamp)
        epoch_wait_when_short(pool, context, stamp,
                              MUTATED(shortage_waits_for_ever) ? 0 : give_up_at);
    heap_unlock(heap);
}

typedef void settler(struct pool *pool, struct context *context, uint64_t give_up_at);

/* How long what streams have left pending is waited for. In a stream's order only until the device
 * has had time to tell of work that is over. */
static uint64_t patience_of(const struct device *device, const struct reclaim *progress)
{
    uint64_t vain_until =
        device ? atomic_load_explicit(&device->vain_until, memory_order_relaxed) : 0;
    if (!progress->in_stream_order || MUTATED(waits_in_stream_order))
        return LAST_RESORT_NANOSECONDS;
    return monotonic_now() < vain_until ? 0 : ANSWER_NANOSECONDS;
}

static void settle_streams(struct pool *pool, struct device *device, const struct reclaim *progress)
{
    uint64_t patience = patience_of(device, progress), now = monotonic_now();
    uint64_t longest = progress->started + LAST_RESORT_NANOSECONDS;
    stream_release_settle_until(pool, device, now + patience < longest ? now + patience : longest);
    if (device && progress->in_stream_order && patience)
        atomic_store_explicit(&device->vain_until, monotonic_now() + VAIN_NANOSECONDS,
                              memory_order_relaxed);
}

static uint64_t release_all_pending(struct pool *pool, struct device *device,
                                    const struct reclaim *progress, settler *settle_one)
{
    uint64_t give_up_at = progress->started + LAST_RESORT_NANOSECONDS;
    for (struct context *c = context_next(pool, NULL, device); c; c = context_next(pool, c, device))
        settle_one(pool, c, give_up_at);
    if (settle_one == settle_the_rest)
        settle_streams(pool, device, progress);
    return release_clean_everywhere(pool, device, UINT64_MAX);
}

static void trim_pool(struct pool *pool, CUresult (*get)(CUmemoryPool *, CUdevice), CUdevice device)
{
    CUmemoryPool memory_pool;
    if (get && get(&memory_pool, device) == CUDA_SUCCESS)
        pool->driver->cuMemPoolTrimTo(memory_pool, 0);
}

/* The driver's own pools keep memory too. */
static bool trim_driver(struct pool *pool, const struct device *wanted)
{
    const struct driver *driver = pool->driver;
    if (!driver->cuMemPoolTrimTo)
        return false;
    enter_driver();
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    const struct device *device = registry_devices(&pool->registry);
    for (; device; device = device->next) {
        if (wanted && device != wanted)
            continue;
        trim_pool(pool, driver->cuDeviceGetDefaultMemPool, device->ordinal);
        trim_pool(pool, driver->cuDeviceGetMemPool, device->ordinal);
    }
    relaxed_mode_end(pool->driver, mode);
    leave_driver();
    return true;
}

/* What is missing may be less than all that is cached: first as much as was asked for, then twice
 * that, and so on. */
static bool release_some_clean(struct pool *pool, struct device *device, struct reclaim *progress)
{
    stream_release_settle(pool, device);
    uint64_t bytes = progress->bytes ? progress->bytes : UINT64_MAX;
    uint64_t share =
        (kept_bytes(pool, device, false) + stream_release_sum(pool, device).cached) / RELEASE_SHARE;
    if (bytes < share)
        bytes = share;
    uint64_t released = release_clean_everywhere(pool, device, bytes);
    progress->bytes = bytes > UINT64_MAX / 2 ? UINT64_MAX : 2 * bytes;
    progress->released += released;
    if (released == 0 || bytes == UINT64_MAX)
        progress->step++;
    return released != 0;
}

/* Whether there was anything pending that could be given back. */
static bool release_pending(struct pool *pool, struct device *device, struct reclaim *progress,
                            settler *settle_one)
{
    uint64_t released = release_all_pending(pool, device, progress, settle_one);
    progress->released += released;
    return released != 0;
}

static bool left_out(enum reclaim_step step)
{
    return (step == RECLAIM_CLEAN && MUTATED(clean_step_left_out)) ||
           (step == RECLAIM_FENCED && MUTATED(fenced_step_left_out)) ||
           (step == RECLAIM_DRIVER && MUTATED(trim_step_left_out)) ||
           (step == RECLAIM_THE_REST && MUTATED(last_step_left_out));
}

/* From what costs nothing to what may take long. The first step is taken until it has given back
 * all that there is. */
static bool take_step(struct pool *pool, struct device *device, struct reclaim *progress)
{
    if (left_out(progress->step)) {
        progress->step++;
        return false;
    }
    if (progress->step == RECLAIM_CLEAN)
        return release_some_clean(pool, device, progress);
    switch (progress->step++) {
    case RECLAIM_FENCED:
        return release_pending(pool, device, progress, settle_fenced);
    case RECLAIM_DRIVER:
        return trim_driver(pool, device);
    case RECLAIM_THE_REST:
        if (!release_pending(pool, device, progress, settle_the_rest))
            return false;
        /* What the program freed in a stream's order is back by now, too. */
        trim_driver(pool, device);
        return true;
    default:
        return false;
    }
}

/* Blocks that are in no heap any more, but not the driver's yet either. */
static bool others_give_back(struct pool *pool, const struct device *wanted)
{
    const struct device *device = registry_devices(&pool->registry);
    for (; device; device = device->next)
        if ((!wanted || device == wanted) &&
            atomic_load_explicit(&device->returning, memory_order_relaxed))
            return true;
    return false;
}

/* False where it is not over in a reasonable time. */
static bool wait_while_others_give_back(struct pool *pool, const struct device *device,
                                        uint64_t started)
{
    while (others_give_back(pool, device)) {
        if (monotonic_now() - started > LAST_RESORT_NANOSECONDS)
            return false;
        patient_nap(started);
    }
    return true;
}

/* A sum that is another one when threads have allocated, freed or closed an epoch meanwhile, or
 * what they had in their caches has come out. */
static uint64_t sum_of_changes(struct pool *pool, struct device *device)
{
    uint64_t sum = kept_bytes(pool, device, true);
    for (struct context *c = context_next(pool, NULL, device); c; c = context_next(pool, c, device))
        sum += counter_get(&heap_of(c)->reserved_bytes) + counter_get(&heap_of(c)->misses) +
               counter_get(&heap_of(c)->counters->fences) +
               counter_get(&heap_of(c)->caches.emptied);
    return sum;
}

/* Memory that this thread gave back may have gone to another thread, whose own is still on the way,
 * or others may have moved theirs between two looks of this thread's: without the pool there would
 * have been enough for all. */
static bool begin_again(struct pool *pool, struct device *device, struct reclaim *progress)
{
    uint64_t patience = device ? LAST_RESORT_NANOSECONDS : ANY_DEVICE_NANOSECONDS;
    bool again =
        monotonic_now() - progress->started < patience && (device || !MUTATED(room_made_once));
    progress->step = again ? RECLAIM_CLEAN : RECLAIM_DONE;
    progress->bytes = 0;
    progress->released = 0;
    progress->seen = sum_of_changes(pool, device);
    return again;
}

/* What others have just given back is there, however long it took them. */
static bool try_once_more(struct pool *pool, struct device *device, struct reclaim *progress)
{
    begin_again(pool, device, progress);
    return monotonic_now() - progress->started < LAST_RESORT_NANOSECONDS;
}

/* What is kept, the most of two looks: memory that has gone back to the driver after the first one
 * may be missing in what the driver said before that. */
static uint64_t most_kept(struct pool *pool, struct device *device, uint64_t before)
{
    uint64_t now = kept_bytes(pool, device, true);
    return now > before ? now : before;
}

static bool fits_in_limit(struct pool *pool, struct device *device, uint64_t bytes)
{
    uint64_t before = kept_bytes(pool, device, true);
    uint64_t reserved = atomic_load_explicit(&device->reserved_bytes, memory_order_relaxed);
    uint64_t kept = most_kept(pool, device, before);
    return reserved < kept || reserved - kept <= device->limit - bytes;
}

static bool fits_in_device(struct pool *pool, struct device *device, uint64_t bytes)
{
    uint64_t before = kept_bytes(pool, device, true);
    size_t left, total;
    enter_driver();
    struct relaxed_mode mode = relaxed_mode_begin(pool->driver);
    CUresult result = pool->driver->cuMemGetInfo_v2(&left, &total);
    relaxed_mode_end(pool->driver, mode);
    leave_driver();
    return result == CUDA_SUCCESS && left + most_kept(pool, device, before) >= bytes;
}

/* Whoever has taken blocks out of a heap counts them as returning under the same lock. */
static bool others_have_begun_to_give_back(struct pool *pool, struct device *device)
{
    for (struct context *c = context_next(pool, NULL, device); c;
         c = context_next(pool, c, device)) {
        heap_lock(heap_of(c));
        heap_unlock(heap_of(c));
    }
    return others_give_back(pool, device);
}

/* Whether there would be enough if all that is kept were given back, or may be. */
static bool could_fit(struct pool *pool, struct device *device, const struct reclaim *progress)
{
    if (others_have_begun_to_give_back(pool, device))
        return true;
    return progress->within_limit ? fits_in_limit(pool, device, progress->wanted)
                                  : fits_in_device(pool, device, progress->wanted);
}

static bool others_are_at_it(struct pool *pool, struct device *device,
                             const struct reclaim *progress)
{
    if (progress->wanted == 0 || sum_of_changes(pool, device) == progress->seen ||
        !could_fit(pool, device, progress) || MUTATED(others_changes_ignored))
        return false;
    patient_nap(progress->started);
    return true;
}

bool release_for_retry(struct pool *pool, struct device *device, struct reclaim *progress)
{
    if (progress->started == 0) {
        progress->started = monotonic_now();
        progress->seen = sum_of_changes(pool, device);
    }
    do {
        while (progress->step < RECLAIM_DONE)
            if (take_step(pool, device, progress))
                return true;
        if (others_give_back(pool, device))
            return wait_while_others_give_back(pool, device, progress->started) &&
                   try_once_more(pool, device, progress);
    } while ((progress->released || others_are_at_it(pool, device, progress)) &&
             begin_again(pool, device, progress));
    return false;
}

/* What this process holds says so without a call; the driver knows of other processes. */
static bool is_nearly_full(struct pool *pool, struct context *context, bool was_short, bool ask)
{
    const struct device *device = context->device;
    uint64_t reserved = atomic_load_explicit(&device->reserved_bytes, memory_order_relaxed);
    if (reserved > device->total_bytes - device->total_bytes / SHORT_SHARE)
        return true;
    if (!ask)
        return was_short;
    size_t left, total;
    enter_driver();
    CUresult result = pool->driver->cuMemGetInfo_v2(&left, &total);
    leave_driver();
    if (result != CUDA_SUCCESS)
        return was_short;
    /* Between the two, what was found last stays. */
    return was_short ? left <= 2 * (total / SHORT_SHARE) : left < total / SHORT_SHARE;
}

static void look_at_room(struct pool *pool, struct context *context, uint64_t now)
{
    struct device *device = context->device;
    uint64_t reserved = atomic_load_explicit(&device->reserved_bytes, memory_order_relaxed);
    size_t left, total;
    bool pushed;
    if (!context_push(pool, context, &pushed))
        return;
    enter_driver();
    CUresult result = pool->driver->cuMemGetInfo_v2(&left, &total);
    leave_driver();
    context_pop(pool, pushed);
    if (result != CUDA_SUCCESS)
        return;
    atomic_store_explicit(&device->could_hold, left + reserved, memory_order_relaxed);
    atomic_store_explicit(&device->could_hold_at, now, memory_order_relaxed);
}

uint64_t release_room(struct pool *pool, struct context *context, uint64_t now)
{
    struct device *device = context->device;
    uint64_t looked_at = atomic_load_explicit(&device->could_hold_at, memory_order_relaxed);
    if (!looked_at || now - looked_at >= ROOM_INTERVAL)
        look_at_room(pool, context, now);
    uint64_t most = atomic_load_explicit(&device->could_hold, memory_order_relaxed);
    uint64_t reserved = atomic_load_explicit(&device->reserved_bytes, memory_order_relaxed);
    if (most > device->limit)
        most = device->limit;
    return most > reserved ? most - reserved : 0;
}

void release_look_at_memory(struct pool *pool, struct context *context)
{
    bool was_short = device_is_short(context->device);
    bool ask = counter_get(&heap_of(context)->misses) % MISSES_PER_LOOK == 1;
    if (is_nearly_full(pool, context, was_short, ask))
        note_shortage(context);
    else if (was_short)
        device_set_short(context->device, false);
}

void release_look_again(struct pool *pool, struct context *context)
{
    struct device *device = context->device;
    bool pushed;
    if (!device_is_short(device) ||
        /* Relaxed: it chooses who looks. */
        atomic_fetch_add_explicit(&device->frees_while_short, 1, memory_order_relaxed) %
                COSTLY_FREES_PER_LOOK !=
            COSTLY_FREES_PER_LOOK - 1 ||
        !context_push(pool, context, &pushed))
        return;
    if (!is_nearly_full(pool, context, true, true))
        device_set_short(device, false);
    context_pop(pool, pushed);
}
