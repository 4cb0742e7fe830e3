/*
 * Device memory: the functions of pool.h that allocate and free it. The fast path uses the calling
 * thread's cache without a lock (thread_cache.h). Everything else leaves it by a jump to a noinline
 * function. "Inside" a cache means between cache_enter and cache_leave.
 */
#include "pool.h"

#include "core/base/cancellation.h"
#include "core/contexts/capture.h"
#include "core/contexts/context.h"
#include "core/contexts/device.h"
#include "core/contexts/epoch.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/device_memory/device_memory.h"
#include "core/driver/calls.h"
#include "core/graph_memory/graph_memory.h"
#include "core/graph_memory/graph_nodes.h"
#include "core/housekeeper/housekeeper.h"
#include "core/reclaim/managed.h"
#include "core/reclaim/reclaim.h"
#include "core/reclaim/reserve.h"
#include "core/stream_memory/mempool.h"
#include "core/stream_memory/stream_table.h"
#include "core/unpooled/owned.h"
#include "pool_current.h"
#include "pool_stream.h"

/* The current context, or NULL where the pool may not serve it. */
static struct context *served_context(struct pool *pool)
{
    bool green;
    struct context *context = context_current(pool, &green);
    /* Relaxed: a late look costs one more failed call (context_disable). */
    if (!context || atomic_load_explicit(&context->unusable, memory_order_relaxed))
        return NULL;
    return context;
}

/* Lets the driver answer an invalid request with its own error. Relaxed mode keeps the call from
 * spoiling captures in which the program may allocate. */
static CUresult refuse_by_driver(struct pool *pool, CUdeviceptr *address, size_t bytes)
{
    struct relaxed_mode mode = relaxed_mode_where_captures_allocate(pool);
    CUresult result = pool->driver->cuMemAlloc_v2(address, bytes);
    relaxed_mode_end(pool->driver, mode);
    return result;
}

/* Lets the driver answer where the pool does not serve the context. The pool's cached memory still
 * makes room. Graphs do not learn of the driver's memory, so captures are to forbid this call.
 * Without a live context the driver allocates nothing, so refuse_by_driver can be used. */
static CUresult allocate_unserved(struct pool *pool, CUdeviceptr *address, size_t bytes)
{
    struct reclaim progress = {.bytes = bytes, .wanted = bytes};
    CUresult result = what_is_current(pool) == CURRENT_ALIVE
                          ? pool->driver->cuMemAlloc_v2(address, bytes)
                          : refuse_by_driver(pool, address, bytes);
    while (result == CUDA_ERROR_OUT_OF_MEMORY && reclaim_for_retry(pool, NULL, &progress))
        result = pool->driver->cuMemAlloc_v2(address, bytes);
    if (result == CUDA_SUCCESS && address)
        heap_forget_address(pool, *address);
    return result;
}

/* The calling thread's cache in its current context. Without a live context, or a cache that may be
 * used, no_thread_cache: it has no heap, so the slow path decides. */
static inline struct thread_cache *usable_cache(const struct pool *pool)
{
    return thread_remembers_current(pool) ? thread_state.device_cache : &no_thread_cache;
}

/* A capture that began during the allocation may have seen the address. It then owns the block,
 * like everything that is allocated while it is under way. */
static inline CUresult own_beside_captures(struct pool *pool, CUdeviceptr address)
{
    if (__builtin_expect(graph_memory_of(pool) != NULL, 0) && graph_memory_serves(pool))
        graph_memory_own(pool, address);
    return CUDA_SUCCESS;
}

static CUresult allocate_from_heap(struct pool *pool, struct context *context, CUdeviceptr *address,
                                   size_t bytes)
{
    CUresult result = heap_allocate(pool, context, address, bytes);
    return result == CUDA_SUCCESS ? own_beside_captures(pool, *address) : result;
}

__attribute__((noinline)) static CUresult allocate_slowly(struct pool *pool, CUdeviceptr *address,
                                                          size_t bytes)
{
    bool sane = address && bytes;
    struct context *context = sane ? served_context(pool) : NULL;
    if (!sane)
        return refuse_by_driver(pool, address, bytes);
    if (!context)
        return allocate_unserved(pool, address, bytes);
    graph_memory_process_ended(pool);
    if (graph_memory_serves(pool))
        return graph_memory_allocate(pool, context, address, bytes);
    if (captures_under_way(&pool->captures)) {
        /* Relaxed, like every counter. A pool that is switched off behaves as if captures were
         * under way, but counts none of these. */
        atomic_fetch_add_explicit(&heap_of(context)->counters->captured,
                                  pool->settings.device.enabled, memory_order_relaxed);
        return heap_allocate_unkept(pool, context, address, bytes);
    }
    return allocate_from_heap(pool, context, address, bytes);
}

/* The slow path of a thread whose cache has given the context, but no block. */
__attribute__((noinline)) static CUresult allocate_in_context(struct pool *pool,
                                                              struct thread_cache *cache,
                                                              CUdeviceptr *address, size_t bytes)
{
    struct context *context = context_of_heap(cache->heap);
    /* Relaxed: a late look costs one more failed call (context_disable). */
    if (!bytes || atomic_load_explicit(&context->unusable, memory_order_relaxed))
        return allocate_slowly(pool, address, bytes);
    graph_memory_process_ended(pool);
    return allocate_from_heap(pool, context, address, bytes);
}

/* Inside the cache on entry, outside on return. Hands a clean block out to the program. out: the
 * result of cache_out_after_hit. */
__attribute__((always_inline)) static inline void
hand_out(struct thread_cache *cache, struct cache_bin *bin, struct block *block,
         CUdeviceptr *address, size_t bytes, uint64_t out)
{
    *address = cache_hand_out(cache, bin, block, bytes, out);
    cache_leave(cache);
    if (__builtin_expect(!cache_raises_no_peak(cache, out), 0))
        thread_cache_note_peaks(cache, bin);
}

/* Not inside the cache on entry. Takes a clean block of the bin, if other threads have left one. */
static CUresult allocate_what_is_clean(struct pool *pool, struct thread_cache *cache,
                                       struct cache_bin *bin, CUdeviceptr *address, size_t bytes)
{
    bool closed = cache_enter(cache, cache->heap);
    struct block *block = NULL;
    if (!closed || thread_cache_enter_strongly(cache))
        block = bin->clean ? bin->clean : thread_cache_turn_clean(cache, bin);
    if (block)
        hand_out(cache, bin, block, address, bytes, cache_out_after_hit(cache, bytes));
    else
        cache_leave(cache);
    return block ? own_beside_captures(pool, *address)
                 : allocate_in_context(pool, cache, address, bytes);
}

/* Inside a cache that is closed, or whose bin has no block that is known to be clean. */
__attribute__((noinline)) static CUresult allocate_inside(struct pool *pool,
                                                          struct thread_cache *cache,
                                                          struct cache_bin *bin, bool closed,
                                                          CUdeviceptr *address, size_t bytes)
{
    struct block *block = NULL;
    struct cache_pending pending = {0};
    if (!closed || thread_cache_enter_strongly(cache)) {
        block = bin->clean ? bin->clean : thread_cache_turn_clean(cache, bin);
        if (!block)
            pending = thread_cache_look(bin);
    }
    if (block) {
        hand_out(cache, bin, block, address, bytes, cache_out_after_hit(cache, bytes));
        return own_beside_captures(pool, *address);
    }
    cache_leave(cache);
    bool over =
        pending.stamp && heap_await_fence(pool, context_of_heap(cache->heap), cache, &pending);
    if (thread_state.waited_ns)
        heap_take_wait(bin);
    if (over)
        return allocate_what_is_clean(pool, cache, bin, address, bytes);
    return allocate_in_context(pool, cache, address, bytes);
}

/* Inside a cache that is open, but whose bin has no block that is known to be clean. */
__attribute__((noinline)) static CUresult
allocate_turned(struct pool *pool, struct thread_cache *cache, struct cache_bin *bin,
                CUdeviceptr *address, size_t bytes, uint64_t out)
{
    struct block *block = thread_cache_turn_clean(cache, bin);
    if (!block)
        return allocate_inside(pool, cache, bin, false, address, bytes);
    hand_out(cache, bin, block, address, bytes, out);
    return CUDA_SUCCESS;
}

/* Inside an open cache, where handing out the newest clean block may raise a peak. */
__attribute__((noinline)) static CUresult allocate_and_note(struct thread_cache *cache,
                                                            struct cache_bin *bin,
                                                            CUdeviceptr *address, size_t bytes,
                                                            uint64_t out)
{
    hand_out(cache, bin, bin->clean, address, bytes, out);
    return CUDA_SUCCESS;
}

CUresult pool_allocate(struct pool *pool, CUdeviceptr *address, size_t bytes)
{
    struct thread_cache *cache = usable_cache(pool);
    struct heap *heap = cache->heap;
    if (__builtin_expect(!heap || !address, 0))
        return allocate_slowly(pool, address, bytes);
    struct cache_bin *bin = cache_find_bin(cache, bytes);
    if (__builtin_expect(!bin, 0))
        return allocate_in_context(pool, cache, address, bytes);
    if (__builtin_expect(cache_enter(cache, heap), 0))
        return allocate_inside(pool, cache, bin, true, address, bytes);
    struct block *block = bin->clean;
    uint64_t out = cache_out_after_hit(cache, bytes);
    if (__builtin_expect(!block, 0))
        return allocate_turned(pool, cache, bin, address, bytes, out);
    if (__builtin_expect(!cache_raises_no_peak(cache, out), 0))
        return allocate_and_note(cache, bin, address, bytes, out);
    *address = cache_hand_out(cache, bin, block, bytes, out);
    cache_leave(cache);
    return CUDA_SUCCESS;
}

static size_t find_pitch(struct pool *pool, const struct pitch *wanted)
{
    size_t pitch = 0;
    lock_take(&pool->pitch_lock, LOCK_PITCHES);
    for (unsigned i = 0; i < pool->pitch_count && !pitch; i++) {
        const struct pitch *p = &pool->pitches[i];
        if (p->device == wanted->device && p->width == wanted->width &&
            p->element_bytes == wanted->element_bytes)
            pitch = p->pitch;
    }
    lock_give(&pool->pitch_lock);
    return pitch;
}

static void remember_pitch(struct pool *pool, const struct pitch *pitch)
{
    lock_take(&pool->pitch_lock, LOCK_PITCHES);
    if (pool->pitch_count < PITCHES)
        pool->pitches[pool->pitch_count++] = *pitch;
    lock_give(&pool->pitch_lock);
}

/* Bytes of the rows, if the pitch is the width rounded up to a multiple of 512, as it is on every
 * device today. False where 64 bits overflow. */
static bool estimate_pitched(const struct pitch *wanted, size_t height, size_t *bytes)
{
    return !__builtin_add_overflow(wanted->width, 511, bytes) &&
           !__builtin_mul_overflow(*bytes / 512 * 512, height, bytes);
}

struct pitched {
    allocate_pitch *driver;
    struct pitch *wanted;
    size_t height;
};

static CUresult ask_for_pitch(struct miss *miss)
{
    const struct pitched *pitched = miss->with;
    struct pitch *wanted = pitched->wanted;
    return pitched->driver(miss->address, &wanted->pitch, wanted->width, pitched->height,
                           wanted->element_bytes);
}

/* Makes the driver's own call, as a miss whose size is estimated until the driver has told the
 * pitch. */
static CUresult learn_pitch(struct pool *pool, allocate_pitch *driver, struct context *context,
                            CUdeviceptr *address, struct pitch *wanted, size_t height)
{
    size_t estimate;
    /* The driver checks all arguments before it refuses what the device cannot hold. */
    if (!estimate_pitched(wanted, height, &estimate) || estimate > context->device->total_bytes)
        return driver(address, &wanted->pitch, wanted->width, height, wanted->element_bytes);
    struct pitched pitched = {driver, wanted, height};
    struct miss miss = {.pool = pool,
                        .context = context,
                        .generation = context_generation(context),
                        .requested = estimate,
                        .bytes = estimate,
                        .ask = ask_for_pitch,
                        .with = &pitched,
                        .address = address};
    if (!miss_reserve(&miss))
        return CUDA_ERROR_OUT_OF_MEMORY;
    miss_ask(&miss);
    miss_ask_again(&miss);
    if (miss.result != CUDA_SUCCESS) {
        device_unreserve(context->device, estimate);
        return miss.result;
    }
    remember_pitch(pool, wanted);
    heap_adopt(&miss, wanted->pitch * height);
    return CUDA_SUCCESS;
}

static CUresult learn_pitch_beside_captures(struct pool *pool, allocate_pitch *driver,
                                            struct context *context, CUdeviceptr *address,
                                            struct pitch *wanted, size_t height)
{
    struct relaxed_mode mode = relaxed_mode_where_captures_allocate(pool);
    CUresult result = learn_pitch(pool, driver, context, address, wanted, height);
    relaxed_mode_end(pool->driver, mode);
    return result == CUDA_SUCCESS ? own_beside_captures(pool, *address) : result;
}

static CUresult allocate_pitch_unserved(struct pool *pool, allocate_pitch *driver,
                                        CUdeviceptr *address, size_t *pitch, size_t width,
                                        size_t height, unsigned int element_bytes)
{
    struct reclaim progress = {0};
    bool refused =
        !address || !pitch || !width || !height || what_is_current(pool) != CURRENT_ALIVE;
    struct relaxed_mode mode = {.exchanged = false};
    if (refused)
        mode = relaxed_mode_where_captures_allocate(pool);
    CUresult result = driver(address, pitch, width, height, element_bytes);
    relaxed_mode_end(pool->driver, mode);
    while (!refused && result == CUDA_ERROR_OUT_OF_MEMORY &&
           reclaim_for_retry(pool, NULL, &progress))
        result = driver(address, pitch, width, height, element_bytes);
    if (result == CUDA_SUCCESS && address)
        heap_forget_address(pool, *address);
    return result;
}

CUresult pool_allocate_pitch(struct pool *pool, allocate_pitch *driver, CUdeviceptr *address,
                             size_t *pitch, size_t width, size_t height, unsigned int element_bytes)
{
    no_lock_may_be_held();
    bool sane = address && pitch && width && height;
    struct context *context = sane ? served_context(pool) : NULL;
    if (!context)
        return allocate_pitch_unserved(pool, driver, address, pitch, width, height, element_bytes);
    struct pitch wanted = {context->device->ordinal, element_bytes, width, 0};
    wanted.pitch = find_pitch(pool, &wanted);
    size_t bytes;
    if (wanted.pitch && !__builtin_mul_overflow(wanted.pitch, height, &bytes)) {
        CUresult result = pool_allocate(pool, address, bytes);
        if (result == CUDA_SUCCESS)
            *pitch = wanted.pitch;
        return result;
    }
    CUresult result = learn_pitch_beside_captures(pool, driver, context, address, &wanted, height);
    if (result == CUDA_SUCCESS)
        *pitch = wanted.pitch;
    return result;
}

__attribute__((noinline)) bool current_is_alive(struct pool *pool, CUcontext handle)
{
    CUdevice device;
    unsigned long long id;
    bool green;
    if (context_current(pool, &green))
        return true;
    return pool->driver->cuCtxGetId ? pool->driver->cuCtxGetId(handle, &id) == CUDA_SUCCESS
                                    : pool->driver->cuCtxGetDevice(&device) == CUDA_SUCCESS;
}

static CUresult free_plainly(struct pool *pool, CUdeviceptr address, void *unused)
{
    (void)unused;
    struct relaxed_mode mode = relaxed_mode_where_captures_allocate(pool);
    CUresult result = pool->driver->cuMemFree_v2(address);
    relaxed_mode_end(pool->driver, mode);
    return result;
}

/* Frees memory that is not the pool's. Where the pool has stepped aside in the context, the driver
 * also frees what is still pending there, inside this free. */
__attribute__((noinline)) static CUresult free_unserved(struct pool *pool, CUdeviceptr address)
{
    CUresult result;
    if (what_is_current(pool) != CURRENT_UNKNOWN && pool_stream_free(pool, address, &result))
        return result;
    /* Some programs free a null pointer to start CUDA, which frees nothing. */
    if (!address)
        return free_plainly(pool, address, NULL);
    struct managed_memory managed = managed_find(pool, address);
    struct owned *owned = owned_end_begins(pool, OWNED_MANAGED, address);
    uint64_t in_order = driver_stream_ordered_bytes(pool->driver, address);
    result = pool->driver->cuMemFree_v2(address);
    bool green;
    struct context *context = context_current(pool, &green);
    if (result == CUDA_SUCCESS)
        managed_freed(&managed);
    owned_ended(pool, owned, result == CUDA_SUCCESS);
    /* The driver's free of stream-ordered memory does not wait for the GPU. */
    if (result == CUDA_SUCCESS && context && in_order)
        epoch_note_freed_in_order(context, in_order);
    if (context && atomic_load_explicit(&context->unusable, memory_order_relaxed))
        heap_free_pending(pool, context);
    return result;
}

static const struct free_call plain_free = {true, free_plainly, NULL};

/* A live context is current; on the fast path it is the block's, since the thread's cache belongs
 * to the block's heap. */
__attribute__((noinline)) static CUresult free_in_context(struct pool *pool, struct block *block,
                                                          CUdeviceptr address)
{
    uint64_t bytes = block_bytes(block);
    CUresult result;
    if (!graph_memory_free(pool, block, address, &result))
        result = heap_free(pool, block, address, &plain_free);
    housekeeper_look(pool, bytes);
    return result;
}

/* Makes the block's context current, because the driver calls inside a free need a context. That
 * fails for a context that is just ending, and the driver frees the block. */
static CUresult free_without_context(struct pool *pool, struct block *block, CUdeviceptr address)
{
    bool pushed;
    if (!context_push(pool, context_of_heap(block->heap), &pushed))
        return heap_free_by_driver(pool, block, address, free_plainly, NULL);
    CUresult result = free_in_context(pool, block, address);
    context_pop(pool, pushed);
    return result;
}

__attribute__((noinline)) static CUresult free_slowly(struct pool *pool, struct block *block,
                                                      CUdeviceptr address)
{
    bool green;
    /* A thread that only frees gets its cache here, too. */
    if (!thread_state.handle)
        context_current(pool, &green);
    switch (what_is_current(pool)) {
    case CURRENT_ALIVE:
        return free_in_context(pool, block, address);
    case CURRENT_NONE:
        return free_without_context(pool, block, address);
    default:
        return free_plainly(pool, address, NULL);
    }
}

__attribute__((noinline)) static CUresult close_epoch(struct pool *pool, struct thread_cache *cache)
{
    CUresult result = CUDA_SUCCESS;
    if (!epoch_is_closed(&context_of_heap(cache->heap)->epochs, counter_get(&cache->stamp)))
        result = heap_close_epoch(pool, context_of_heap(cache->heap));
    housekeeper_look(pool, 0);
    return result;
}

/* Inside a cache on entry, outside on return. This thread has claimed the block. */
__attribute__((noinline)) static CUresult free_inside(struct pool *pool, struct thread_cache *cache,
                                                      struct block *block, CUdeviceptr address,
                                                      uint64_t stamp)
{
    switch (thread_cache_push_claimed(cache, block, address, stamp)) {
    case PUSHED:
        return CUDA_SUCCESS;
    case PUSHED_FENCE_DUE:
        return close_epoch(pool, cache);
    default:
        return free_in_context(pool, block, address);
    }
}

/* Inside a cache that is closed. */
__attribute__((noinline)) static CUresult free_strongly(struct pool *pool,
                                                        struct thread_cache *cache,
                                                        struct block *block, CUdeviceptr address)
{
    if (thread_cache_enter_strongly(cache) && block_claim_at_once(block, address, BLOCK_CACHED))
        return free_inside(pool, cache, block, address,
                           epoch_current(&context_of_heap(cache->heap)->epochs));
    cache_leave(cache);
    return free_in_context(pool, block, address);
}

CUresult pool_free(struct pool *pool, CUdeviceptr address)
{
    struct block *block = block_table_find(&pool->blocks, address);
    if (__builtin_expect(!block, 0))
        return free_unserved(pool, address);
    struct thread_cache *cache = usable_cache(pool);
    struct heap *heap = cache->heap;
    if (__builtin_expect(heap != block->heap, 0))
        return free_slowly(pool, block, address);
    if (__builtin_expect(cache_enter(cache, heap), 0))
        return free_strongly(pool, cache, block, address);
    unsigned place = block_bin(block);
    struct cache_bin *bin = cache_bin_at(cache, place);
    if (__builtin_expect(bin->room == 0 || !block_claim_at_once(block, address, BLOCK_CACHED), 0)) {
        cache_leave(cache);
        return free_in_context(pool, block, address);
    }
    /* thread_cache.h says why the number can be read without a lock, and after the claim. */
    uint64_t stamp = epoch_current(&context_of_heap(heap)->epochs);
    bool same_life = block_bin(block) == place;
    if (__builtin_expect(!same_life || counter_get(&bin->open->stamp) != stamp, 0))
        return free_inside(pool, cache, block, address, stamp);
    bool due = cache_push(cache, bin, block);
    cache_leave(cache);
    return __builtin_expect(due, 0) ? close_epoch(pool, cache) : CUDA_SUCCESS;
}

struct async_free {
    free_async *driver;
    CUstream stream;
};

static CUresult free_on_stream(struct pool *pool, CUdeviceptr address, void *argument)
{
    const struct async_free *free = argument;
    (void)pool;
    return free->driver(address, free->stream);
}

/* Frees a block that graphs own. A captured free becomes a node, which is the driver's business. A
 * part is freed here in any case, because the driver does not know it. */
static CUresult free_owned_on_stream(struct pool *pool, struct block *block, CUdeviceptr address,
                                     struct async_free *free)
{
    CUresult result;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    bool apart = pool->driver->cuStreamIsCapturing &&
                 pool->driver->cuStreamIsCapturing(free->stream, &status) == CUDA_SUCCESS &&
                 status == CU_STREAM_CAPTURE_STATUS_NONE;
    if ((apart || block_is_part(block)) && graph_memory_free(pool, block, address, &result))
        return result;
    result = heap_free_by_driver(pool, block, address, free_on_stream, free);
    graph_memory_look_again(pool, block, address);
    return result;
}

static bool is_captured(const struct pool *pool, CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return pool->driver->cuStreamIsCapturing &&
           pool->driver->cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* plain: a fence of the pool's can cover the free. */
static CUresult free_in_order(struct pool *pool, struct block *block, CUdeviceptr address,
                              struct async_free *free, bool plain)
{
    struct context *context = context_of_heap(block->heap);
    uint64_t bytes = block_bytes(block);
    bool by_driver = !plain && !block_is_part(block);
    CUresult result = by_driver ? heap_free_by_driver(pool, block, address, free_on_stream, free)
                                : heap_free(pool, block, address,
                                            &(struct free_call){false, free_on_stream, free});
    if (result == CUDA_SUCCESS)
        epoch_note_freed_in_order(context, bytes);
    if (!by_driver)
        housekeeper_look(pool, 0);
    return result;
}

CUresult pool_free_async(struct pool *pool, free_async *driver, CUdeviceptr address,
                         CUstream stream)
{
    struct block *block = block_table_find(&pool->blocks, address);
    CUresult result;
    if (!block)
        return pool_stream_free_async(pool, driver, address, stream, &result)
                   ? result
                   : driver(address, stream);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    /* Without cuCtxRecordEvent, closing an epoch would be a synchronise, and no fence can cover the
     * free. */
    bool plain = pool->driver->cuCtxRecordEvent && !captures_under_way(&pool->captures) &&
                 what_is_current(pool) == CURRENT_ALIVE && pool->driver->cuStreamIsCapturing &&
                 pool->driver->cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
                 status == CU_STREAM_CAPTURE_STATUS_NONE;
    struct async_free free = {driver, stream};
    if (graph_nodes_free(pool, block, address, stream, &result))
        return result;
    /* The captured free would be a node, and the driver cannot free a part. The answer is the
     * driver's for cuMemAllocAsync memory from before the capture, which a node may not free
     * either. */
    if (block_is_part(block) && is_captured(pool, stream))
        return CUDA_ERROR_INVALID_VALUE;
    /* The driver gives this answer for cuMemAlloc memory. It is not asked, because it has no record
     * of a part. */
    if (block_is_part(block) && what_is_current(pool) != CURRENT_ALIVE)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (block_is_owned(block))
        return free_owned_on_stream(pool, block, address, &free);
    return free_in_order(pool, block, address, &free, plain);
}
