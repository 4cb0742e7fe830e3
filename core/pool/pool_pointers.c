/*
 * What a pointer is, and how much memory is free. The program gets the answers that the driver
 * would give without the pool. The file also marks memory that leaves the process as shared
 * (pool_share).
 */
#include "pool.h"

#include "core/base/cancellation.h"
#include "core/base/clock.h"
#include "core/base/numbers.h"
#include "core/contexts/context.h"
#include "core/contexts/device.h"
#include "core/contexts/epoch.h"
#include "core/contexts/pool_state.h"
#include "core/device_memory/device_memory.h"
#include "core/device_memory/free_pages.h"
#include "core/driver/calls.h"
#include "core/graph_memory/graph_blocks.h"
#include "core/graph_memory/graph_memory.h"
#include "core/graph_memory/graph_nodes.h"
#include "core/reclaim/reclaim.h"
#include "core/stream_memory/stream_shelf.h"
#include "core/stream_memory/stream_table.h"
#include "pool_host.h"
#include "pool_stream.h"

/* Bytes that would become free on the device if all its cached and pending memory were released.
 * kept: what all kinds of memory hold on the device. */
static uint64_t free_device_bytes(struct pool *pool, struct device *device,
                                  const struct kept_bytes *kept)
{
    struct kept_bytes of_heaps = {0};
    device_memory.add_kept(pool, device, &of_heaps);
    uint64_t of_others = rest_of(kept->cached + kept->pending, of_heaps.cached + of_heaps.pending);
    return free_pages_bytes(pool, device) + of_others + bytes_the_driver_keeps(pool, device);
}

/* Bytes that other processes would release at once. Without the pool these would be free. */
static uint64_t neighbours_bytes(const struct device *device, bool of_group)
{
    if (!device->board)
        return 0;
    return board_others(device->board, device->board_place, device->total_bytes, of_group).cached;
}

/* The most that the limits leave to this process. Its own cached and pending bytes of the pool
 * count as available. So do the bytes that other processes of its group would release. Device
 * memory on its way to the driver counts as held, so the answer may be too low for a moment. To
 * count it as free as well would be too much: the driver says that of a part of it already. */
static uint64_t bytes_inside_limits(const struct device *device, const struct kept_bytes *own)
{
    if (!device_is_limited(device))
        return UINT64_MAX;
    uint64_t of_process =
        rest_of(device_limit(device, BOARD_LIMIT_OF_PROCESS), own->live + device_unpooled(device));
    uint64_t left = device_group_left(device);
    if (left == UINT64_MAX)
        return of_process;
    uint64_t kept = own->cached + own->pending + neighbours_bytes(device, true);
    return left < UINT64_MAX - kept ? smaller_of(left + kept, of_process) : of_process;
}

/* free, plus what other processes would release. Their numbers may be old, and what they have just
 * released is free already. So the sum is at most what the device would have without this process's
 * live memory. */
static uint64_t with_neighbours(const struct device *device, const struct kept_bytes *own,
                                uint64_t free)
{
    uint64_t theirs = neighbours_bytes(device, false);
    if (theirs == 0)
        return free;
    uint64_t most = rest_of(device->total_bytes, own->live);
    return smaller_of(free + theirs, larger_of(free, most));
}

CUresult pool_memory_info(struct pool *pool, size_t *free, size_t *total)
{
    graph_memory_process_ended(pool);
    CUresult result = pool->driver->cuMemGetInfo_v2(free, total);
    bool green;
    struct context *context = result == CUDA_SUCCESS ? context_current(pool, &green) : NULL;
    if (!context)
        return result;
    struct device *device = context->device;
    device_follow_limits(pool, device);
    if (total)
        *total = smaller_of(*total, device->told_bytes);
    if (!free)
        return result;
    struct kept_bytes kept = kept_bytes(pool, device);
    uint64_t own = *free + free_device_bytes(pool, device, &kept);
    *free = smaller_of(with_neighbours(device, &kept, own), total ? *total : device->total_bytes);
    *free = smaller_of(*free, bytes_inside_limits(device, &kept));
    return result;
}

uint64_t pool_told_total(const struct pool *pool, CUdevice ordinal, uint64_t total_bytes)
{
    struct device_limits limits;
    limits_of_device(&pool->limits, &pool->settings, ordinal, total_bytes, &limits);
    return limits_told_total(&limits, pool->settings.limits.tell_total, total_bytes);
}

bool pool_freed_outside(struct pool *pool, CUdeviceptr address)
{
    bool gone = true;
    for (const struct kind *const *kind = pool->kinds; *kind && gone; kind++)
        gone = !(*kind)->freed_outside || (*kind)->freed_outside(pool, address);
    return gone;
}

void pool_forget_address(struct pool *pool, CUdeviceptr address)
{
    TELL_KINDS(pool, forget_address, pool, address);
}

/* ---- pointers ---- */

/* False where the pointer is not inside this block. Another thread may be freeing the block at the
 * same time. */
static bool ask_block(struct block *block, CUdeviceptr pointer, struct pointer_answer *answer)
{
    heap_lock(block->heap);
    CUdeviceptr base = block_address(block);
    bool around = block_state(block) != BLOCK_UNUSED && pointer - base < block->bytes;
    if (around) {
        bool inside =
            block_is_live_at(block, base) && pointer - base < counter_get(&block->requested);
        answer->kind = inside ? POINTER_LIVE : POINTER_HIDDEN;
        answer->base = base;
        answer->block_bytes = block->bytes;
        answer->part = block_is_part(block);
        answer->bytes = counter_get(&block->requested);
    }
    heap_unlock(block->heap);
    return around;
}

/* False: the pointer is not inside a stream-ordered block. */
static bool ask_stream_pointer(struct pool *pool, CUdeviceptr pointer,
                               struct pointer_answer *answer)
{
    const struct block *found =
        streams_of(pool) ? block_table_find_around(&streams_of(pool)->blocks, pointer) : NULL;
    CUdeviceptr base = found ? block_address(found) : 0;
    uint64_t block_size = found ? block_bytes(found) : 0;
    /* Looked up again by its address, because another thread may be releasing the block at this
     * moment. */
    const struct stream_block *block = found ? stream_block_at(pool, base) : NULL;
    if (!block || &block->block != found || pointer - base >= block_size)
        return false;
    uint64_t bytes = atomic_load_explicit(&block->asked, memory_order_relaxed);
    bool inside = stream_block_is_held(block, base) && pointer - base < bytes;
    *answer = (struct pointer_answer){.kind = inside ? POINTER_LIVE : POINTER_HIDDEN,
                                      .base = base,
                                      .bytes = bytes,
                                      .part = block_is_part(found)};
    return true;
}

static bool share_stream_block(struct pool *pool, CUdeviceptr base)
{
    struct stream_block *block = stream_block_at(pool, base);
    if (!block)
        return false;
    atomic_store_explicit(&block->shared, true, memory_order_relaxed);
    return true;
}

struct pointer_answer pool_ask_pointer(struct pool *pool, CUdeviceptr pointer)
{
    struct pointer_answer answer = {.kind = POINTER_FOREIGN};
    struct block *block = block_table_find_around(&pool->blocks, pointer);
    bool found = block && ask_block(block, pointer, &answer);
    if (found && answer.kind == POINTER_HIDDEN && pointer - answer.base < answer.bytes &&
        graph_nodes_are_served(pool) &&
        graph_blocks_are_live_again(graph_memory_of(pool), answer.base))
        answer.kind = POINTER_LIVE;
    if (!found && !pool_ask_host_pointer(pool, pointer, &answer))
        ask_stream_pointer(pool, pointer, &answer);
    return answer;
}

/* Buffer numbers of the pool's have bit 63 set: the driver counts its buffers from 1 and never gets
 * that far. Numbers of stream-ordered memory are generations; bit 62 keeps them apart from the
 * others. */
#define OUR_BUFFERS    (UINT64_C(1) << 63)
#define STREAM_BUFFERS (UINT64_C(1) << 62)

uint64_t pool_buffer_id(struct pool *pool, const struct pointer_answer *answer)
{
    struct block *block = block_table_find(&pool->blocks, answer->base);
    uint64_t number;
    if (!block) {
        number = pool_name_host(pool, answer->base);
        if (number)
            return OUR_BUFFERS | number;
        number = pool_generation(pool, answer->base);
        return number ? OUR_BUFFERS | STREAM_BUFFERS | number : 0;
    }
    heap_lock(block->heap);
    number = block_name(block, answer->base, &pool->lives);
    heap_unlock(block->heap);
    return number ? OUR_BUFFERS | number : 0;
}

void pool_refused_export(struct pool *pool, const struct pointer_answer *answer)
{
    struct block *block = block_table_find(&pool->blocks, answer->base);
    if (!block) {
        const struct stream_block *part = stream_block_at(pool, answer->base);
        const struct shelf *shelf = part ? shelf_of(part) : NULL;
        if (shelf)
            counter_add_shared(&shelf->stream->on_device->counters->segments.refused_exports, 1);
        return;
    }
    heap_lock(block->heap);
    counter_add(&block->heap->counters->segments.refused_exports, 1);
    heap_unlock(block->heap);
}

/* A wait for a barrier that takes longer than this is reported: nanoseconds. */
#define LONG_WAIT_NANOSECONDS (UINT64_C(1) * 1000 * 1000 * 1000)

/* Releases and retakes the context's lock. Something other than the context's own work is about to
 * reach memory that a barrier orders, and the device cannot make it wait. So the wait ends only
 * with that work. A process in which the wait is long raises no more barriers. */
static void wait_for_barrier(struct pool *pool, struct context *context, uint64_t behind)
{
    lock_must_be_held(&context->lock);
    if (epoch_wait_until(pool, context, behind, monotonic_now() + LONG_WAIT_NANOSECONDS))
        return;
    atomic_store_explicit(&pool->memory_is_pinned, true, memory_order_relaxed);
    counter_add(&heap_of(context)->counters->stalled_waits, 1);
    epoch_wait_until(pool, context, behind, UINT64_MAX);
}

void pool_share(struct pool *pool, CUdeviceptr pointer)
{
    no_lock_may_be_held();
    struct pointer_answer answer = pool_ask_pointer(pool, pointer);
    struct block *block =
        answer.kind == POINTER_LIVE ? block_table_find(&pool->blocks, answer.base) : NULL;
    if (!block) {
        if (answer.kind == POINTER_LIVE && !pool_share_host(pool, answer.base))
            share_stream_block(pool, answer.base);
        return;
    }
    struct heap *heap = block->heap;
    struct context *context = context_of_heap(heap);
    uint64_t behind = 0;
    heap_lock(heap);
    if (block_share(block, answer.base))
        behind = counter_get(&block->epoch);
    if (behind > epoch_clean(&context->epochs))
        wait_for_barrier(pool, context, behind);
    heap_unlock(heap);
}
