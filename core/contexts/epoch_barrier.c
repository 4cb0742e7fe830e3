/*
 * Barriers: functions of epoch.h that order later work of a context, or of another one, after a
 * fence. The GPU does the waiting, and the host goes on.
 */
#include "epoch.h"

#include "core/base/cancellation.h"
#include "core/base/clock.h"
#include "core/driver/calls.h"
#include "fence_list.h"
#include "registry.h"

#include "capture.h"

bool epoch_raise_barrier(struct pool *pool, struct context *context, struct fence *fence)
{
    lock_must_be_held(&context->lock);
    struct epochs *epochs = &context->epochs;
    uint64_t epoch = fence->epoch;
    CUresult result = CUDA_ERROR_NOT_READY;
    if (epoch_may_be_behind_host_work(epochs, epoch))
        return false;
    fence->users++;
    epochs->raising++;
    context_unlock(context);

    enter_driver();
    lock_take(&pool->fence_lock, LOCK_FENCE);
    if (!captures_under_way(&pool->captures) && context_is_usable(context) &&
        !atomic_load(&context->dying) && !contexts_were_several(pool))
        result = pool->driver->cuCtxWaitEvent(context->handle, fence->own.event);
    if (result != CUDA_ERROR_NOT_READY && epoch_judge_record(pool, result) == UNUSABLE)
        context_disable(context);

    /* The context's lock is taken before the fence lock is released. So a thread that closes
     * barriers, which takes both, finds this barrier. */
    context_lock(context);
    lock_give(&pool->fence_lock);
    leave_driver();
    epochs->raising--;
    if (result == CUDA_SUCCESS) {
        counter_add(&context->counters->barriers, 1);
        if (epoch > epochs->barrier)
            epochs->barrier = epoch;
    }
    fence_drop_user(epochs, fence);
    return result == CUDA_SUCCESS;
}

/* Waits for the fences of all barriers after which blocks were allocated in this context. */
static void drain_barrier(struct pool *pool, struct context *context)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct epochs *epochs = &context->epochs;
    context_lock(context);
    uint64_t started = monotonic_now();
    while (epochs->barrier > epoch_clean(epochs)) {
        struct fence *fence = epoch_fence_for(epochs, epochs->barrier, false);
        if (!fence || epoch_query(pool, context, fence) == FENCE_FAILED)
            break;
        context_unlock(context);
        patient_nap(started);
        context_lock(context);
    }
    context_unlock(context);
}

/* The pool does not know the context with the handle yet. No fence of the pool's includes it, and
 * it may have a capture. */
static bool order_behind(struct pool *pool, const struct fence *fence, CUcontext handle)
{
    CUresult result = CUDA_ERROR_NOT_READY;
    enter_driver();
    lock_take(&pool->fence_lock, LOCK_FENCE);
    if (!captures_under_way(&pool->captures))
        result = pool->driver->cuCtxWaitEvent(handle, fence->own.event);
    lock_give(&pool->fence_lock);
    leave_driver();
    return result == CUDA_SUCCESS;
}

void epoch_order_behind_barrier(struct pool *pool, struct context *context, CUcontext handle)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct epochs *epochs = &context->epochs;
    struct fence *fence = NULL;
    context_lock(context);
    if (epochs->barrier > epoch_clean(epochs))
        fence = epoch_fence_for(epochs, epochs->barrier, false);
    if (fence)
        fence->users++;
    context_unlock(context);
    if (!fence)
        return;
    bool ordered = order_behind(pool, fence, handle);
    context_lock(context);
    fence_drop_user(epochs, fence);
    context_unlock(context);
    if (!ordered)
        drain_barrier(pool, context);
}
