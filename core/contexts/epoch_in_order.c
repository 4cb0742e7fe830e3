/*
 * Implements the functions of epoch.h for memory that was freed in a stream's order. Fences for it
 * are only asked about, and only its own context's work matters (epoch_own_clean).
 */
#include "core/base/clock.h"
#include "core/base/numbers.h"
#include "epoch.h"
#include "fence_list.h"

/* With so many fences outstanding, epoch_close_in_order asks about the oldest before it records
 * another one. A fence that has completed is recorded again. */
#define FENCES_TO_ASK 32u

/* The pause of epoch_ask_in_order after a fence that was running: at first, and at most.
 * Nanoseconds. */
#define IN_ORDER_PAUSE_LEAST UINT64_C(1000)
#define IN_ORDER_PAUSE_MOST  UINT64_C(1000000)

/* Asks about the oldest fence of this stamp. False: there is none, or it has not completed. */
static bool ask_in_order(struct pool *pool, struct context *context, uint64_t stamp)
{
    lock_must_be_held(&context->lock);
    const struct epochs *epochs = &context->epochs;
    struct fence *fence =
        epoch_own_clean(epochs) < stamp ? epoch_fence_for(epochs, stamp, false) : NULL;
    if (fence)
        epoch_query(pool, context, fence);
    return epoch_own_clean(epochs) >= stamp;
}

/* ask_in_order with a pause after a fence that was running. */
static bool ask_now_and_then(struct pool *pool, struct context *context, uint64_t stamp)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    uint64_t pause = 0;
    bool over = epoch_own_clean(epochs) >= stamp;
    if (!over && monotonic_now() >= epochs->in_order.ask_until) {
        over = ask_in_order(pool, context, stamp);
        if (!over)
            pause = larger_of(2 * epochs->in_order.pause, IN_ORDER_PAUSE_LEAST);
        epochs->in_order.pause = smaller_of(pause, IN_ORDER_PAUSE_MOST);
        epochs->in_order.ask_until = monotonic_now() + epochs->in_order.pause;
    }
    return over;
}

uint64_t epoch_close_in_order(struct pool *pool, struct context *context, bool waits)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct epochs *epochs = &context->epochs;
    context_lock(context);
    if (epochs->outstanding >= FENCES_TO_ASK)
        ask_now_and_then(pool, context, epoch_own_clean(epochs) + 1);
    if (waits)
        epoch_await_record(context, epoch_current(epochs), false,
                           monotonic_now() + STALLED_WAIT_NANOSECONDS);
    struct fence *fence = epoch_begin_close(context, false);
    context_unlock(context);
    if (!fence)
        return 0;
    fence->in_order = true;
    uint64_t epoch = fence->epoch;
    struct epoch_recorded recorded = epoch_record_and_lock(pool, context, fence, false);
    bool fenced = !epoch_lacks_a_fence(epochs, epoch, false);
    context_unlock(context);
    epoch_settle_record(pool, context, &recorded);
    return fenced ? epoch : 0;
}

void epoch_fence_in_order(struct pool *pool, struct context *context, uint64_t stamp)
{
    context_lock(context);
    bool lacks = epoch_own_clean(&context->epochs) < stamp &&
                 epoch_lacks_a_fence(&context->epochs, stamp, false);
    context_unlock(context);
    if (lacks)
        epoch_close_in_order(pool, context, true);
}

bool epoch_ask_in_order(struct pool *pool, struct context *context, uint64_t stamp)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    context_lock(context);
    bool over = ask_now_and_then(pool, context, stamp);
    context_unlock(context);
    return over;
}

bool epoch_may_learn_in_order(struct context *context)
{
    context_lock(context);
    bool may = epoch_fence_for(&context->epochs, epoch_own_clean(&context->epochs) + 1, false);
    context_unlock(context);
    return may;
}

void epoch_ask_all_in_order(struct pool *pool, struct context *context)
{
    bool over = true;
    while (over && epoch_may_learn_in_order(context)) {
        epoch_await_turn(context);
        context_lock(context);
        over = ask_in_order(pool, context, epoch_own_clean(&context->epochs) + 1);
        context_unlock(context);
    }
}

uint64_t epoch_close(struct context *context)
{
    context_lock(context);
    uint64_t epoch = epoch_advance(&context->epochs);
    context_unlock(context);
    return epoch;
}

void epoch_close_before_wait(struct context *context, uint64_t stamp)
{
    context_lock(context);
    if (epoch_current(&context->epochs) == stamp)
        epoch_advance(&context->epochs);
    context_unlock(context);
}
