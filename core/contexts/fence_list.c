#include "fence_list.h"

#include <stdlib.h>

#include "core/base/lock.h"

void fence_put_spare(struct epochs *epochs, struct fence *fence)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    fence->next = epochs->spare;
    epochs->spare = fence;
}

struct fence *fence_take_spare(struct epochs *epochs)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    struct fence *fence = epochs->spare;
    if (!fence)
        return calloc(1, sizeof *fence);
    epochs->spare = fence->next;
    return fence;
}

void fence_publish(struct epochs *epochs, struct fence *fence)
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

/* A fence that is over and that nobody looks at any more may be recorded again. */
void fence_drop_user(struct epochs *epochs, struct fence *fence)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    fence->users--;
    if (fence->users == 0 && fence->over && !MUTATED(watched_event_recorded))
        fence_put_spare(epochs, fence);
}

static bool next_serves_as_well(const struct fence *fence)
{
    return fence->users == 0 && fence->next && (fence->next->waitable || !fence->waitable);
}

void fences_thin_out(struct epochs *epochs)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    struct fence **place = &epochs->oldest;
    while (*place) {
        struct fence *fence = *place;
        if (next_serves_as_well(fence)) {
            *place = fence->next;
            epochs->outstanding--;
            fence_put_spare(epochs, fence);
        }
        place = &(*place)->next;
    }
}

struct fence *epoch_fence_for(const struct epochs *epochs, uint64_t stamp, bool waitable)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    struct fence *fence = epochs->oldest;
    waitable = waitable && !MUTATED(wait_for_any_fence);
    while (fence && (fence->epoch < stamp || (waitable && !fence->waitable)))
        fence = fence->next;
    return fence && MUTATED(newest_fence_taken) ? epochs->newest : fence;
}

/* Takes the oldest fence off the list; whoever still looks at it makes it spare. */
void fences_retire_oldest(struct epochs *epochs)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    struct fence *fence = epochs->oldest;
    epochs->oldest = fence->next;
    if (!epochs->oldest)
        epochs->newest = NULL;
    epochs->outstanding--;
    fence->over = true;
    if (fence->users == 0 || MUTATED(watched_event_recorded))
        fence_put_spare(epochs, fence);
}
