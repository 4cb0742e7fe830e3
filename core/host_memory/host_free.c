#include "host_free.h"

#include "core/base/clock.h"
#include "core/base/numbers.h"
#include "core/contexts/capture.h"
#include "core/contexts/epoch.h"
#include "core/contexts/fence_list.h"
#include "core/driver/calls.h"
#include "core/housekeeper/housekeeper.h"
#include "host_release.h"

/* An epoch is closed by so many frees of a shard, or by as many bytes as are its share (see
 * fence_bytes). */
#define FENCE_EVERY_FREES 64u

/* A shard in which nobody has freed anything for so many epochs gets no share of it. */
#define ACTIVE_EPOCHS 4u

/* So often a thread that has recorded a fence makes another one for those who asked meanwhile. */
#define FENCES_IN_A_ROW 4

/* Who has freed something in one of the last few epochs is at it. They share half the growth
 * budget; or half of what may be cached, if that is less, since caps are looked at where a fence is
 * due. */
static void share_among_active(const struct pool *pool, struct host_heap *heap)
{
    const struct host_memory *memory = host_memory_of(pool);
    uint64_t current = epoch_current(&heap->context->epochs);
    unsigned active = 0;
    for (const struct host_shard *shard = host_shards(heap); shard; shard = shard->next)
        active += counter_get(&shard->newest) + ACTIVE_EPOCHS >= current;
    host_share(memory, heap, active ? active : 1);
}

/* ---- by the driver ---- */

/* What the driver has answered. generation: of the context, before the block was claimed: if the
 * context has died since, the record may be another's. */
static void settle(struct pool *pool, struct host_heap *heap, struct block *block,
                   uint64_t generation, CUresult result, uint64_t nanoseconds)
{
    lock_must_be_held(&heap->context->lock);
    if (!host_lives_on(heap, generation))
        return;
    struct bucket_counters *counters = host_counters_of(block);
    if (result != CUDA_SUCCESS) {
        host_count_back(block);
        block_set_state(block, BLOCK_LIVE);
        return;
    }
    host_count_live(pool, heap, 0 - counter_get(&block->requested));
    host_forget(pool, heap, block);
    bucket_count_return(counters, EVICTION_FREE, nanoseconds);
    counter_add(&counters->frees, 1);
}

/* False if the block is not live there (any more). */
static bool claim_for_driver(struct host_heap *heap, struct block *block, CUdeviceptr address,
                             uint64_t generation, struct host_leaving *leaving)
{
    context_lock(heap->context);
    bool claimed = host_lives_on(heap, generation) && host_claim(block, address);
    if (claimed)
        *leaving = host_leaving(block);
    context_unlock(heap->context);
    return claimed;
}

/* What the pool has mapped itself is unmapped by whoever comes first, a free or the context's end.
 */
static bool pin_if_registered(struct context *context, uint64_t generation, bool registered)
{
    uint64_t started = monotonic_now();
    while (registered && !context_pin(context, generation)) {
        if (context_generation(context) != generation)
            return false;
        patient_nap(started);
    }
    return true;
}

/* The record stays in the table until the driver has answered, so that a second free of the program
 * does not come first. */
CUresult host_free_by_driver(struct pool *pool, struct block *block, CUdeviceptr address)
{
    struct host_heap *heap = host_heap_of_block(block);
    struct context *context = heap->context;
    uint64_t generation = context_generation(context), started = monotonic_now();
    bool registered = host_origin_of(block) == HOST_REGISTERED;
    if (!pin_if_registered(context, generation, registered))
        return CUDA_ERROR_INVALID_VALUE;
    struct host_leaving leaving;
    bool claimed = claim_for_driver(heap, block, address, generation, &leaving);
    CUresult result = claimed ? host_call_to_free(pool, &leaving) : CUDA_ERROR_INVALID_VALUE;
    if (claimed) {
        context_lock(context);
        settle(pool, heap, block, generation, result, monotonic_now() - started);
        context_unlock(context);
    }
    if (registered)
        context_unpin(context);
    return result;
}

/* ---- the fence that ends a free ---- */

/* Whether there is work that only the host ends, or that must be taken for such work. */
static bool has_host_work(const struct context *context)
{
    return host_work_limit(&context->epochs.host_work) != UINT64_MAX;
}

/* Records a fence, and others that were asked for while it was recorded. */
static CUresult close_epoch(struct pool *pool, struct context *context)
{
    CUresult result = CUDA_SUCCESS;
    struct epochs *epochs = &context->epochs;
    context_lock(context);
    struct fence *fence = epoch_begin_close(context, true);
    epochs->owed |= !fence && epochs->recording;
    context_unlock(context);
    for (int i = 1; fence; i++) {
        struct epoch_recorded recorded =
            epoch_record_and_lock(pool, context, fence, epoch_keeps_up(epochs));
        bool again = epochs->owed && i < FENCES_IN_A_ROW && epochs->failures == 0;
        fence = again ? epoch_begin_close(context, true) : NULL;
        epochs->owed = !fence && epochs->owed && epochs->recording;
        context_unlock(context);
        result = epoch_settle_record(pool, context, &recorded);
    }
    return result;
}

/* Whether another thread's free, which is recording a fence, sees to one that covers the stamp:
 * this one, or another one that it makes when it is asked to. Else blocks would lie without a fence
 * until the next free of the calling thread, which may be waiting for just these by then. */
static bool others_will_fence(struct context *context, uint64_t stamp)
{
    struct epochs *epochs = &context->epochs;
    if (!epoch_fence_is_near(epochs))
        return false;
    context_lock(context);
    bool others = epochs->recording && epochs->recording_for_free;
    epochs->owed |= others && stamp >= epoch_current(epochs);
    context_unlock(context);
    return others;
}

static void count_wait(struct bucket_counters *counters, uint64_t waited_before)
{
    if (thread_state.waited_ns == waited_before)
        return;
    thread_count_wait(counters);
    /* Relaxed, like every counter. */
    atomic_fetch_add_explicit(&counters->waiting_frees, 1, memory_order_relaxed);
}

/* As long as the driver's own free would. Where no fence could be had, that one is asked. */
static void wait_like_the_driver(struct pool *pool, struct context *context, uint64_t stamp)
{
    context_lock(context);
    bool over = epoch_wait_in_free(pool, context, stamp);
    bool fenced = over || epoch_fence_for(&context->epochs, stamp, true);
    context_unlock(context);
    if (!fenced)
        host_release_pending(pool, context);
}

/* The same, but not for longer than an allocation would wait in vain: frees before this one have
 * not waited, and the program may have taken a lock since that their work needs. True if it is
 * over. */
static bool wait_for_a_while(struct pool *pool, struct context *context, uint64_t stamp,
                             uint64_t give_up_at)
{
    context_lock(context);
    bool over = epoch_wait_when_short(pool, context, stamp, give_up_at);
    /* Else other contexts' work is all that is left. */
    if (!over && monotonic_now() >= give_up_at)
        host_work_note_unwaited(&context->epochs.host_work, stamp);
    context_unlock(context);
    return over;
}

/* Until pending bytes are inside the growth budget. What only other contexts' work keeps goes to
 * the driver, whose own free does not wait for that. */
static void wait_for_budget(struct pool *pool, struct host_heap *heap)
{
    struct context *context = heap->context;
    uint64_t budget = host_memory_of(pool)->growth_budget,
             last = epoch_current(&context->epochs) - 1;
    uint64_t give_up_at = monotonic_now() + VAIN_WAIT_NANOSECONDS;
    bool over = true;
    while (over && host_clean_epoch(heap) < last && host_sweep_and_sum(heap).pending_bytes > budget)
        over = wait_for_a_while(pool, context, host_clean_epoch(heap) + 1, give_up_at);
    if (!over && monotonic_now() < give_up_at && host_sweep_and_sum(heap).pending_bytes > budget)
        host_release_pending(pool, context);
}

/* Whether allocations may not be able to wait for what is pending: other contexts' work. */
static bool has_to_wait(struct pool *pool, struct host_heap *heap)
{
    return atomic_load_explicit(&pool->several_contexts, memory_order_acquire) &&
           host_sum(heap).pending_bytes > host_memory_of(pool)->growth_budget;
}

/* What is known of a block that was freed; the block may be another thread's by now. */
struct freed {
    uint64_t key, stamp;
    struct bucket_counters *counters;
    uint64_t free_bytes; /* of the shard */
    bool due;            /* a fence is */
};

/* Whether a free waits. */
enum waiting {
    WAITS_NOT,
    WAITS_A_WHILE,        /* an allocation has waited in vain */
    WAITS_LIKE_THE_DRIVER /* the settings say so, or there is work that is known to end only by the
                             host: it may need a lock that the program takes after this free */
};

/* What follows a free whose fence is due. */
static CUresult end_free(struct pool *pool, struct host_heap *heap, const struct freed *freed,
                         enum waiting waiting)
{
    uint64_t waited_before = thread_state.waited_ns;
    CUresult result = close_epoch(pool, heap->context);
    host_tell_time(heap, monotonic_now());
    share_among_active(pool, heap);
    if (waiting == WAITS_LIKE_THE_DRIVER)
        wait_like_the_driver(pool, heap->context, freed->stamp);
    else if (waiting == WAITS_A_WHILE)
        wait_for_a_while(pool, heap->context, freed->stamp,
                         monotonic_now() + VAIN_WAIT_NANOSECONDS);
    if (has_to_wait(pool, heap))
        wait_for_budget(pool, heap);
    count_wait(freed->counters, waited_before);
    host_release_excess(pool, heap, freed->key);
    housekeeper_look(pool, 0);
    return result;
}

/* ---- a free ---- */

/* Whether the free is to be the driver's: the block is not kept, or others than this process's
 * streams were told of it; or the pool does not serve its context (any more). */
static bool is_the_drivers(struct pool *pool, const struct block *block)
{
    const struct context *context = host_heap_of_block(block)->context;
    return host_key_bytes(host_bin_of(block)->bucket.bytes) == 0 || block_is_shared(block) ||
           !context_is_usable(context) || program_captures(&pool->captures);
}

static uint64_t fence_frees(const struct pool *pool)
{
    return smaller_of(FENCE_EVERY_FREES, pool->settings.host.caps.blocks_per_bucket);
}

/* Counts a free of so many bytes in this epoch. True: a fence is due. */
static bool count_free(const struct pool *pool, const struct host_heap *heap,
                       struct host_shard *shard, uint64_t bytes, uint64_t stamp)
{
    lock_must_be_held(&shard->lock);
    if (shard->stamp != stamp) {
        shard->stamp = stamp;
        shard->frees = shard->bytes = 0;
    }
    shard->frees++;
    shard->bytes += bytes;
    if (!shard->fence_next && shard->frees < fence_frees(pool) &&
        shard->bytes < atomic_load_explicit(&heap->fence_bytes, memory_order_relaxed))
        return false;
    shard->fence_next = false;
    return true;
}

enum put {
    PUT,
    NOT_LIVE,   /* another thread has freed it */
    IS_ANOTHERS /* nothing was done: it is the driver's to free */
};

/* Of the shard, for a block that is the calling thread's; NULL: there is none yet, or the block is
 * not to be kept after all. */
static struct host_bin *bin_for(const struct host_shard *shard, const struct block *block,
                                struct freed *freed)
{
    struct host_bin *bin = host_bin_of(block);
    freed->key = bin->bucket.bytes;
    if (block_is_shared(block) || bin->shard == shard)
        return block_is_shared(block) ? NULL : bin;
    return host_bin_find(shard, freed->key);
}

/* Claims a live block and puts it into the bin of its key, with the shard's lock all the time: so a
 * context that ends finds every block live or listed. */
static enum put put(struct pool *pool, struct host_heap *heap, struct host_shard *shard,
                    struct block *block, CUdeviceptr address, struct freed *freed)
{
    lock_must_be_held(&shard->lock);
    if (host_is_ending(heap))
        return IS_ANOTHERS;
    if (!block_claim(block, address, BLOCK_LEAVING))
        return NOT_LIVE;
    struct host_bin *bin = bin_for(shard, block, freed);
    if (!bin) {
        block_set_state(block, BLOCK_LIVE);
        return IS_ANOTHERS;
    }
    /* The lock is this shard's, so that stamps ascend in each list; why the number may be read
     * without the context's is told in core/device_memory/thread_cache.h: whatever this thread has
     * submitted was submitted before. */
    freed->stamp = epoch_current(&heap->context->epochs);
    freed->counters = bin->bucket.counters;
    freed->due = count_free(pool, heap, shard, block->bytes, freed->stamp);
    host_add_pending(bin, block, freed->stamp, counter_get(&heap->now));
    freed->free_bytes = counter_get(&shard->free_bytes);
    return PUT;
}

static enum put put_with_lock(struct pool *pool, struct host_heap *heap, struct host_shard *shard,
                              struct block *block, CUdeviceptr address, struct freed *freed)
{
    host_lock(shard);
    enum put result = put(pool, heap, shard, block, address, freed);
    host_unlock(shard);
    return result;
}

static enum put put_where_it_can_be(struct pool *pool, struct host_heap *heap, struct block *block,
                                    CUdeviceptr address, struct freed *freed)
{
    freed->key = host_bin_of(block)->bucket.bytes;
    struct host_shard *shard =
        is_the_drivers(pool, block) ? NULL : host_shard_of_thread(pool, heap);
    if (!shard)
        return IS_ANOTHERS;
    enum put result;
    bool made = false;
    do
        result = put_with_lock(pool, heap, shard, block, address, freed);
    while (result == IS_ANOTHERS && !made &&
           (made = host_bin_make(pool, heap, shard, freed->key) != NULL));
    return result;
}

/* Whether some of it was submitted as such. */
static bool has_known_host_work(struct context *context)
{
    context_lock(context);
    bool known = host_work_is_known(&context->epochs.host_work);
    context_unlock(context);
    return known;
}

static enum waiting waiting_of_free(struct pool *pool, struct context *context)
{
    struct frees_wait *wait = &context->epochs.frees_wait;
    if (pool->settings.host.free_synchronizes)
        return WAITS_LIKE_THE_DRIVER;
    if (!frees_may_wait(wait) && !has_host_work(context))
        return WAITS_NOT;
    if (has_known_host_work(context))
        return WAITS_LIKE_THE_DRIVER;
    context_lock(context);
    bool waits = frees_wait_goes_on(wait, monotonic_now()) || has_host_work(context);
    context_unlock(context);
    return waits ? WAITS_A_WHILE : WAITS_NOT;
}

/* Something has to go back then, which a fence must tell of. One shard has its share of the cap
 * before all of them together have passed it. */
static bool is_past_cap(struct pool *pool, const struct host_heap *heap, const struct freed *freed)
{
    return freed->free_bytes > atomic_load_explicit(&heap->cap_share, memory_order_relaxed) &&
           host_is_past_cap(pool);
}

/* The driver's free waits with the driver's lock held, for work that frees before this one would
 * have waited for, and have not. So that is waited for without it first, for a while. */
static CUresult free_past_the_pool(struct pool *pool, struct block *block, CUdeviceptr address)
{
    struct context *context = host_heap_of_block(block)->context;
    if (!program_captures(&pool->captures) && context_is_usable(context))
        host_frees_are_over(pool, context);
    CUresult result = host_free_by_driver(pool, block, address);
    if (result == CUDA_SUCCESS && !context_is_usable(context))
        host_release_stranded(pool, context);
    return result;
}

CUresult host_free(struct pool *pool, struct block *block, CUdeviceptr address)
{
    struct host_heap *heap = host_heap_of_block(block);
    struct freed freed;
    /* Nobody has told the time while nothing was free. */
    bool watched = housekeeping_is_watched(&pool->housekeeping);
    if (watched)
        host_tell_time(heap, monotonic_now());
    enum put result = put_where_it_can_be(pool, heap, block, address, &freed);
    if (result != PUT)
        return result == NOT_LIVE ? CUDA_ERROR_INVALID_VALUE
                                  : free_past_the_pool(pool, block, address);
    enum waiting waiting = waiting_of_free(pool, heap->context);
    bool due = freed.due && !others_will_fence(heap->context, freed.stamp);
    if (due || waiting != WAITS_NOT || is_past_cap(pool, heap, &freed))
        return end_free(pool, heap, &freed, waiting);
    if (watched || housekeeping_is_watched(&pool->housekeeping))
        housekeeper_look(pool, 0);
    return CUDA_SUCCESS;
}
