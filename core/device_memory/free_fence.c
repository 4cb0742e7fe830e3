#include "free_fence.h"

#include "cache_set.h"
#include "cache_threads.h"
#include "core/base/clock.h"
#include "core/base/numbers.h"
#include "core/contexts/capture.h"
#include "core/contexts/device.h"
#include "core/contexts/epoch.h"
#include "core/contexts/fence_list.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/contexts/return_stream.h"
#include "core/reclaim/room.h"
#include "driver_free.h"
#include "place.h"
#include "policies.h"
#include "release.h"
#include "sums.h"

/* How long a thread leaves the closing of an epoch to another thread, in nanoseconds. Closing takes
 * less, unless that thread loses its processor. */
#define RELIED_NANOSECONDS 30000u

struct fence *heap_begin_fence(struct context *context, bool waitable)
{
    lock_must_be_held(&context->lock);
    struct fence *fence = epoch_begin_close(context, waitable);
    if (fence) {
        thread_caches_let_sleep(heap_of(context), thread_cache_known(heap_of(context)),
                                counter_get(&heap_of(context)->now));
        heap_of(context)->frees_since_fence = 0;
        heap_of(context)->bytes_since_fence = 0;
    }
    /* The free that is recording another fence records this one next. */
    context->epochs.owed = !fence && epoch_is_recorded_in_free(&context->epochs);
    return fence;
}

/* Queries the fence of the oldest uncached block at once, since uncached blocks are released to the
 * driver as soon as they are clean. May release and retake the lock. */
static void ask_about_unkept(struct pool *pool, struct context *context)
{
    lock_must_be_held(&context->lock);
    const struct block *unkept = heap_of(context)->unkept.bucket.pending.first;
    struct fence *fence =
        unkept ? epoch_fence_for(&context->epochs, counter_get(&unkept->epoch), false) : NULL;
    if (fence)
        epoch_query(pool, context, fence);
}

/* Begins another fence if one has become due while this thread was recording. A free may have come
 * meanwhile, or an allocation may wait for a fence (await_fence_for in epoch_wait.c). NULL: none is
 * due, or none can be begun now. */
static struct fence *fence_again_if_due(struct context *context, bool waitable)
{
    lock_must_be_held(&context->lock);
    const struct heap *heap = heap_of(context);
    bool owed = context->epochs.owed || (heap->frees_since_fence && policy_fence_is_due(context));
    return owed ? heap_begin_fence(context, waitable) : NULL;
}

/* Counts a wait of a free. thread_state.freeing is NULL where the free waits for blocks of several
 * sizes. Such a wait counts for the bucket of uncached blocks. */
static void count_wait(const struct heap *heap)
{
    struct bucket_counters *counters =
        thread_state.freeing ? thread_state.freeing : heap->unkept.bucket.counters;
    thread_count_wait(counters);
    /* Relaxed, like every counter. */
    atomic_fetch_add_explicit(&counters->waiting_frees, 1, memory_order_relaxed);
}

bool heap_wait_for_stamp(struct pool *pool, struct context *context, uint64_t stamp,
                         CUresult *error)
{
    no_lock_may_be_held_behind(LOCK_LAST_ACROSS_DRIVER_CALLS);
    struct heap *heap = heap_of(context);
    uint64_t waited_before = thread_state.waited_ns;
    *error = epoch_fence_in_free(pool, context, stamp);
    heap_lock(heap);
    epoch_wait_in_free(pool, context, stamp);
    if (thread_state.waited_ns != waited_before)
        count_wait(heap);
    const struct epochs *epochs = &context->epochs;
    bool fenced = !epoch_lacks_a_fence(epochs, stamp, true) || epoch_waits_for_a_second(epochs) ||
                  host_work_limit(&epochs->host_work) >= stamp;
    bool waited = epoch_clean(epochs) >= stamp || (fenced && context_is_usable(context));
    heap_unlock(heap);
    return waited;
}

CUresult heap_wait_by_free(struct pool *pool, struct context *context)
{
    CUresult result = epoch_wait_by_free(pool, context);
    count_wait(heap_of(context));
    return result;
}

static void update_driver_frees(struct heap *heap)
{
    heap_lock_must_be_held(heap);
    const struct driver_free *oldest = heap->driver_frees;
    counter_set(&heap->oldest_driver_free, oldest ? oldest->number : 0);
    heap_set_closed(heap, CLOSED_DRIVER_FREES, oldest != NULL);
}

static void start_waiting_in_frees(struct heap *heap, struct driver_free *own)
{
    heap_lock_must_be_held(heap);
    *own = (struct driver_free){.number = ++heap->driver_frees_begun};
    struct driver_free **end = &heap->driver_frees;
    while (*end)
        end = &(*end)->next;
    *end = own;
    update_driver_frees(heap);
    /* Waits for threads that are inside their caches, since these may not have seen
     * CLOSED_DRIVER_FREES yet. */
    thread_caches_wait(heap);
}

/* Does nothing if frees no longer wait for this driver free. */
static void stop_waiting_in_frees(struct heap *heap, const struct driver_free *own)
{
    heap_lock_must_be_held(heap);
    struct driver_free **link = &heap->driver_frees;
    while (*link && *link != own)
        link = &(*link)->next;
    if (!*link)
        return;
    *link = own->next;
    update_driver_frees(heap);
}

/* Whether no fence is possible, or none may be recorded now. */
static bool no_fence_is_possible(struct pool *pool, const struct context *context)
{
    return captures_under_way(&pool->captures) || !context_is_usable(context) ||
           !pool->driver->cuCtxRecordEvent;
}

/* Waits for everything that is pending now, by a fence of this thread, or by the next fence of a
 * free that is recording. If neither can be had, waits for the closed epochs only. Returns the
 * stamp up to which there is nothing left to wait for. Blocks up to that stamp may still not be
 * clean, if only other contexts' work is left. Releases and retakes the lock. */
static uint64_t wait_for_all_freed(struct pool *pool, struct context *context)
{
    struct heap *heap = heap_of(context);
    heap_lock_must_be_held(heap);
    struct fence *fence = heap_begin_fence(context, true);
    uint64_t stamp =
        epoch_current(&context->epochs) - (fence || !epoch_is_recording(&context->epochs));
    uint64_t waited_before = thread_state.waited_ns;
    heap_unlock(heap);
    if (fence)
        epoch_record_in_free(pool, context, fence);
    else
        epoch_fence_in_free(pool, context, stamp);
    heap_lock(heap);
    epoch_wait_when_short(pool, context, stamp, 0);
    if (thread_state.waited_ns != waited_before)
        count_wait(heap);
    return epoch_fence_for(&context->epochs, stamp, true) ? stamp : epoch_clean(&context->epochs);
}

static bool all_is_waited_for(const struct context *context, uint64_t waited)
{
    return epoch_newest_pending(context) <= larger_of(waited, epoch_clean(&context->epochs));
}

void heap_begin_driver_free(struct pool *pool, struct context *context, struct driver_free *own)
{
    no_lock_may_be_held_behind(LOCK_LAST_ACROSS_DRIVER_CALLS);
    struct heap *heap = heap_of(context);
    heap_lock(heap);
    bool others = (heap->caches.count > 1 || heap->uses_in_a_row < HEAP_USES_ALONE) &&
                  !no_fence_is_possible(pool, context);
    uint64_t waited = others ? wait_for_all_freed(pool, context) : 0;
    start_waiting_in_frees(heap, own);
    for (int looks = 1; others && !all_is_waited_for(context, waited); looks++) {
        stop_waiting_in_frees(heap, own);
        if (looks == DRIVER_FREE_LOOKS)
            break;
        waited = wait_for_all_freed(pool, context);
        start_waiting_in_frees(heap, own);
    }
    heap_unlock(heap);
}

void heap_end_driver_free(struct context *context, const struct driver_free *own)
{
    struct heap *heap = heap_of(context);
    heap_lock(heap);
    stop_waiting_in_frees(heap, own);
    heap_unlock(heap);
}

void heap_wait_for_driver_frees(struct context *context, uint64_t number, uint64_t stamp)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct heap *heap = heap_of(context);
    uint64_t started = monotonic_now();
    if (epoch_clean(&context->epochs) >= stamp)
        return;
    while (heap_is_behind_driver_frees(heap, number) && epoch_clean(&context->epochs) < stamp)
        patient_nap(started);
    thread_state.waited_ns += monotonic_now() - started;
    count_wait(heap);
}

static void free_pending_beside_others(struct pool *pool, struct context *context)
{
    struct driver_free own;
    heap_begin_driver_free(pool, context, &own);
    heap_free_pending(pool, context);
    heap_end_driver_free(context, &own);
}

/* Waits, as the driver's own free does, until no request is likely to lack the pending memory. If
 * blocks are pending only because of other contexts' work, the driver alone knows whether that work
 * uses them. In that case the driver frees the blocks. */
__attribute__((noinline)) static void
wait_for_what_is_missed(struct pool *pool, struct context *context, uint64_t room)
{
    no_lock_may_be_held_behind(LOCK_LAST_ACROSS_DRIVER_CALLS);
    struct heap *heap = heap_of(context);
    heap_lock(heap);
    uint64_t waited_before = thread_state.waited_ns;
    /* Other threads wait for the blocks that they free meanwhile. */
    uint64_t last = epoch_current(&context->epochs) - 1;
    while (epoch_clean(&context->epochs) < last && policy_pending_is_missed(context, room) &&
           epoch_wait_in_free(pool, context, epoch_clean(&context->epochs) + 1))
        continue;
    if (thread_state.waited_ns != waited_before)
        count_wait(heap);
    const struct epochs *epochs = &context->epochs;
    bool kept_by_others = contexts_were_several(pool) && epoch_clean(epochs) < last &&
                          !host_work_is_unwaited(&epochs->host_work, epoch_clean(epochs)) &&
                          policy_pending_is_missed(context, room);
    heap_unlock(heap);
    if (kept_by_others)
        free_pending_beside_others(pool, context);
}

void heap_wait_if_missed(struct pool *pool, struct context *context, uint64_t now)
{
    uint64_t room = room_left(pool, context, now);
    if (__builtin_expect(policy_memory_is_missed(context, 0, room), 0))
        wait_for_what_is_missed(pool, context, room);
}

bool heap_would_miss(struct pool *pool, struct context *context, uint64_t bytes)
{
    return policy_memory_is_missed(context, bytes, room_left(pool, context, monotonic_now()));
}

CUresult heap_end_free(struct pool *pool, struct context *context, struct fence *fence,
                       bool waitable)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct heap *heap = heap_of(context);
    CUresult result = CUDA_SUCCESS;
    struct situation situation = {0};
    for (int i = 1; fence; i++) {
        struct epoch_recorded recorded = epoch_record_and_lock(
            pool, context, fence, heap_keeps_up(heap) && heap->caches.count > 1);
        bool good =
            context->epochs.failures == 0 && !recorded.unusable && context_is_usable(context);
        fence = i < FENCES_IN_A_ROW && good ? fence_again_if_due(context, waitable) : NULL;
        /* This thread has held the lock since its record ended, so no other thread is recording.
         * Nobody would answer `owed` any more, so it is cleared. */
        context->epochs.owed = false;
        if (!fence)
            ask_about_unkept(pool, context);
        if (!fence)
            situation = release_look(pool, heap);
        heap_unlock(heap);
        result = epoch_settle_record(pool, context, &recorded);
    }
    /* Makes the return stream now, while memory is left for it. Memory is released on it when none
     * is left. */
    if (pool->driver->cuMemFreeAsync &&
        !atomic_load_explicit(&context->return_stream, memory_order_relaxed))
        return_stream(pool, context);
    if (waitable)
        heap_wait_if_missed(pool, context, situation.now);
    release_excess(pool, context, &situation, RELEASE_IN_FREE);
    if (device_is_short(context->device))
        room_look_again(pool, context);
    return result;
}

/* Whether this thread has left the epoch to another thread for so long that the other one may have
 * lost its processor. */
static bool has_relied_enough(struct thread_cache *cache)
{
    uint64_t now = monotonic_now(), stamp = counter_get(&cache->stamp);
    if (cache->left_fence_stamp != stamp) {
        cache->left_fence_stamp = stamp;
        cache->left_fence_at = now;
    }
    return now - cache->left_fence_at > RELIED_NANOSECONDS;
}

/* Whether this thread leaves the closing to another thread that is about to close the epoch. That
 * thread's fence mostly serves this thread's frees, too. False: this thread closes the epoch. It
 * has set closed_for, or has relied on the other thread for RELIED_NANOSECONDS. closed_for is only
 * a hint, since the lock decides which thread closes. Its acquire and release guard nothing. */
static bool another_closes(struct epochs *epochs, struct thread_cache *cache)
{
    if (!(atomic_load_explicit(&epochs->closed_for, memory_order_relaxed) ||
          atomic_exchange_explicit(&epochs->closed_for, true, memory_order_acquire)))
        return false;
    return !cache || !has_relied_enough(cache);
}

CUresult heap_close_epoch(struct pool *pool, struct context *context)
{
    no_lock_may_be_held_behind(LOCK_LAST_ACROSS_DRIVER_CALLS);
    struct heap *heap = heap_of(context);
    struct thread_cache *cache = thread_cache_known(heap);
    if (cache && cache->hot_fence_bytes && thread_cache_puts_fence_off(cache))
        return CUDA_SUCCESS;
    if (another_closes(&context->epochs, cache)) {
        if (cache)
            thread_cache_count_again(cache);
        return CUDA_SUCCESS;
    }
    heap_lock(heap);
    heap_note_user(pool, heap);
    if (cache && epoch_is_closed(&context->epochs, counter_get(&cache->stamp))) {
        atomic_store_explicit(&context->epochs.closed_for, false, memory_order_release);
        heap_unlock(heap);
        return CUDA_SUCCESS;
    }
    if (heap->caches.count > 1)
        heap_recent_sums(heap, SUMS_EPOCHS_OLD);
    if (cache)
        place_refresh_cache(heap, cache);
    struct fence *fence = heap_begin_fence(context, true);
    /* The thread that is recording will record this fence, too. */
    if (cache && !fence && context->epochs.owed)
        thread_cache_count_again(cache);
    else if (cache && !fence)
        thread_cache_ask_again(cache);
    atomic_store_explicit(&context->epochs.closed_for, false, memory_order_release);
    heap_unlock(heap);
    return fence ? heap_end_free(pool, context, fence, true) : CUDA_SUCCESS;
}
