/*
 * Pinned host memory: the functions of pool.h that allocate and free it, and answer for its
 * pointers. A hit and a free take the quick path, one short lock of the thread's shard. The slow
 * functions here answer everything else.
 */
#include "pool.h"

#include <stdatomic.h>

#include "core/contexts/capture.h"
#include "core/contexts/context.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"
#include "core/host_memory/host_allocate.h"
#include "core/host_memory/host_by_driver.h"
#include "core/host_memory/host_quick.h"
#include "pool_current.h"

/* The heap of the current context, or NULL where the pool may not serve the request and the driver
 * answers. */
static struct host_heap *served_heap(struct pool *pool, const struct host_request *request)
{
    bool green;
    bool sane = request->address && request->bytes && host_memory_of(pool);
    struct context *context = sane ? context_current(pool, &green) : NULL;
    struct host_heap *heap = context && context_is_usable(context) ? host_heap_of(context) : NULL;
    if (heap && __builtin_expect(!host_heap_is_ready(heap), 0))
        host_heap_make_ready(pool, heap);
    return heap;
}

static CUresult allocate_as(struct pool *pool, const struct host_request *request)
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

__attribute__((noinline)) static CUresult allocate_slowly(struct pool *pool, void **address,
                                                          size_t bytes, unsigned sort)
{
    return allocate_as(pool, &(struct host_request){address, bytes, sort});
}

/* The calling thread's shard in the current context. NULL: the thread does not remember that
 * context, or captures are under way. */
static inline struct host_shard *usable_shard(const struct pool *pool)
{
    return thread_remembers_current(pool) ? thread_state.shard : NULL;
}

static inline CUresult allocate(struct pool *pool, void **address, size_t bytes, unsigned sort)
{
    struct host_shard *shard = usable_shard(pool);
    CUdeviceptr taken;
    if (!__builtin_expect(shard && address &&
                              host_take_quickly(host_memory_of(pool), shard, bytes, sort, &taken),
                          1))
        return allocate_slowly(pool, address, bytes, sort);
    *address = (void *)(uintptr_t)taken;
    return CUDA_SUCCESS;
}

/* The driver refuses flags that do not exist. */
__attribute__((noinline)) static CUresult refuse_by_driver(struct pool *pool, void **address,
                                                           size_t bytes, unsigned int flags)
{
    return pool->driver->cuMemHostAlloc(address, bytes, flags);
}

CUresult pool_allocate_host(struct pool *pool, void **address, size_t bytes, unsigned int flags)
{
    return __builtin_expect((flags & ~HOST_SORT_FLAGS) == 0, 1)
               ? allocate(pool, address, bytes, flags)
               : refuse_by_driver(pool, address, bytes, flags);
}

CUresult pool_allocate_host_plainly(struct pool *pool, void **address, size_t bytes)
{
    return allocate(pool, address, bytes, HOST_SORT_PLAIN);
}

/* Whether the driver would free for this thread. The driver also frees without a current context,
 * but refuses in a context that has ended and in a host function. Where the pool does not know the
 * current context, it asks the driver. */
static bool may_free(struct pool *pool)
{
    CUcontext handle;
    bool green;
    if (context_current(pool, &green))
        return true;
    return pool->driver->cuCtxGetCurrent(&handle) == CUDA_SUCCESS && !handle;
}

__attribute__((noinline)) static CUresult free_slowly(struct pool *pool, void *memory)
{
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)memory;
    const struct host_memory *host = host_memory_of(pool);
    struct block *block = host ? block_table_find(&host->blocks, address) : NULL;
    if (!block)
        return pool->driver->cuMemFreeHost(memory);
    if (may_free(pool))
        return host_free(pool, block, address);
    /* The driver will refuse the free, unless it merely failed to say which context is current. A
     * block that is already free must not reach the driver, so the driver is asked about
     * NOBODYS_POINTER instead. The driver is asked in that way, too, about memory that the pool
     * itself has registered. */
    bool driver_decides =
        !block_is_live_at(block, address) || host_origin_of(block) == HOST_REGISTERED;
    CUresult result = driver_decides
                          ? pool->driver->cuMemFreeHost((void *)(uintptr_t)NOBODYS_POINTER)
                          : CUDA_ERROR_INVALID_VALUE;
    return result == CUDA_ERROR_INVALID_VALUE ? host_free_by_driver(pool, block, address) : result;
}

CUresult pool_free_host(struct pool *pool, void *memory)
{
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)memory;
    struct host_shard *shard = usable_shard(pool);
    /* A shard exists only where the pool serves pinned memory. */
    struct block *block = __builtin_expect(shard != NULL, 1)
                              ? block_table_find(&host_memory_of(pool)->blocks, address)
                              : NULL;
    struct host_bin *bin =
        __builtin_expect(block != NULL, 1) ? host_claim_quickly(pool, shard, block, address) : NULL;
    if (__builtin_expect(!bin, 0))
        return free_slowly(pool, memory);
    uint64_t stamp = host_stamp(shard->heap);
    if (__builtin_expect(counter_get(&shard->newest) != stamp, 0))
        return host_free_in_new_epoch(pool, shard, bin, block, address, stamp);
    if (__builtin_expect(host_put(shard, bin, block, address, stamp), 0))
        return host_finish_free(pool, shard, bin, stamp);
    host_unlock(shard);
    return CUDA_SUCCESS;
}

/* Another thread may be freeing or taking the block at the same time. */
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
    /* Acquire fence: the loads of bytes and requested above come before the second block_is_live_at
     * below. So both numbers were read while the block was live. */
    atomic_thread_fence(memory_order_acquire);
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
