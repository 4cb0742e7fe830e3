/*
 * What the hooks ask of pinned host memory: the functions of pool.h that allocate and free it.
 */
#include "pool.h"

#include "core/contexts/capture.h"
#include "core/contexts/context.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"
#include "core/host_memory/host_allocate.h"
#include "core/host_memory/host_free.h"
#include "core/host_memory/host_miss.h"
#include "pool_current.h"

/* The heap of the current context, where the pool may serve the request; NULL: the driver answers.
 */
static struct host_heap *served_heap(struct pool *pool, const struct host_request *request)
{
    bool green;
    bool sane = request->address && request->bytes && host_memory_of(pool);
    struct context *context = sane ? context_current(pool, &green) : NULL;
    return context && context_is_usable(context) ? host_heap_of(context) : NULL;
}

static CUresult allocate(struct pool *pool, const struct host_request *request)
{
    struct host_heap *heap = served_heap(pool, request);
    if (!heap)
        return host_ask_driver(pool, request);
    uint64_t key = program_captures(&pool->captures) ? 0 : host_key(pool, heap, request);
    if (key == 0)
        return host_miss(pool, heap, 0, request);
    struct block *block = host_take_at_once(pool, heap, key, request->bytes);
    if (!block)
        block = host_take(pool, heap, key, request->bytes);
    if (!block)
        return host_miss(pool, heap, key, request);
    *request->address = (void *)(uintptr_t)block_address(block);
    return CUDA_SUCCESS;
}

CUresult pool_allocate_host(struct pool *pool, void **address, size_t bytes, unsigned int flags)
{
    struct host_request request = {address, bytes, flags};
    /* What is no flag, the driver refuses. */
    if ((flags & ~HOST_SORT_FLAGS) != 0)
        return pool->driver->cuMemHostAlloc(address, bytes, flags);
    return allocate(pool, &request);
}

CUresult pool_allocate_host_plainly(struct pool *pool, void **address, size_t bytes)
{
    struct host_request request = {address, bytes, HOST_SORT_PLAIN};
    return allocate(pool, &request);
}

/* The driver frees for a thread without a context as well, but refuses to do so in a context that
 * has ended, and in a host function: where the pool does not know what is current, it is asked. */
static bool may_free(struct pool *pool)
{
    CUcontext handle;
    bool green;
    if (context_current(pool, &green))
        return true;
    return pool->driver->cuCtxGetCurrent(&handle) == CUDA_SUCCESS && !handle;
}

CUresult pool_free_host(struct pool *pool, void *memory)
{
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)memory;
    const struct host_memory *host = host_memory_of(pool);
    struct block *block = host ? block_table_find(&host->blocks, address) : NULL;
    if (!block)
        return pool->driver->cuMemFreeHost(memory);
    if (may_free(pool))
        return host_free(pool, block, address);
    /* The driver refuses, unless it only did not say what is current: then it must not get what is
     * free already. Of what the pool has mapped itself it is to say the same. */
    bool driver_decides =
        !block_is_live_at(block, address) || host_origin_of(block) == HOST_REGISTERED;
    CUresult result = driver_decides
                          ? pool->driver->cuMemFreeHost((void *)(uintptr_t)NOBODYS_POINTER)
                          : CUDA_ERROR_INVALID_VALUE;
    return result == CUDA_ERROR_INVALID_VALUE ? host_free_by_driver(pool, block, address) : result;
}

/* Any thread may be giving the block back, or taking it, at the same time. */
bool pool_ask_host_pointer(struct pool *pool, CUdeviceptr pointer, struct pointer_answer *answer)
{
    const struct host_memory *host = host_memory_of(pool);
    const struct block *block = host ? block_table_find_around(&host->blocks, pointer) : NULL;
    if (!block)
        return false;
    CUdeviceptr base = block_address(block);
    bool live = block_is_live_at(block, base);
    uint64_t bytes = block_bytes(block), requested = counter_get(&block->requested);
    if (block_state(block) == BLOCK_UNUSED || pointer - base >= bytes)
        return false;
    *answer = (struct pointer_answer){.kind = POINTER_HIDDEN,
                                      .base = base,
                                      .bytes = requested,
                                      .block_bytes = bytes,
                                      .of_host = true};
    if (live && block_is_live_at(block, base) && pointer - base < requested)
        answer->kind = POINTER_LIVE;
    return true;
}

static struct block *live_block(struct pool *pool, CUdeviceptr base)
{
    const struct host_memory *host = host_memory_of(pool);
    return host ? block_table_find(&host->blocks, base) : NULL;
}

uint64_t pool_name_host(struct pool *pool, CUdeviceptr base)
{
    struct block *block = live_block(pool, base);
    if (!block)
        return 0;
    struct context *context = host_heap_of_block(block)->context;
    context_lock(context);
    uint64_t number = block_name(block, base, &pool->lives);
    context_unlock(context);
    return number;
}

bool pool_share_host(struct pool *pool, CUdeviceptr base)
{
    struct block *block = live_block(pool, base);
    return block && block_share(block, base);
}

bool pool_has_registered(struct pool *pool, const void *memory)
{
    CUdeviceptr pointer = (CUdeviceptr)(uintptr_t)memory;
    const struct host_memory *host = host_memory_of(pool);
    const struct block *block = host ? block_table_find_around(&host->blocks, pointer) : NULL;
    return block && host_origin_of(block) == HOST_REGISTERED &&
           pointer - block_address(block) < block_bytes(block);
}

void pool_tell_host_flags(struct pool *pool, const void *memory, unsigned int *flags)
{
    struct pointer_answer answer;
    CUdeviceptr pointer = (CUdeviceptr)(uintptr_t)memory;
    if (!pool_ask_host_pointer(pool, pointer, &answer) || answer.kind != POINTER_LIVE)
        return;
    const struct block *block = live_block(pool, answer.base);
    uint64_t key = block ? host_bin_of(block)->bucket.bytes : 0;
    if (host_key_bytes(key) && !(key & HOST_SORT_PLAIN))
        *flags = (unsigned)(key & HOST_SORT_FLAGS) | CU_MEMHOSTALLOC_DEVICEMAP;
}
