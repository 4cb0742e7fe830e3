#include "hot_memory.h"

#include "core/contexts/device.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/surroundings.h"

/* Blocks of up to HOT_LARGEST * hot_bytes are reused while they are hot. If hot_bytes is null in
 * the settings, that is half of the GPU's cache. */
#define HOT_LARGEST 4u

bool policy_keeps_hot(struct pool *pool, const struct heap *heap)
{
    return context_of_heap(heap)->device->hot_bytes && one_stream_is_used(pool) &&
           !contexts_were_several(pool);
}

uint64_t policy_hot_fence_bytes(struct pool *pool, const struct heap *heap)
{
    uint64_t hot = context_of_heap(heap)->device->hot_bytes;
    return hot && policy_keeps_hot(pool, heap) ? hot : 0;
}

bool policy_reuses_hot(struct pool *pool, const struct heap *heap, uint64_t bytes)
{
    return bytes / HOT_LARGEST <= context_of_heap(heap)->device->hot_bytes &&
           policy_keeps_hot(pool, heap) && barriers_are_open(pool);
}
