/*
 * Waiting for fences: the functions of epoch.h whose names say so.
 */
#include "epoch.h"

#include <sched.h>

#include "core/base/cancellation.h"
#include "core/base/clock.h"
#include "core/base/numbers.h"
#include "core/driver/calls.h"
#include "fence_list.h"
#include "rounds.h"

/* How long a thread waits for another's question or record, and how often it looks between two
 * yields; and how long the thread that has recorded may take until it begins the next one that it
 * was asked for. */
#define AWAIT_NANOSECONDS 100000u
#define AWAIT_LOOKS       64u

/* A wait that was shorter says nothing of the work: nanoseconds. */
#define LONG_NANOSECONDS (VAIN_WAIT_NANOSECONDS / 2)

/* So many naps without a look at what the lock guards. */
#define NAPS_UNLOCKED 64u

/* Whether another thread is about to know more of a stamp. fenced: a fence covers it already. */
static bool is_in_the_driver(const struct epochs *epochs, uint64_t stamp, bool fenced)
{
    return atomic_load_explicit(&epochs->querying, memory_order_relaxed) ||
           (!fenced && stamp < epoch_current(epochs) &&
            atomic_load_explicit(&epochs->recording, memory_order_relaxed));
}

void epoch_await_others(struct context *context, uint64_t stamp)
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

/* Whoever waits takes it as seldom as can be. Returns when there may be something to do for this
 * thread. */
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
    uint64_t stamp;      /* until everything stamped so is clean */
    uint64_t give_up_at; /* nanoseconds of the monotonic clock; 0: never */
    bool others;         /* other contexts' work is waited for as well */
    bool in_allocation;  /* see epoch_wait_in_allocation */
    /* What was clean when that last changed, and when the wait began or that was seen. */
    uint64_t clean, clean_since;
};

static bool is_in_vain(const struct epochs *epochs, struct fence_wait *wait)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    uint64_t now = monotonic_now(), clean = epoch_clean(epochs);
    if (clean != wait->clean) {
        wait->clean = clean;
        wait->clean_since = now;
    }
    return now - wait->clean_since > VAIN_WAIT_NANOSECONDS;
}

void epoch_give_up_waiting(struct pool *pool, struct context *context)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    if (epochs->newest) {
        host_work_mark(&epochs->host_work, epoch_clean(epochs), epochs->newest->epoch, false);
        host_work_note_unwaited(&epochs->host_work, epochs->newest->epoch);
    }
    counter_add(&context->counters->vain_waits, 1);
    frees_wait_begin(&epochs->frees_wait, monotonic_now());
    TELL_KINDS(context, waited_in_vain, pool, context);
}

/* Whether an answer, or the time, ends the wait. */
static bool ends_wait(struct pool *pool, struct context *context, struct fence_wait *wait,
                      enum fence_answer answer)
{
    lock_must_be_held(&context->lock);
    if (answer == FENCE_FAILED || (answer == FENCE_OWN_OVER && !wait->others) ||
        (wait->give_up_at && monotonic_now() >= wait->give_up_at))
        return true;
    if (!wait->in_allocation || !is_in_vain(&context->epochs, wait))
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

/* Whether the thread that records, or has just recorded, will make a fence that covers the stamp:
 * this one, or the one that it is asked for here. It is in a free or a synchronise of its own, so
 * that the plain calls would have waited for as much. */
static bool a_fence_is_coming(struct context *context, uint64_t stamp, uint64_t *idle_since)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    if (!epochs->recording) {
        /* Between two records, about to begin one, or it may have given up. */
        bool comes =
            context->epochs.owed || atomic_load_explicit(&epochs->closed_for, memory_order_relaxed);
        *idle_since = *idle_since ? *idle_since : monotonic_now();
        return comes && monotonic_now() - *idle_since < AWAIT_NANOSECONDS;
    }
    if (!epochs->recording_for_free)
        return false;
    *idle_since = 0;
    if (stamp >= epoch_current(epochs))
        context->epochs.owed = true;
    return true;
}

/* Nanoseconds of the monotonic clock; 0: never. */
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
            !atomic_load_explicit(&epochs->recording, memory_order_relaxed) || is_past(give_up_at))
            return;
    }
}

/* Releases and retakes the lock: another thread may be recording. However long that takes,
 * whoever went on without the fence would take new memory for all that time. give_up_at:
 * nanoseconds of the monotonic clock; 0: never. */
static struct fence *await_fence_for(struct context *context, uint64_t stamp, uint64_t give_up_at)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    uint64_t idle_since = 0, started = monotonic_now();
    struct fence *fence = epoch_fence_for(epochs, stamp, true);
    while (!fence && epoch_clean(epochs) < stamp && !atomic_load(&context->dying) &&
           a_fence_is_coming(context, stamp, &idle_since) && !is_past(give_up_at)) {
        context_unlock(context);
        nap_beside_record(epochs, stamp, started, give_up_at);
        context_lock(context);
        fence = epoch_fence_for(epochs, stamp, true);
    }
    thread_state.waited_ns += monotonic_now() - started;
    return fence;
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

/* True once what was waited for in vain, if it is stamped so or earlier, is over, and beside work
 * that is known to need the host. */
static bool wait_for_the_unwaited(struct pool *pool, struct context *context, uint64_t stamp)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    uint64_t give_up_at = monotonic_now() + VAIN_WAIT_NANOSECONDS;
    uint64_t first = smaller_of(epochs->host_work.unwaited, stamp);
    if (!host_work_is_unwaited(&epochs->host_work, epoch_clean(epochs)) ||
        host_work_is_known(&epochs->host_work) ||
        epoch_wait_when_short(pool, context, first, give_up_at))
        return true;
    /* Else other contexts' work is all that is left. */
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

/* The newest stamp that a plain free, or several, have waited for without the pool; 0: none. */
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

/* Whoever comes next need not find out. A later fence covers what an earlier one does: so this goes
 * for all that was freed by now. */
static void note_wait(struct context *context, uint64_t stamp, uint64_t since, uint64_t give_up_at)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    uint64_t now = monotonic_now(), clean = epoch_clean(epochs);
    if (clean >= stamp || now < give_up_at || now - since < LONG_NANOSECONDS)
        return;
    /* What is freed from now on may have the number of the epoch that is open. */
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
