#include "policies.h"

#include "cache_set.h"
#include "core/base/clock.h"
#include "core/base/numbers.h"
#include "core/contexts/capture.h"
#include "core/contexts/device.h"
#include "core/contexts/fence_list.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/contexts/surroundings.h"
#include "release.h"
#include "sums.h"

/* A thread that may take a new block leaves clean blocks where they are, within two bounds:
 *
 *   their bytes of its size, in other threads' caches <= ring / STRANDED_SHARE
 *   their bytes of other sizes, in the heap's lists <= growth_budget / STRANDED_SHARE
 *
 * ring = hot_bytes while memory is to stay hot, and growth_budget otherwise. Within the first bound
 * each thread has enough blocks of its own sooner or later. Past it, the thread takes those blocks.
 * Past the second bound it may trade them for a new block (may_trade_unused_for_it). */
#define STRANDED_SHARE 4u

/* An allocation might need the pending bytes if they exceed 1 / MISSED_SHARE of the room. The room
 * is what the device has left, plus clean bytes. */
#define MISSED_SHARE 8u

/* is_missed looks ahead by this many requests of the largest size in a row. */
#define MISSED_REQUESTS 4u

/* A new block is taken to cost at least this many nanoseconds. */
#define LEAST_COST_OF_GROWTH 10000u

/* With more waste than this, a program that fills the device would not fit:
 *
 *   bytes of live blocks - requested bytes <= total_bytes / HEAP_WASTE_SHARE
 *   spare bytes that cannot serve a request <= total_bytes / HEAP_WASTE_SHARE
 */
#define HEAP_WASTE_SHARE 64u

/* ---- a new block, or a pending one ---- */

/* Whether the context's reserved bytes stay within their bound (release_bound) with this many bytes
 * more. */
static bool is_inside_bound(const struct pool *pool, struct context *context, uint64_t bytes)
{
    uint64_t requested = heap_recent_sums(heap_of(context), 0)->requested;
    return counter_get(&heap_of(context)->reserved_bytes) + bytes <=
           release_bound(pool, context, requested, bytes);
}

/* Whether a new block would displace another one. At once:
 *
 *   reserved bytes of the device + bucket->bytes > device->limit
 *
 * Or later, when the new block is freed:
 *
 *   kept bytes of the heap + bucket->bytes > device->cached_cap
 *   free blocks of the bucket >= heap->blocks_per_bucket
 */
static bool new_block_displaces_another(struct context *context, const struct bucket *bucket)
{
    struct heap *heap = heap_of(context);
    uint64_t bytes = bucket->bytes;
    const struct device *device = context->device;
    return device_reserved(device) + bytes > device_limit(device, BOARD_LIMIT_OF_PROCESS) ||
           heap_kept_bytes(heap) + bytes > device->cached_cap ||
           heap_free_blocks(heap, bucket) >= heap->blocks_per_bucket;
}

bool policy_may_grow(struct pool *pool, struct context *context, const struct bucket *bucket)
{
    lock_must_be_held(&context->lock);
    struct heap *heap = heap_of(context);
    uint64_t pending = counter_get(&heap->pending_bytes) + heap_recent_sums(heap, 0)->pending_bytes;
    return pending <= context->device->growth_budget &&
           is_inside_bound(pool, context, bucket->bytes) &&
           !new_block_displaces_another(context, bucket);
}

static bool prefers_growth(struct pool *pool, struct context *context, const struct place *place)
{
    lock_must_be_held(&context->lock);
    const struct bucket *bucket = place->bucket;
    if (place_oldest_stamp(place))
        return policy_may_grow(pool, context, bucket);
    /* Nothing is pending here that the thread could wait for, so the growth budget does not
     * count. */
    return is_inside_bound(pool, context, bucket->bytes) &&
           !new_block_displaces_another(context, bucket);
}

int64_t policy_cost_of_growth(const struct heap *heap)
{
    return (int64_t)larger_of(counter_get(&heap->miss_cost), LEAST_COST_OF_GROWTH);
}

bool policy_growth_is_due(const struct heap *heap)
{
    return heap->caches.count <= 1 ||
           atomic_load_explicit(&heap->threads_in_miss, memory_order_relaxed) == 0;
}

/* Whether a new block of this bucket is allowed even where the reserve would pass its bound. The
 * miss then releases clean blocks of other sizes from the heap's lists. Nobody is likely to want
 * those, since blocks of sizes in use are mostly in thread caches. The conditions:
 *
 *   clean bytes of other sizes in the heap's lists > growth_budget / STRANDED_SHARE
 *   heap->pending_bytes <= growth_budget
 *   !new_block_displaces_another
 */
static bool may_trade_unused_for_it(struct context *context, const struct bucket *bucket)
{
    const struct heap *heap = heap_of(context);
    uint64_t budget = context->device->growth_budget;
    uint64_t unused = counter_get(&heap->clean_bytes);
    uint64_t own = counter_get(&bucket->counters->clean_bytes);
    return unused - own > budget / STRANDED_SHARE && counter_get(&heap->pending_bytes) <= budget &&
           !new_block_displaces_another(context, bucket);
}

bool policy_waited_longer_than_a_miss(struct pool *pool, struct context *context,
                                      const struct place *place)
{
    lock_must_be_held(&context->lock);
    struct thread_cache *cache = place->bin ? place->cache : NULL;
    if (!cache || cache->waited_ns < policy_cost_of_growth(heap_of(context)) ||
        !policy_growth_is_due(heap_of(context)))
        return false;
    /* On a full device the driver has no memory left, and the pool would evict cached blocks for
     * the new one. */
    bool grows =
        !device_is_short(context->device) && (policy_may_grow(pool, context, place->bucket) ||
                                              may_trade_unused_for_it(context, place->bucket));
    cache->waited_ns = grows ? 0 : -CACHE_WAIT_NO_GROWTH;
    return grows;
}

bool policy_nobody_has_one(const struct heap *heap, const struct bucket *bucket)
{
    heap_lock_must_be_held(heap);
    return bucket->free_blocks == 0 && heap->caches.count <= SUMS_FEW_THREADS &&
           thread_caches_blocks(heap, bucket, NULL, false) == 0;
}

bool policy_can_wait(const struct context *context, const struct place *place)
{
    lock_must_be_held(&context->lock);
    const struct epochs *epochs = &context->epochs;
    uint64_t stamp = place_oldest_stamp(place);
    return stamp && (epoch_fence_is_near(epochs) || epoch_fence_for(epochs, stamp, true));
}

bool policy_other_caches_hold_bucket(struct pool *pool, struct context *context,
                                     const struct place *place)
{
    lock_must_be_held(&context->lock);
    struct heap *heap = heap_of(context);
    bool plenty = prefers_growth(pool, context, place) && !device_is_short(context->device) &&
                  heap_kept_bytes(heap) <= context->device->cached_cap / 2;
    uint64_t ring =
        policy_keeps_hot(pool, heap) ? context->device->hot_bytes : context->device->growth_budget;
    uint64_t most = plenty ? ring / STRANDED_SHARE : 0;
    bool waits = policy_can_wait(context, place), clean = plenty || waits;
    /* A thread that can wait leaves the caches alone while the GPU keeps up, and for a while after
     * blocks of the bucket were taken. */
    if (waits && (heap_keeps_up(heap) ||
                  counter_get(&heap->now) <
                      device_bucket(place->bucket)->taken_from_caches_at + CACHE_TAKEN_APART))
        return false;
    uint64_t blocks = thread_caches_blocks(heap, place->bucket, place->cache, clean);
    return blocks * place->bucket->bytes > most;
}

bool policy_barriers_may_be_used(struct pool *pool, struct heap *heap)
{
    heap_lock_must_be_held(heap);
    bool others = heap->caches.count > 1 && heap_recent_sums(heap, SUMS_EPOCHS_OLD)->freeing > 1;
    bool alone = heap->uses_in_a_row == HEAP_USES_ALONE && !others && launches_alone(pool);
    return (alone || policy_keeps_hot(pool, heap)) && barriers_are_open(pool);
}

bool policy_is_ahead(struct context *context, const struct thread_cache *cache)
{
    lock_must_be_held(&context->lock);
    struct heap *heap = heap_of(context);
    uint64_t budget = context->device->growth_budget;
    uint8_t slot = heap_slot_of_this_thread();
    if (heap->caches.count <= 1 && !(heap->pending_slots & ~(UINT64_C(1) << slot)))
        return false;
    /* Compares the smallest share of the budget that this thread may have with the most bytes that
     * it may have pending. Most calls end here, without a look at other threads' caches. */
    uint64_t share = budget / (heap->caches.count + heap->slots_with_pending + 1);
    uint64_t own = heap->pending_by_slot[slot];
    if (own + (cache ? thread_cache_bytes(cache) : 0) <= share)
        return false;
    own += cache ? thread_cache_pending(cache) : 0;
    if (own <= share)
        return false;
    uint64_t slots = heap->pending_slots | heap_recent_sums(heap, SUMS_EPOCHS_OLD)->pending_slots;
    unsigned threads = (unsigned)__builtin_popcountll(slots);
    return threads > 1 && own > budget / threads;
}

/* ---- a free ---- */

bool policy_fence_is_due(const struct context *context)
{
    lock_must_be_held(&context->lock);
    const struct heap *heap = heap_of(context);
    unsigned alone = heap->uses_in_a_row == HEAP_USES_ALONE;
    /* Both bounds double while one thread uses the heap. The first one also doubles while the GPU
     * keeps up. */
    return heap->frees_since_fence >= FENCE_EVERY_FREES << (alone || heap_keeps_up(heap)) ||
           heap->bytes_since_fence >= device_fence_bytes(context->device) << alone;
}

void heap_note_stalled_wait(struct pool *pool, struct context *context)
{
    lock_must_be_held(&context->lock);
    struct heap *heap = heap_of(context);
    if (pool->settings.device.free_synchronizes)
        return;
    heap_set_closed(heap, CLOSED_SYNCHRONISING, frees_may_wait(&context->epochs.frees_wait));
    thread_caches_collect(heap);
}

bool policy_frees_synchronise(const struct pool *pool, struct heap *heap)
{
    heap_lock_must_be_held(heap);
    struct frees_wait *wait = &context_of_heap(heap)->epochs.frees_wait;
    if (pool->settings.device.free_synchronizes)
        return true;
    if (!frees_may_wait(wait) &&
        !(atomic_load_explicit(&heap->closed, memory_order_relaxed) & CLOSED_SYNCHRONISING))
        return false;
    bool waits = frees_wait_goes_on(wait, monotonic_now());
    if (!waits)
        heap_set_closed(heap, CLOSED_SYNCHRONISING, false);
    return waits;
}

bool policy_has_host_work(const struct context *context)
{
    lock_must_be_held(&context->lock);
    return host_work_limit(&context->epochs.host_work) != UINT64_MAX;
}

bool policy_is_the_drivers_to_free(struct pool *pool, const struct context *context,
                                   const struct block *block)
{
    lock_must_be_held(&context->lock);
    return (block_is_shared(block) && !block_is_part(block)) ||
           captures_under_way(&pool->captures) || !context_is_usable(context);
}

/* Whether allocations might need the pending bytes. With all = room + clean bytes, one of these:
 *
 *   pending > all / MISSED_SHARE
 *   all - pending < n * largest_request <= all + pending for an n <= MISSED_REQUESTS
 *
 * In the second case n such requests fit with the pending bytes, and might not fit without them. */
static bool is_missed(const struct context *context, uint64_t pending, uint64_t room)
{
    uint64_t largest = counter_get(&context->device->largest_request);
    room += counter_get(&heap_of(context)->clean_bytes);
    if (room < MISSED_SHARE * pending)
        return true;
    uint64_t fit = largest ? (room - pending) / largest : MISSED_REQUESTS;
    return fit < MISSED_REQUESTS && (fit + 1) * largest <= room + pending;
}

bool policy_pending_is_missed(struct context *context, uint64_t room)
{
    lock_must_be_held(&context->lock);
    struct heap *heap = heap_of(context);
    uint64_t pending = counter_get(&heap->pending_bytes) + heap_recent_sums(heap, 0)->pending_bytes;
    return pending && is_missed(context, pending, room);
}

bool policy_memory_is_missed(const struct context *context, uint64_t more, uint64_t room)
{
    uint64_t most = counter_get(&heap_of(context)->pending_bytes) + context->device->growth_budget +
                    CACHES_LEAST_BYTES + more;
    return is_missed(context, most, room);
}

/* ---- what a miss has shown ---- */

/* Sets finest_sizes if rounding wastes more than total_bytes / HEAP_WASTE_SHARE. Clears it only
 * once the waste is half of that or less, so that sizes do not change all the time. */
void policy_watch_rounding(struct heap *heap, const struct device *device)
{
    heap_lock_must_be_held(heap);
    uint64_t reserved = counter_get(&heap->reserved_bytes);
    uint64_t most = device->total_bytes / HEAP_WASTE_SHARE;
    /* Waste cannot exceed the reserved bytes, so no sum over the caches is needed. */
    if (reserved <= most && !heap->finest_sizes)
        return;
    struct heap_bytes bytes = heap_bytes(heap);
    uint64_t used = bytes.clean + bytes.pending + bytes.requested;
    uint64_t waste = rest_of(reserved, used);
    heap->finest_sizes = !heap_splits(heap) && waste > (heap->finest_sizes ? most / 2 : most);
    heap->ending_or_finest = heap->finest_sizes || heap->ending;
    thread_caches_update_closed(heap);
}

bool policy_spares_too_much(const struct heap *heap, uint64_t bytes)
{
    heap_lock_must_be_held(heap);
    return segments_spare_bytes(&heap->segments, bytes) >
           context_of_heap(heap)->device->total_bytes / HEAP_WASTE_SHARE;
}

uint64_t policy_room_to_keep(const struct pool *pool, const struct context *context)
{
    lock_must_be_held(&context->lock);
    uint64_t held = counter_get(&heap_of(context)->reserved_bytes);
    uint64_t bound = release_bound(pool, context, heap_bytes(heap_of(context)).requested, 0);
    uint64_t most = smaller_of(bound, context->device->total_bytes);
    return rest_of(most, held);
}
