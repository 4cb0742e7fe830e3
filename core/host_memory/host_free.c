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

/* A shard in which nothing was freed for so many epochs gets no share (share_among_active). */
#define ACTIVE_EPOCHS 4u

/* A shard is active if its threads have freed something in one of the last few epochs. Active
 * shards share half the growth budget, or half of what may be cached if that is less. The second
 * bound is needed since caps are only checked where a fence is due. */
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

static CUresult close_epoch(struct pool *pool, struct context *context)
{
    struct epochs *epochs = &context->epochs;
    context_lock(context);
    struct fence *fence = epoch_begin_close(context, true);
    epochs->owed = !fence && epoch_is_recorded_in_free(epochs);
    context_unlock(context);
    return fence ? epoch_record_in_free(pool, context, fence) : CUDA_SUCCESS;
}

/* Whether another thread's free, which is recording a fence, also provides one for this stamp. That
 * is the fence it is recording, or one that it records next because owed is set here. Otherwise
 * these blocks would have no fence until the calling thread's next free, and that thread may be
 * waiting for these very blocks by then. */
static bool others_will_fence(struct context *context, uint64_t stamp)
{
    struct epochs *epochs = &context->epochs;
    if (!epoch_fence_is_near(epochs))
        return false;
    context_lock(context);
    bool others = epoch_is_recorded_in_free(epochs);
    epochs->owed |= others && !epoch_is_closed(epochs, stamp);
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

/* Waits as long as the driver's own free would. If there is no fence to wait for, the driver's own
 * free is called for the pending blocks. It may release none of them: then the driver frees
 * something else. Returns an error that stays in the context. */
static CUresult wait_like_the_driver(struct pool *pool, struct context *context, uint64_t stamp)
{
    const struct epochs *epochs = &context->epochs;
    CUresult result = epoch_fence_in_free(pool, context, stamp);
    context_lock(context);
    epoch_wait_in_free(pool, context, stamp);
    bool waited = epoch_clean(epochs) >= stamp ||
                  (context_is_usable(context) &&
                   (epoch_fence_for(epochs, stamp, true) || epoch_waits_for_a_second(epochs)));
    context_unlock(context);
    if (waited)
        return result;
    host_release_pending(pool, context);
    CUresult of_driver = epoch_wait_by_free(pool, context);
    return result == CUDA_SUCCESS ? of_driver : result;
}

/* Waits for the stamp, but only until give_up_at. Earlier frees have not waited, and the program
 * may since have taken a lock that their work needs. True if everything with this stamp is clean.
 */
static bool wait_for_a_while(struct pool *pool, struct context *context, uint64_t stamp,
                             uint64_t give_up_at)
{
    context_lock(context);
    bool over = epoch_wait_when_short(pool, context, stamp, give_up_at);
    /* A wait that ended before give_up_at found only other contexts' work left. */
    if (!over && monotonic_now() >= give_up_at)
        host_work_note_unwaited(&context->epochs.host_work, stamp);
    context_unlock(context);
    return over;
}

/* Waits until pending bytes are within the growth budget. Blocks that only other contexts' work
 * keeps pending are released to the driver, whose own free does not wait for that work. */
static void wait_for_budget(struct pool *pool, struct host_heap *heap)
{
    struct context *context = heap->context;
    uint64_t budget = host_memory_of(pool)->growth_budget,
             last = epoch_current(&context->epochs) - 1;
    uint64_t give_up_at = monotonic_now() + STALLED_WAIT_NANOSECONDS;
    bool over = true;
    while (over && host_clean_epoch(heap) < last && host_sweep_and_sum(heap).pending_bytes > budget)
        over = wait_for_a_while(pool, context, host_clean_epoch(heap) + 1, give_up_at);
    if (!over && monotonic_now() < give_up_at && host_sweep_and_sum(heap).pending_bytes > budget)
        host_release_pending(pool, context);
}

/* A free that has put its block into a bin. The block may already be another thread's. */
struct host_freed {
    struct host_shard *shard;
    struct host_bin *bin; /* the shard's bin that got the block */
    uint64_t stamp;
    struct host_spent spent; /* what this free has used up */
};

/* Whether allocations may be unable to wait for pending blocks, because of other contexts' work. */
static bool has_to_wait(struct pool *pool, struct host_heap *heap)
{
    return contexts_were_several(pool) &&
           host_sum(heap).pending_bytes > host_memory_of(pool)->growth_budget;
}

/* How a free waits. */
enum waiting {
    WAITS_NOT,
    WAITS_A_WHILE,        /* a second at most: an allocation has waited without result */
    WAITS_LIKE_THE_DRIVER /* the settings say so, or there is known work that only the host ends: it
                             may need a lock that the program takes after this free */
};

/* Completes a free whose fence is due. */
static CUresult end_free(struct pool *pool, const struct host_freed *freed, enum waiting waiting)
{
    struct host_heap *heap = freed->shard->heap;
    uint64_t waited_before = thread_state.waited_ns;
    CUresult result = close_epoch(pool, heap->context);
    host_tell_time(heap, monotonic_now());
    share_among_active(pool, heap);
    CUresult waited = CUDA_SUCCESS;
    if (waiting == WAITS_LIKE_THE_DRIVER)
        waited = wait_like_the_driver(pool, heap->context, freed->stamp);
    else if (waiting == WAITS_A_WHILE)
        wait_for_a_while(pool, heap->context, freed->stamp,
                         monotonic_now() + STALLED_WAIT_NANOSECONDS);
    if (has_to_wait(pool, heap))
        wait_for_budget(pool, heap);
    count_wait(freed->bin->bucket.counters, waited_before);
    host_release_excess(pool, heap, freed->bin->bucket.bytes);
    if (host_has_deferred(heap) && host_frees_are_over(pool, heap->context))
        host_free_deferred(pool, heap);
    housekeeper_look(pool, 0);
    return result == CUDA_SUCCESS ? waited : result;
}

/* ---- a free ---- */

/* Whether the driver must free the block. It must where the pool does not cache the block, or
 * others than this process's streams were told of it. It also must while the program captures, or
 * where the pool does not (any more) serve the context. */
static bool is_the_drivers(struct pool *pool, const struct block *block)
{
    const struct context *context = host_heap_of_block(block)->context;
    return host_key_bytes(host_bin_of(block)->bucket.bytes) == 0 || block_is_shared(block) ||
           !context_is_usable(context) || program_captures(&pool->captures);
}

enum put {
    PUT,
    NOT_LIVE,   /* another thread has freed it */
    IS_ANOTHERS /* nothing was done: the driver must free it */
};

/* The bin of the shard for a block that the calling thread has claimed. old: the block's bin so
 * far. NULL: the shard has no such bin yet, or the block must not be cached after all. */
static struct host_bin *bin_for(const struct host_shard *shard, const struct block *block,
                                struct host_bin *old)
{
    if (block_is_shared(block) || old->shard == shard)
        return block_is_shared(block) ? NULL : old;
    return host_bin_find(shard, old->bucket.bytes);
}

/* Puts the block into freed->bin with the current epoch as its stamp, and notes what that uses up.
 */
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

/* Claims a live block and puts it into the bin of its key. The shard's lock is held throughout. So
 * a context that ends finds every block either live or in a list. */
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

/* Whether some of its work was submitted as work that only the host ends. */
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

/* Whether end_free must follow: this free has to record a fence that is due, or memory has to be
 * released, which needs a fence. The sum of all shards is compared with the cap only once this
 * shard has its share of the cap. Some shard reaches its share before the sum passes the cap. */
static bool has_to_end(struct pool *pool, const struct host_freed *freed)
{
    return (freed->spent.due && !others_will_fence(freed->shard->heap->context, freed->stamp)) ||
           (freed->spent.past_share && host_is_past_cap(pool)) || host_is_wanted(pool);
}

/* Completes a free that had nothing to wait for when it put its block into the bin. */
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

/* Whether fences of frees cover all that is pending in the context. */
static bool all_is_fenced(struct context *context)
{
    context_lock(context);
    uint64_t pending = epoch_newest_pending(context);
    context_unlock(context);
    return pending <= atomic_load_explicit(&context->epochs.fenced, memory_order_relaxed);
}

/* Whether the driver's free now has no more to wait for than it would have without the pool. The
 * driver's free waits with the driver's lock held. So the work that earlier frees would have waited
 * for, and did not, is waited for here first, without that lock and not for long. Beside work that
 * is known to end only by the host, earlier frees have waited. */
static bool driver_may_wait(struct pool *pool, struct context *context)
{
    if (!all_is_fenced(context))
        close_epoch(pool, context);
    return (all_is_fenced(context) && host_frees_are_over(pool, context)) ||
           has_known_host_work(context) || !context_is_usable(context);
}

/* Frees a block that the pool does not cache. If the driver's free might wait for work that it must
 * not wait for, the free is deferred. */
static CUresult free_past_the_pool(struct pool *pool, struct block *block, CUdeviceptr address)
{
    struct host_heap *heap = host_heap_of_block(block);
    struct context *context = heap->context;
    uint64_t generation = context_generation(context);
    bool captures = program_captures(&pool->captures);
    if (!captures && context_is_usable(context) && !driver_may_wait(pool, context))
        return host_defer_free(heap, block, address, generation) ? CUDA_SUCCESS
                                                                 : CUDA_ERROR_INVALID_VALUE;
    CUresult result = host_free_by_driver(pool, block, address);
    if (result != CUDA_SUCCESS || captures)
        return result;
    host_free_deferred(pool, heap);
    if (!context_is_usable(context))
        host_release_stranded(pool, context);
    return result;
}

CUresult host_free(struct pool *pool, struct block *block, CUdeviceptr address)
{
    struct host_heap *heap = host_heap_of_block(block);
    struct host_freed freed = {.spent = {false, false}};
    /* While nothing was free, nobody has updated heap->now. */
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
