/*
 * Implements the functions of epoch.h that wait for fences. Most of them note a wait without
 * success. Later calls then wait for a second at most, or not at all. The file also gets a free
 * that must wait its fence. Where there can be none, it waits by another call of the driver.
 *
 * The file also holds what a call that is out of memory asks before it waits: the newest stamp that
 * it may wait for, and the bytes that were freed in stream order.
 */
#include "epoch.h"

#include <sched.h>

#include "core/base/cancellation.h"
#include "core/base/clock.h"
#include "core/base/numbers.h"
#include "core/driver/calls.h"
#include "fence_list.h"
#include "registry.h"
#include "rounds.h"

/* AWAIT_NANOSECONDS: the longest that await_others waits for another thread's query or
 * record. It is also how long a_fence_is_coming expects a record that has not begun yet.
 * AWAIT_LOOKS: how often await_others looks before it yields the processor. */
#define AWAIT_NANOSECONDS 100000u
#define AWAIT_LOOKS       64u

/* note_wait ignores a wait that ends sooner than this after the call ran out of memory. So little
 * time does not show that the work is stuck. Nanoseconds. */
#define LONG_NANOSECONDS (STALLED_WAIT_NANOSECONDS / 2)

/* A waiting thread takes the context's lock again after at most this many naps. */
#define NAPS_UNLOCKED 64u

/* Whether another thread is asking the driver about a fence, or is recording the fence that the
 * stamp needs. fenced: there is a fence with epoch >= stamp already. */
static bool is_in_the_driver(const struct epochs *epochs, uint64_t stamp, bool fenced)
{
    return atomic_load_explicit(&epochs->querying, memory_order_relaxed) ||
           (!fenced && stamp < epoch_current(epochs) && epoch_is_recording(epochs));
}

static void await_others(struct context *context, uint64_t stamp)
{
    lock_must_be_held(&context->lock);
    const struct epochs *epochs = &context->epochs;
    bool fenced = epoch_fence_for(epochs, stamp, false) != NULL;
    if (epoch_clean(epochs) >= stamp || !is_in_the_driver(epochs, stamp, fenced))
        return;
    uint64_t started = monotonic_now();
    context_unlock(context);
    for (unsigned looks = 1; epoch_clean(epochs) < stamp && is_in_the_driver(epochs, stamp, fenced);
         looks++) {
        let_the_processor_rest();
        if (looks % AWAIT_LOOKS != 0)
            continue;
        sched_yield();
        if (monotonic_now() - started > AWAIT_NANOSECONDS)
            break;
    }
    thread_state.waited_ns += monotonic_now() - started;
    context_lock(context);
}

void epoch_query_for(struct pool *pool, struct context *context, uint64_t stamp)
{
    lock_must_be_held(&context->lock);
    await_others(context, stamp);
    struct fence *fence = epoch_fence_for(&context->epochs, stamp, false);
    if (fence && stamp > epoch_clean(&context->epochs))
        epoch_query(pool, context, fence);
}

/* Naps without the lock, so that waiting threads take the lock seldom. Returns early once the stamp
 * is clean, a fence may be queried again, or give_up_at has passed. */
static void nap_beside_others(const struct epochs *epochs, uint64_t stamp, uint64_t started,
                              uint64_t give_up_at)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    for (unsigned naps = 0; naps < NAPS_UNLOCKED; naps++) {
        patient_nap(started);
        uint64_t now = monotonic_now();
        if (epoch_clean(epochs) >= stamp || epoch_may_be_asked(epochs, now) ||
            (give_up_at && now >= give_up_at))
            return;
    }
}

struct fence_wait {
    uint64_t stamp;      /* the wait succeeds when everything stamped up to it is clean */
    uint64_t give_up_at; /* nanoseconds of the monotonic clock; 0: never */
    bool others;         /* also waits for other contexts' work */
    bool in_allocation;  /* see epoch_wait_in_allocation */
    /* The last value of epoch_clean that the wait has seen, and when it saw that value first. */
    uint64_t clean, clean_since;
};

static bool has_stalled(const struct epochs *epochs, struct fence_wait *wait)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    uint64_t now = monotonic_now(), clean = epoch_clean(epochs);
    if (clean != wait->clean) {
        wait->clean = clean;
        wait->clean_since = now;
    }
    return now - wait->clean_since > STALLED_WAIT_NANOSECONDS;
}

void epoch_give_up_waiting(struct pool *pool, struct context *context)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    if (epochs->newest) {
        host_work_mark(&epochs->host_work, epoch_clean(epochs), epochs->newest->epoch, false);
        host_work_note_unwaited(&epochs->host_work, epochs->newest->epoch);
    }
    counter_add(&context->counters->stalled_waits, 1);
    frees_wait_begin(&epochs->frees_wait, monotonic_now());
    TELL_KINDS(context, wait_stalled, pool, context);
}

/* Whether the wait ends without success: because of the answer, at give_up_at, or because nothing
 * has become clean for too long. The last reason holds for allocations only. The function then
 * calls epoch_give_up_waiting, which may release and retake the lock. */
static bool ends_wait(struct pool *pool, struct context *context, struct fence_wait *wait,
                      enum fence_answer answer)
{
    lock_must_be_held(&context->lock);
    if (answer == FENCE_FAILED || (answer == FENCE_OWN_OVER && !wait->others) ||
        (wait->give_up_at && monotonic_now() >= wait->give_up_at))
        return true;
    if (!wait->in_allocation || !has_stalled(&context->epochs, wait))
        return false;
    epoch_give_up_waiting(pool, context);
    return true;
}

static bool wait_for_fence(struct pool *pool, struct context *context, struct fence *fence,
                           struct fence_wait wait)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    uint64_t started = monotonic_now(), epoch = fence->epoch;
    wait.clean = epoch_clean(epochs);
    wait.clean_since = started;
    fence->users++;
    while (epoch_clean(epochs) < wait.stamp &&
           !(wait.in_allocation && epoch_may_be_behind_host_work(epochs, epoch))) {
        if (!wait.in_allocation && !round_has_begun(&pool->rounds, fence->round)) {
            context_unlock(context);
            rounds_demand(pool, fence->round);
            context_lock(context);
        }
        enum fence_answer answer = epoch_query(pool, context, fence);
        if (epoch_clean(epochs) >= wait.stamp || ends_wait(pool, context, &wait, answer))
            break;
        context_unlock(context);
        nap_beside_others(epochs, wait.stamp, started, wait.give_up_at);
        context_lock(context);
    }
    fence_drop_user(epochs, fence);
    thread_state.waited_ns += monotonic_now() - started;
    return epoch_clean(epochs) >= wait.stamp;
}

/* Whether another thread is expected to record a waitable fence with epoch >= stamp. Sets owed if
 * the fence that it is recording is too old for the stamp. The other thread then records one more.
 *
 * The caller may wait for such a fence, because the other thread is in the program's own free or
 * synchronise. Without the pool, the driver would have waited there for the same work.
 *
 * *idle_since: when this function first found that no thread is recording, in nanoseconds of the
 * monotonic clock. 0: a thread was recording at the last call, or this is the first call. */
static bool a_fence_is_coming(struct context *context, uint64_t stamp, uint64_t *idle_since)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    if (!epoch_is_recording(epochs)) {
        /* owed: a thread had one more fence to record. closed_for: a thread is about to close the
         * epoch. Neither thread is certain to record, so the caller waits only for a short time. */
        bool comes =
            context->epochs.owed || atomic_load_explicit(&epochs->closed_for, memory_order_relaxed);
        *idle_since = *idle_since ? *idle_since : monotonic_now();
        return comes && monotonic_now() - *idle_since < AWAIT_NANOSECONDS;
    }
    if (!atomic_load_explicit(&epochs->recording_for_free, memory_order_relaxed))
        return false;
    *idle_since = 0;
    if (stamp > atomic_load_explicit(&epochs->closed_in_free, memory_order_relaxed))
        epochs->owed = true;
    return true;
}

/* give_up_at: nanoseconds of the monotonic clock; 0: never. */
static bool is_past(uint64_t give_up_at)
{
    return give_up_at && monotonic_now() >= give_up_at;
}

static void nap_beside_record(const struct epochs *epochs, uint64_t stamp, uint64_t started,
                              uint64_t give_up_at)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    for (unsigned naps = 0; naps < NAPS_UNLOCKED; naps++) {
        patient_nap(started);
        if (epoch_clean(epochs) >= stamp ||
            atomic_load_explicit(&epochs->fenced, memory_order_relaxed) >= stamp ||
            !epoch_is_recording(epochs) || is_past(give_up_at))
            return;
    }
}

/* Returns a waitable fence with epoch >= stamp. If there is none, waits while another thread is
 * expected to record one; releases and retakes the lock. The wait for a record that has begun lasts
 * as long as the record, but not past give_up_at. An allocation that went on instead would take new
 * memory all that time. NULL: no such fence came, or none is needed any more.
 *
 * give_up_at: nanoseconds of the monotonic clock; 0: never. */
static struct fence *await_fence_for(struct context *context, uint64_t stamp, uint64_t give_up_at)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    uint64_t idle_since = 0, started = monotonic_now();
    bool waited = false;
    struct fence *fence = epoch_fence_for(epochs, stamp, true);
    while (!fence && epoch_clean(epochs) < stamp && !atomic_load(&context->dying) &&
           a_fence_is_coming(context, stamp, &idle_since) && !is_past(give_up_at)) {
        context_unlock(context);
        nap_beside_record(epochs, stamp, started, give_up_at);
        context_lock(context);
        fence = epoch_fence_for(epochs, stamp, true);
        waited = true;
    }
    thread_state.waited_ns += waited ? monotonic_now() - started : 0;
    return fence;
}

bool epoch_waits_for_a_second(const struct epochs *epochs)
{
    return host_work_is_unwaited(&epochs->host_work, epoch_clean(epochs)) &&
           !host_work_is_known(&epochs->host_work);
}

CUresult epoch_fence_in_free(struct pool *pool, struct context *context, uint64_t stamp)
{
    struct epochs *epochs = &context->epochs;
    uint64_t give_up_at = monotonic_now() + STALLED_WAIT_NANOSECONDS;
    struct fence *fence = NULL;
    context_lock(context);
    if (!epoch_waits_for_a_second(epochs)) {
        await_fence_for(context, stamp, give_up_at);
        uint64_t started = epoch_is_recording(epochs) ? monotonic_now() : 0;
        epoch_await_record(context, stamp, true, give_up_at);
        thread_state.waited_ns += started ? monotonic_now() - started : 0;
        if (epoch_lacks_a_fence(epochs, stamp, true) && epochs->failures == 0)
            fence = epoch_begin_close(context, true);
        epochs->owed = epochs->owed && !fence;
    }
    context_unlock(context);
    return fence ? epoch_record_in_free(pool, context, fence) : CUDA_SUCCESS;
}

CUresult epoch_wait_by_free(struct pool *pool, struct context *context)
{
    no_lock_may_be_held_behind(LOCK_LAST_ACROSS_DRIVER_CALLS);
    const struct driver *driver = pool->driver;
    CUresult result = CUDA_SUCCESS;
    void *memory;
    bool pushed;
    uint64_t started = monotonic_now();
    struct relaxed_mode mode = enter_driver_relaxed(driver);
    if (driver->cuMemAllocHost_v2 && driver->cuMemFreeHost &&
        context_push(pool, context, &pushed)) {
        result = driver->cuMemAllocHost_v2(&memory, 1);
        result = result == CUDA_SUCCESS ? driver->cuMemFreeHost(memory) : result;
        context_pop(pool, pushed);
    }
    leave_driver_relaxed(driver, mode);
    thread_state.waited_ns += monotonic_now() - started;
    epoch_note_error(context, result);
    return epoch_is_the_end(result) && !context_is_usable(context) ? result : CUDA_SUCCESS;
}

static bool wait_for(struct pool *pool, struct context *context, struct fence_wait wait)
{
    lock_must_be_held(&context->lock);
    struct fence *fence = await_fence_for(context, wait.stamp, wait.give_up_at);
    if (!fence)
        return epoch_clean(&context->epochs) >= wait.stamp;
    return wait_for_fence(pool, context, fence, wait);
}

bool epoch_wait_when_short(struct pool *pool, struct context *context, uint64_t stamp,
                           uint64_t give_up_at)
{
    return wait_for(pool, context, (struct fence_wait){.stamp = stamp, .give_up_at = give_up_at});
}

/* An earlier call may have waited for some work without success. Waits for that work again, as far
 * as the stamp, for STALLED_WAIT_NANOSECONDS at most. Returns whether it has completed. Returns
 * true without a wait if there is no such work, or if some work is known to need the host. */
static bool wait_for_the_unwaited(struct pool *pool, struct context *context, uint64_t stamp)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    uint64_t give_up_at = monotonic_now() + STALLED_WAIT_NANOSECONDS;
    uint64_t first = smaller_of(epochs->host_work.unwaited, stamp);
    if (!epoch_waits_for_a_second(epochs) ||
        epoch_wait_when_short(pool, context, first, give_up_at))
        return true;
    /* A wait that ended before its time does not show that this context's work is stuck. Only other
     * contexts' work was left, or no fence could be waited for or queried. */
    if (monotonic_now() >= give_up_at)
        host_work_note_unwaited(&epochs->host_work, stamp);
    return false;
}

bool epoch_wait_in_free(struct pool *pool, struct context *context, uint64_t stamp)
{
    return wait_for_the_unwaited(pool, context, stamp) &&
           wait_for(pool, context, (struct fence_wait){.stamp = stamp});
}

static uint64_t newest_waitable(const struct epochs *epochs)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    uint64_t newest = 0;
    for (const struct fence *f = epochs->oldest; f; f = f->next)
        if (f->waitable)
            newest = f->epoch;
    return newest;
}

/* Returns the newest stamp of all waitable fences and pending blocks; 0: there is none. Without the
 * pool, the program's frees would have waited for the work up to that stamp. */
static uint64_t newest_of_frees(const struct context *context)
{
    lock_must_be_held(&context->lock);
    return larger_of(newest_waitable(&context->epochs), epoch_newest_pending(context));
}

uint64_t epoch_frees_to_wait_for(struct context *context)
{
    context_lock(context);
    const struct epochs *epochs = &context->epochs;
    uint64_t stamp = newest_of_frees(context);
    if (stamp <= larger_of(epoch_clean(epochs), epoch_waited_for(epochs)))
        stamp = 0;
    context_unlock(context);
    return stamp;
}

void epoch_note_freed_in_order(struct context *context, uint64_t bytes)
{
    context_lock(context);
    struct epochs *epochs = &context->epochs;
    if (epoch_clean(epochs) >= epochs->in_order.epoch)
        epochs->in_order.bytes = 0;
    epochs->in_order.bytes += bytes;
    epochs->in_order.epoch = epoch_current(epochs);
    context_unlock(context);
}

uint64_t epoch_bytes_freed_in_order(struct context *context)
{
    context_lock(context);
    const struct epochs *epochs = &context->epochs;
    bool is_over = epoch_clean(epochs) >= epochs->in_order.epoch;
    uint64_t bytes = is_over ? 0 : epochs->in_order.bytes;
    context_unlock(context);
    return bytes;
}

/* Notes a wait without success, so that the next call does not repeat it. Later fences include the
 * same work, so the note holds for all closed epochs in which something was freed. since: when the
 * call ran out of memory, in nanoseconds of the monotonic clock. */
static void note_wait(struct context *context, uint64_t stamp, uint64_t since, uint64_t give_up_at)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    uint64_t now = monotonic_now(), clean = epoch_clean(epochs);
    if (clean >= stamp || now < give_up_at || now - since < LONG_NANOSECONDS)
        return;
    /* The open epoch is left out, since blocks freed from now on may get its number. */
    uint64_t closed = epoch_current(epochs) - 1;
    epochs->waited.stamp = larger_of(stamp, smaller_of(newest_of_frees(context), closed));
    epochs->waited.clean = clean;
}

void epoch_wait_for_frees(struct pool *pool, struct context *context, uint64_t since,
                          uint64_t give_up_at)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    context_lock(context);
    uint64_t stamp = newest_waitable(&context->epochs);
    if (stamp > epoch_waited_for(&context->epochs)) {
        epoch_wait_when_short(pool, context, stamp, give_up_at);
        note_wait(context, stamp, since, give_up_at);
    }
    context_unlock(context);
}

bool epoch_wait_for_pending(struct pool *pool, struct context *context, uint64_t stamp,
                            uint64_t since, uint64_t give_up_at)
{
    lock_must_be_held(&context->lock);
    if (stamp <= epoch_waited_for(&context->epochs))
        return epoch_clean(&context->epochs) >= stamp;
    bool over = epoch_wait_until(pool, context, stamp, give_up_at);
    if (!over)
        note_wait(context, stamp, since, give_up_at);
    return over;
}

bool epoch_wait_in_allocation_until(struct pool *pool, struct context *context, uint64_t stamp,
                                    uint64_t give_up_at)
{
    const struct epochs *epochs = &context->epochs;
    if (epoch_may_be_behind_host_work(epochs, stamp))
        return epoch_clean(epochs) >= stamp;
    struct fence_wait wait = {.stamp = stamp, .give_up_at = give_up_at, .in_allocation = true};
    return wait_for(pool, context, wait);
}

bool epoch_wait_in_allocation(struct pool *pool, struct context *context, uint64_t stamp)
{
    return epoch_wait_in_allocation_until(pool, context, stamp, 0);
}

bool epoch_wait_until(struct pool *pool, struct context *context, uint64_t stamp,
                      uint64_t give_up_at)
{
    struct fence *fence = epoch_fence_for(&context->epochs, stamp, false);
    struct fence_wait wait = {.stamp = stamp, .give_up_at = give_up_at, .others = true};
    return fence && wait_for_fence(pool, context, fence, wait);
}
