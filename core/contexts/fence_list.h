/*
 * The fences of a context: the outstanding ones, by ascending epoch, and the spare ones. The caller
 * of every function holds the context's lock.
 */
#ifndef CUDAPOOL_CORE_FENCE_LIST_H
#define CUDAPOOL_CORE_FENCE_LIST_H

#include <stdlib.h>

#include "core/base/lock.h"
#include "fence.h"

/* Returns a fence to record, whose event may be used again; NULL where memory is short. */
static inline struct fence *fence_take_spare(struct epochs *epochs)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    struct fence *fence = epochs->spare;
    if (!fence)
        return calloc(1, sizeof *fence);
    epochs->spare = fence->next;
    return fence;
}

static inline void fence_put_spare(struct epochs *epochs, struct fence *fence)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    fence->next = epochs->spare;
    epochs->spare = fence;
}

/* The fence has been recorded, and is the newest. */
static inline void fence_publish(struct epochs *epochs, struct fence *fence)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    if (epochs->newest)
        epochs->newest->next = fence;
    else
        epochs->oldest = fence;
    epochs->newest = fence;
    epochs->outstanding++;
    if (fence->waitable)
        atomic_store_explicit(&epochs->fenced, fence->epoch, memory_order_relaxed);
}

/* A thread no longer uses the fence. A fence that is not outstanding and has no users may be
 * recorded again. */
static inline void fence_drop_user(struct epochs *epochs, struct fence *fence)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    fence->users--;
    if (fence->users == 0 && fence->over)
        fence_put_spare(epochs, fence);
}

/* There are FENCES_MAX fences: removes those whose blocks the next fence makes clean as well. */
void fences_thin_out(struct epochs *epochs);

/* Takes the oldest fence off the list. The last thread that uses it makes it spare. */
static inline void fences_retire_oldest(struct epochs *epochs)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    struct fence *fence = epochs->oldest;
    epochs->oldest = fence->next;
    if (!epochs->oldest)
        epochs->newest = NULL;
    epochs->outstanding--;
    fence->over = true;
    if (fence->users == 0)
        fence_put_spare(epochs, fence);
}

/* The oldest outstanding fence with epoch >= stamp, or NULL. waitable: only waitable fences
 * count. */
struct fence *epoch_fence_for(const struct epochs *epochs, uint64_t stamp, bool waitable);

#endif
