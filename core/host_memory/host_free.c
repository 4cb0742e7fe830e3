#include "host_free.h"

#include "core/base/clock.h"
#include "core/base/numbers.h"
#include "core/contexts/capture.h"
#include "core/contexts/epoch.h"
#include "core/contexts/fence_list.h"
#include "core/driver/calls.h"
#include "core/housekeeper/housekeeper.h"
#include "host_by_driver.h"
#include "host_release.h"

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

/* ---- the fence that ends a free ---- */

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

/* A free that has put its block into a bin; the block may be another thread's by now. */
struct host_freed {
    struct host_shard *shard;
    struct host_bin *bin; /* of it */
    uint64_t stamp;
    struct host_spent spent; /* by it */
};

/* Whether allocations may not be able to wait for what is pending: other contexts' work. */
static bool has_to_wait(struct pool *pool, struct host_heap *heap)
{
    return atomic_load_explicit(&pool->several_contexts, memory_order_acquire) &&
           host_sum(heap).pending_bytes > host_memory_of(pool)->growth_budget;
}

/* Whether a free waits. */
enum waiting {
    WAITS_NOT,
    WAITS_A_WHILE,        /* an allocation has waited in vain */
    WAITS_LIKE_THE_DRIVER /* the settings say so, or there is work that is known to end only by the
                             host: it may need a lock that the program takes after this free */
};

/* What follows a free whose fence is due. */
static CUresult end_free(struct pool *pool, const struct host_freed *freed, enum waiting waiting)
{
    struct host_heap *heap = freed->shard->heap;
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
    count_wait(freed->bin->bucket.counters, waited_before);
    host_release_excess(pool, heap, freed->bin->bucket.bytes);
    if (host_has_aside(heap) && host_frees_are_over(pool, heap->context))
        host_free_those_aside(pool, heap);
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

enum put {
    PUT,
    NOT_LIVE,   /* another thread has freed it */
    IS_ANOTHERS /* nothing was done: it is the driver's to free */
};

/* Of the shard, for a block that is the calling thread's, in the place of its old bin; NULL: there
 * is none yet, or the block is not to be kept after all. */
static struct host_bin *bin_for(const struct host_shard *shard, const struct block *block,
                                struct host_bin *old)
{
    if (block_is_shared(block) || old->shard == shard)
        return block_is_shared(block) ? NULL : old;
    return host_bin_find(shard, old->bucket.bytes);
}

/* Into the bin, in whichever epoch, and looks what is spent by that. */
static void put_into(struct pool *pool, struct host_freed *freed, struct block *block,
                     CUdeviceptr address)
{
    lock_must_be_held(&freed->shard->lock);
    freed->stamp = host_stamp(freed->shard->heap);
    if (counter_get(&freed->shard->newest) != freed->stamp)
        host_begin_epoch(pool, freed->shard, freed->stamp);
    if (host_put(freed->shard, freed->bin, block, address, freed->stamp))
        freed->spent = host_look_what_is_spent(pool, freed->shard);
}

/* Claims a live block and puts it into the bin of its key, with the shard's lock all the time: so a
 * context that ends finds every block live or listed. */
static enum put put(struct pool *pool, struct block *block, CUdeviceptr address,
                    struct host_freed *freed)
{
    struct host_shard *shard = freed->shard;
    lock_must_be_held(&shard->lock);
    if (host_is_ending(shard->heap))
        return IS_ANOTHERS;
    if (!block_claim(block, address, BLOCK_LEAVING))
        return NOT_LIVE;
    freed->bin = host_bin_of(block);
    struct host_bin *bin = bin_for(shard, block, freed->bin);
    if (!bin) {
        block_set_state(block, BLOCK_LIVE);
        return IS_ANOTHERS;
    }
    freed->bin = bin;
    host_set_bin(block, bin);
    put_into(pool, freed, block, address);
    return PUT;
}

static enum put put_with_lock(struct pool *pool, struct block *block, CUdeviceptr address,
                              struct host_freed *freed)
{
    host_lock(freed->shard);
    enum put result = put(pool, block, address, freed);
    host_unlock(freed->shard);
    return result;
}

static enum put put_where_it_can_be(struct pool *pool, struct host_heap *heap, struct block *block,
                                    CUdeviceptr address, struct host_freed *freed)
{
    freed->bin = host_bin_of(block);
    freed->shard = is_the_drivers(pool, block) ? NULL : host_shard_of_thread(pool, heap);
    if (!freed->shard)
        return IS_ANOTHERS;
    enum put result;
    bool made = false;
    do
        result = put_with_lock(pool, block, address, freed);
    while (result == IS_ANOTHERS && !made &&
           (made = host_bin_make(pool, heap, freed->shard, freed->bin->bucket.bytes) != NULL));
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

static enum waiting waiting_of_free(struct pool *pool, struct host_heap *heap)
{
    struct context *context = heap->context;
    struct epochs *epochs = &context->epochs;
    if (pool->settings.host.free_synchronizes)
        return WAITS_LIKE_THE_DRIVER;
    if (!host_is_closed(heap, HOST_CLOSED_WAITING))
        return WAITS_NOT;
    if (has_known_host_work(context))
        return WAITS_LIKE_THE_DRIVER;
    context_lock(context);
    bool waits = frees_wait_goes_on(&epochs->frees_wait, monotonic_now()) ||
                 host_work_goes_on(&epochs->host_work);
    host_update_waiting(context);
    context_unlock(context);
    return waits ? WAITS_A_WHILE : WAITS_NOT;
}

/* Whether a fence is due that this free is to record; or something has to go back, which a fence
 * must tell of: one shard has its share of the cap before all of them together have passed it. */
static bool has_to_end(struct pool *pool, const struct host_freed *freed)
{
    return (freed->spent.due && !others_will_fence(freed->shard->heap->context, freed->stamp)) ||
           (freed->spent.past_share && host_is_past_cap(pool)) || host_is_wanted(pool);
}

/* What follows a free that has found nothing to wait for before. */
static CUresult finish(struct pool *pool, const struct host_freed *freed)
{
    return has_to_end(pool, freed)
               ? end_free(pool, freed, waiting_of_free(pool, freed->shard->heap))
               : CUDA_SUCCESS;
}

CUresult host_finish_free(struct pool *pool, struct host_shard *shard, struct host_bin *bin,
                          uint64_t stamp)
{
    struct host_freed freed = {shard, bin, stamp, host_look_what_is_spent(pool, shard)};
    host_unlock(shard);
    return finish(pool, &freed);
}

CUresult host_free_in_new_epoch(struct pool *pool, struct host_shard *shard, struct host_bin *bin,
                                struct block *block, CUdeviceptr address, uint64_t stamp)
{
    host_begin_epoch(pool, shard, stamp);
    if (host_put(shard, bin, block, address, stamp))
        return host_finish_free(pool, shard, bin, stamp);
    host_unlock(shard);
    return CUDA_SUCCESS;
}

/* Whether a fence of a free covers all that is pending in the context. */
static bool all_is_fenced(struct context *context)
{
    context_lock(context);
    uint64_t pending = epoch_newest_pending(context);
    context_unlock(context);
    return pending <= atomic_load_explicit(&context->epochs.fenced, memory_order_relaxed);
}

/* Whether the driver's free has no more to wait for than it would have without the pool. It waits
 * with the driver's lock held: what frees before this one would have waited for, and have not, is
 * waited for without it, and not for long. Beside work that is known to end only by the host, they
 * have. */
static bool driver_may_wait(struct pool *pool, struct context *context)
{
    if (!all_is_fenced(context))
        close_epoch(pool, context);
    return (all_is_fenced(context) && host_frees_are_over(pool, context)) ||
           has_known_host_work(context) || !context_is_usable(context);
}

/* The block is not to be kept. Where the driver's free might wait for what it must not, a later
 * free has it. */
static CUresult free_past_the_pool(struct pool *pool, struct block *block, CUdeviceptr address)
{
    struct host_heap *heap = host_heap_of_block(block);
    struct context *context = heap->context;
    uint64_t generation = context_generation(context);
    bool captures = program_captures(&pool->captures);
    if (!captures && context_is_usable(context) && !driver_may_wait(pool, context))
        return host_put_aside(heap, block, address, generation) ? CUDA_SUCCESS
                                                                : CUDA_ERROR_INVALID_VALUE;
    CUresult result = host_free_by_driver(pool, block, address);
    if (result != CUDA_SUCCESS || captures)
        return result;
    host_free_those_aside(pool, heap);
    if (!context_is_usable(context))
        host_release_stranded(pool, context);
    return result;
}

CUresult host_free(struct pool *pool, struct block *block, CUdeviceptr address)
{
    struct host_heap *heap = host_heap_of_block(block);
    struct host_freed freed = {.spent = {false, false}};
    /* Nobody has told the time while nothing was free. */
    bool watched = housekeeping_is_watched(&pool->housekeeping);
    if (watched)
        host_tell_time(heap, monotonic_now());
    enum put result = put_where_it_can_be(pool, heap, block, address, &freed);
    if (result == NOT_LIVE)
        return CUDA_ERROR_INVALID_VALUE;
    if (result == IS_ANOTHERS)
        return free_past_the_pool(pool, block, address);
    enum waiting waiting = waiting_of_free(pool, heap);
    if (waiting != WAITS_NOT || has_to_end(pool, &freed))
        return end_free(pool, &freed, waiting);
    if (watched || housekeeping_is_watched(&pool->housekeeping))
        housekeeper_look(pool, 0);
    return CUDA_SUCCESS;
}
