#include "fence_list.h"

#include <stdlib.h>

#include "core/base/lock.h"

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
    while (fence && (fence->epoch < stamp || (waitable && !fence->waitable)))
        fence = fence->next;
    return fence;
}
