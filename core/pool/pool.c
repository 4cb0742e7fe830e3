#define _GNU_SOURCE
#include "pool.h"

#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/cancellation.h"
#include "core/base/clock.h"
#include "core/base/mutation.h"
#include "core/base/size_class.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/surroundings.h"
#include "core/device_memory/device_memory.h"
#include "core/device_memory/release.h"
#include "core/driver/calls.h"
#include "core/figures/figures_file.h"
#include "core/reclaim/managed.h"
#include "core/reclaim/reclaim.h"
#include "core/stream_memory/mempool.h"
#include "core/stream_memory/own_event_record.h"
#include "core/stream_memory/program_events.h"
#include "core/stream_memory/stream_find.h"
#include "core/stream_memory/stream_hands.h"
#include "core/stream_memory/stream_heap.h"
#include "core/stream_memory/stream_memory.h"
#include "core/stream_memory/stream_order.h"
#include "core/stream_memory/stream_pool.h"
#include "core/stream_memory/stream_release.h"
#include "core/stream_memory/stream_table.h"

/* In the order in which they are asked. Device memory is the first one: see heap_of. */
static const struct kind *const kinds[] = {&device_memory, &stream_memory, NULL};

struct pool *pool_create(const struct driver *driver, const struct settings *settings,
                         const struct thread_functions *threads)
{
    struct pool *pool = calloc(1, sizeof *pool);
    if (!pool || !block_table_init(&pool->blocks)) {
        free(pool);
        return NULL;
    }
    pool->driver = driver;
    pool->settings = *settings;
    pool->kinds = kinds;
    pthread_mutex_init(&pool->primary_lock, NULL);
    pthread_mutex_init(&pool->fence_lock, NULL);
    pthread_mutex_init(&pool->registry.lock, NULL);
    pthread_mutex_init(&pool->pitch_lock, NULL);
    pthread_mutex_init(&pool->host_graphs.lock, NULL);
    figures_init(&pool->figures);
    pool->registry.set_generation = 1;
    counter_set(&pool->lives, 1);
    thread_caches_prepare(pool, threads);
    /* Relaxed: only that they differ matters. */
    static _Atomic uint64_t pools;
    uint64_t number = 1 + atomic_fetch_add_explicit(&pools, 1, memory_order_relaxed);
    atomic_init(&pool->registry.generation, number * REGISTRY_POOL);
    /* Switched off, the pool does what it does while captures go on: the driver answers, and the
     * bytes are counted. */
    if (!settings->device.enabled)
        captures_add(pool, 1);
    pool->captures.idle = atomic_load_explicit(&pool->captures.count, memory_order_relaxed);
    bool started = true;
    for (const struct kind *const *kind = kinds; *kind && started; kind++)
        started = !(*kind)->starts || (*kind)->starts(pool);
    if (started)
        return pool;
    free(pool);
    return NULL;
}

/* A wait for a barrier is long, and told in the report, after so many nanoseconds. */
#define LONG_WAIT_NANOSECONDS (UINT64_C(1) * 1000 * 1000 * 1000)

void pool_note_launch(struct pool *pool)
{
    launches_note(pool);
}

/* ---- device memory ---- */

/* The current context where the pool may serve it. */
static struct context *served_context(struct pool *pool)
{
    bool green;
    struct context *context = context_current(pool, &green);
    /* Relaxed: see where it is set. */
    if (!context || (atomic_load_explicit(&context->unusable, memory_order_relaxed) &&
                     !MUTATED(hit_after_lasting_error)))
        return NULL;
    return context;
}

/* Where the driver answers. What the pool cached before it stepped aside still makes room. */
static CUresult allocate_unserved(struct pool *pool, CUdeviceptr *address, size_t bytes)
{
    struct reclaim progress = {.bytes = bytes, .wanted = bytes};
    CUresult result = pool->driver->cuMemAlloc_v2(address, bytes);
    while (result == CUDA_ERROR_OUT_OF_MEMORY && reclaim_for_retry(pool, NULL, &progress))
        result = pool->driver->cuMemAlloc_v2(address, bytes);
    if (result == CUDA_SUCCESS && address)
        heap_forget_address(pool, *address);
    return result;
}

/* A rule of the slow path that a test build breaks is broken by taking it. */
static inline bool must_go_slowly(void)
{
    return MUTATED(fence_in_allocation) || MUTATED(stamped_by_current_context) ||
           MUTATED(hit_after_lasting_error) || MUTATED(kept_without_fences);
}

/* The calling thread's cache in its current context, where it may use it; else one without a heap,
 * and the slow path decides: so it does without a current context, and with one that has ended.
 * in_capture: also while captures go on. */
static inline struct thread_cache *usable_cache(const struct pool *pool, bool in_capture)
{
    const struct thread_state *thread = &thread_state;
    CUcontext handle;
    if (pool->driver->cuCtxGetCurrent(&handle) != CUDA_SUCCESS || thread->handle != handle ||
        must_go_slowly())
        return &no_thread_cache;
    uint64_t generation =
        in_capture ? registry_generation(&pool->registry)
                   : atomic_load_explicit(&pool->registry.generation, memory_order_acquire);
    return thread->generation == generation ? thread->kept : &no_thread_cache;
}

__attribute__((noinline)) static CUresult allocate_slowly(struct pool *pool, CUdeviceptr *address,
                                                          size_t bytes)
{
    bool sane = address && (bytes || MUTATED(zero_bytes_served));
    struct context *context = sane ? served_context(pool) : NULL;
    if (!context)
        return allocate_unserved(pool, address, bytes);
    if (captures_are_going_on(&pool->captures) && !MUTATED(hit_in_capture)) {
        /* Relaxed, like every counter. Switched off, the pool does as if captures went on. */
        atomic_fetch_add_explicit(&heap_of(context)->counters->captured,
                                  pool->settings.device.enabled, memory_order_relaxed);
        return heap_allocate_unkept(pool, context, address, bytes);
    }
    return heap_allocate(pool, context, address, bytes);
}

/* The same for a thread whose cache has shown its context, but not the block. */
__attribute__((noinline)) static CUresult allocate_in_context(struct pool *pool,
                                                              struct thread_cache *cache,
                                                              CUdeviceptr *address, size_t bytes)
{
    struct context *context = context_of_heap(cache->heap);
    /* Relaxed: see where it is set. */
    if (!bytes || atomic_load_explicit(&context->unusable, memory_order_relaxed))
        return allocate_slowly(pool, address, bytes);
    return heap_allocate(pool, context, address, bytes);
}

/* Not inside: others may have taken the blocks meanwhile. */
static CUresult allocate_what_is_clean(struct pool *pool, struct thread_cache *cache,
                                       struct cache_bin *bin, CUdeviceptr *address, size_t bytes)
{
    bool closed = cache_enter(cache, cache->heap);
    struct block *block = NULL;
    if (!closed || thread_cache_enter_strongly(cache))
        block = bin->clean ? bin->clean : thread_cache_turn_clean(cache, bin);
    if (block)
        *address = cache_hand_out(cache, bin, block, bytes);
    cache_leave(cache);
    return block ? CUDA_SUCCESS : allocate_in_context(pool, cache, address, bytes);
}

/* Inside a cache that is closed, or has nothing that is known to be clean. */
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
    if (block)
        *address = cache_hand_out(cache, bin, block, bytes);
    cache_leave(cache);
    if (block)
        return CUDA_SUCCESS;
    bool over =
        pending.stamp && heap_await_fence(pool, context_of_heap(cache->heap), cache, &pending);
    if (thread_state.waited_ns)
        heap_take_wait(bin);
    if (over)
        return allocate_what_is_clean(pool, cache, bin, address, bytes);
    return allocate_in_context(pool, cache, address, bytes);
}

CUresult pool_allocate(struct pool *pool, CUdeviceptr *address, size_t bytes)
{
    struct thread_cache *cache = usable_cache(pool, MUTATED(hit_in_capture));
    struct heap *heap = cache->heap;
    if (__builtin_expect(!heap || !address, 0))
        return allocate_slowly(pool, address, bytes);
    struct cache_bin *bin = cache_find_bin(cache, bytes);
    if (__builtin_expect(!bin, 0))
        return allocate_in_context(pool, cache, address, bytes);
    bool closed = cache_enter(cache, heap);
    struct block *block = closed ? NULL : bin->clean;
    if (__builtin_expect(!block, 0))
        return allocate_inside(pool, cache, bin, closed, address, bytes);
    *address = cache_hand_out(cache, bin, block, bytes);
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

/* What rows of this width take if the pitch is a multiple of 512, as it is everywhere today. False
 * where that is past 64 bits. */
static bool estimate_pitched(const struct pitch *wanted, size_t height, size_t *bytes)
{
    return !__builtin_add_overflow(wanted->width, 511, bytes) &&
           !__builtin_mul_overflow(*bytes / 512 * 512, height, bytes);
}

/* The driver's own call, with everything that may help when it is out of memory. */
static CUresult ask_for_pitch(struct pool *pool, allocate_pitch *driver, struct context *context,
                              CUdeviceptr *address, struct pitch *wanted, size_t height,
                              size_t estimate)
{
    struct reclaim progress = {.bytes = estimate, .wanted = estimate};
    CUresult result = driver(address, &wanted->pitch, wanted->width, height, wanted->element_bytes);
    while (result == CUDA_ERROR_OUT_OF_MEMORY && estimate <= context->device->total_bytes &&
           reclaim_for_retry(pool, context->device, &progress))
        result = driver(address, &wanted->pitch, wanted->width, height, wanted->element_bytes);
    return result;
}

/* The same inside the hard limit, and with the memory made known to the pool. */
static CUresult learn_pitch(struct pool *pool, allocate_pitch *driver, struct context *context,
                            CUdeviceptr *address, struct pitch *wanted, size_t height)
{
    size_t estimate;
    /* What no device can hold is refused by the driver, which looks at all the arguments first. */
    if (!estimate_pitched(wanted, height, &estimate) || estimate > context->device->total_bytes)
        return driver(address, &wanted->pitch, wanted->width, height, wanted->element_bytes);
    if (!reserve_take(pool, context, estimate, false))
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t generation = context_generation(context);
    CUresult result = ask_for_pitch(pool, driver, context, address, wanted, height, estimate);
    if (result != CUDA_SUCCESS) {
        atomic_fetch_sub_explicit(&context->device->reserved_bytes, estimate, memory_order_relaxed);
        return result;
    }
    remember_pitch(pool, wanted);
    heap_adopt(pool, context, generation, *address, wanted->pitch * height, estimate);
    return result;
}

static CUresult allocate_pitch_unserved(struct pool *pool, allocate_pitch *driver,
                                        CUdeviceptr *address, size_t *pitch, size_t width,
                                        size_t height, unsigned int element_bytes)
{
    struct reclaim progress = {0};
    CUresult result = driver(address, pitch, width, height, element_bytes);
    while (result == CUDA_ERROR_OUT_OF_MEMORY && reclaim_for_retry(pool, NULL, &progress))
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
    CUresult result = learn_pitch(pool, driver, context, address, &wanted, height);
    if (result == CUDA_SUCCESS)
        *pitch = wanted.pitch;
    return result;
}

/* Where contexts have ended, the current one may be among them. */
__attribute__((noinline)) static bool is_alive(struct pool *pool)
{
    CUdevice device;
    bool green;
    return context_current(pool, &green) || pool->driver->cuCtxGetDevice(&device) == CUDA_SUCCESS;
}

/* What is current in the calling thread. */
enum currency {
    CURRENT_NONE,    /* the driver frees all the same */
    CURRENT_ALIVE,   /* or so it seems: one that another thread is just ending counts as either */
    CURRENT_UNKNOWN, /* one that has ended, or in a host function: the driver frees nothing */
};

static inline enum currency ask_what_is_current(struct pool *pool)
{
    CUcontext handle = NULL;
    if (pool->driver->cuCtxGetCurrent(&handle) != CUDA_SUCCESS)
        return CURRENT_UNKNOWN;
    if (!handle)
        return CURRENT_NONE;
    /* Relaxed: see CURRENT_ALIVE. */
    bool alive = __builtin_expect(!registry_has_forgotten(&pool->registry), 1) || is_alive(pool) ||
                 MUTATED(freed_with_ended_context);
    return alive ? CURRENT_ALIVE : CURRENT_UNKNOWN;
}

static CUresult free_plainly(struct pool *pool, CUdeviceptr address, void *unused)
{
    (void)unused;
    return pool->driver->cuMemFree_v2(address);
}

/* What is not the pool's. Where the context goes on without the pool, what is still pending goes
 * the same way, inside this free. */
__attribute__((noinline)) static CUresult free_unserved(struct pool *pool, CUdeviceptr address)
{
    CUresult result;
    if (ask_what_is_current(pool) != CURRENT_UNKNOWN && stream_pool_free(pool, address, &result))
        return result;
    struct managed_memory managed = managed_find(pool, address);
    result = pool->driver->cuMemFree_v2(address);
    if (result == CUDA_SUCCESS)
        managed_freed(&managed);
    bool green;
    struct context *context = address ? context_current(pool, &green) : NULL;
    if (context && atomic_load_explicit(&context->unusable, memory_order_relaxed))
        heap_free_pending(pool, context);
    return result;
}

static const struct free_call plain_free = {true, free_plainly, NULL};

/* A thread whose cache is the block's heap's is in the block's context. */
__attribute__((noinline)) static CUresult free_in_context(struct pool *pool, struct block *block,
                                                          CUdeviceptr address)
{
    return heap_free(pool, block, address, &plain_free);
}

/* As from a thread where the block's context is current, since the calls that a free makes want
 * one. A context that is just ending cannot be entered, and its memory is the driver's. */
static CUresult free_without_context(struct pool *pool, struct block *block, CUdeviceptr address)
{
    bool pushed;
    if (MUTATED(freed_past_the_record))
        return pool->driver->cuMemFree_v2(address);
    if (!context_push(pool, context_of_heap(block->heap), &pushed))
        return heap_free_by_driver(pool, block, address, free_plainly, NULL);
    CUresult result = heap_free(pool, block, address, &plain_free);
    context_pop(pool, pushed);
    return result;
}

__attribute__((noinline)) static CUresult free_slowly(struct pool *pool, struct block *block,
                                                      CUdeviceptr address)
{
    bool green;
    /* A thread that only frees has a cache, too. */
    if (!thread_state.handle)
        context_current(pool, &green);
    switch (ask_what_is_current(pool)) {
    case CURRENT_ALIVE:
        return heap_free(pool, block, address, &plain_free);
    case CURRENT_NONE:
        return free_without_context(pool, block, address);
    default:
        return pool->driver->cuMemFree_v2(address);
    }
}

__attribute__((noinline)) static CUresult close_epoch(struct pool *pool, struct thread_cache *cache)
{
    if (epoch_is_closed(&context_of_heap(cache->heap)->epochs, counter_get(&cache->stamp)))
        return CUDA_SUCCESS;
    return heap_close_epoch(pool, context_of_heap(cache->heap));
}

/* Inside a cache, with a block that this thread has claimed. */
__attribute__((noinline)) static CUresult free_inside(struct pool *pool, struct thread_cache *cache,
                                                      struct block *block, CUdeviceptr address,
                                                      uint64_t stamp)
{
    switch (thread_cache_give(cache, block, address, stamp)) {
    case GIVEN:
        return CUDA_SUCCESS;
    case GIVEN_FENCE_DUE:
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
    if (thread_cache_enter_strongly(cache) && block_claim_at_once(block, address))
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
    struct thread_cache *cache = usable_cache(pool, MUTATED(free_in_capture_kept));
    struct heap *heap = cache->heap;
    if (__builtin_expect(heap != block->heap, 0))
        return free_slowly(pool, block, address);
    if (__builtin_expect(cache_enter(cache, heap), 0))
        return free_strongly(pool, cache, block, address);
    unsigned place = block_bin(block);
    struct cache_bin *bin = cache_bin_at(cache, place);
    if (__builtin_expect(bin->room == 0 || !block_claim_at_once(block, address), 0)) {
        cache_leave(cache);
        return free_in_context(pool, block, address);
    }
    /* Why it can be read without a lock, and after the claim, is told in thread_cache.h. */
    uint64_t stamp = epoch_current(&context_of_heap(heap)->epochs);
    if (MUTATED(cached_stamp_too_old) && stamp > 1)
        stamp--;
    bool same_life = block_bin(block) == place;
    if (__builtin_expect(!same_life || counter_get(&bin->open->stamp) != stamp, 0))
        return free_inside(pool, cache, block, address, stamp);
    bool due = cache_put(cache, bin, block);
    cache_leave(cache);
    return __builtin_expect(due, 0) ? close_epoch(pool, cache) : CUDA_SUCCESS;
}

void pool_forget(struct pool *pool)
{
    atomic_store_explicit(&pool->forgotten, true, memory_order_relaxed);
    figures_forget(&pool->figures);
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

CUresult pool_free_async(struct pool *pool, free_async *driver, CUdeviceptr address,
                         CUstream stream)
{
    struct block *block = block_table_find(&pool->blocks, address);
    CUresult result;
    if (!block && stream_pool_free_async(pool, driver, address, stream, &result))
        return result;
    if (!block)
        return driver(address, stream);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    /* No fence can stand for it where closing an epoch would be a synchronise. */
    bool plain = pool->driver->cuCtxRecordEvent &&
                 (!captures_are_going_on(&pool->captures) || MUTATED(free_in_capture_kept)) &&
                 ask_what_is_current(pool) == CURRENT_ALIVE && pool->driver->cuStreamIsCapturing &&
                 pool->driver->cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
                 status == CU_STREAM_CAPTURE_STATUS_NONE;
    struct async_free free = {driver, stream};
    if (plain)
        return heap_free(
            pool, block, address,
            &(struct free_call){MUTATED(stream_free_is_waited_for), free_on_stream, &free});
    return heap_free_by_driver(pool, block, address, free_on_stream, &free);
}

static size_t at_most(uint64_t value, uint64_t limit)
{
    return (size_t)(value < limit ? value : limit);
}

/* What giving all free blocks of a device back would make free there: the driver has memory in
 * pages, and blocks of less than one share theirs, so that one of them in the program's hands keeps
 * it. Blocks change hands meanwhile: the sum is of no one moment, as that of any process on the
 * device.
 */
struct free_pages {
    const struct device *device;
    uint64_t bytes;         /* of whole pages before the one that is looked at */
    CUdeviceptr page;       /* that one */
    bool has_free;          /* a block that begins there is free */
    CUdeviceptr live_until; /* the end of the last live block */
};

static void leave_page(struct free_pages *free)
{
    bool whole = free->live_until <= free->page || MUTATED(parts_of_pages_free);
    if (free->has_free && whole)
        free->bytes += SIZE_CLASS_PAGE;
    free->has_free = false;
}

static bool is_free(const struct block *block)
{
    enum block_state state = block_state(block);
    return state == BLOCK_CACHED || state == BLOCK_PENDING || state == BLOCK_CLEAN;
}

static void look_at_page(CUdeviceptr address, const struct block *block, void *argument)
{
    struct free_pages *free = argument;
    uint64_t bytes = block_bytes(block);
    CUdeviceptr page = address / SIZE_CLASS_PAGE * SIZE_CLASS_PAGE;
    if (context_of_heap(block->heap)->device != free->device)
        return;
    if (page != free->page) {
        leave_page(free);
        free->page = page;
    }
    if (!is_free(block))
        free->live_until = address + bytes;
    else if (bytes < SIZE_CLASS_PAGE)
        free->has_free = true;
    else
        free->bytes += size_class_up(bytes, SIZE_CLASS_PAGE);
}

static uint64_t free_device_bytes(struct pool *pool, struct device *device)
{
    struct free_pages free = {.device = device};
    struct kept_bytes of_heaps = {0, 0, 0}, all = kept_bytes(pool, device);
    device_memory.add_kept(pool, device, &of_heaps);
    if (of_heaps.cached + of_heaps.pending != 0)
        block_table_visit(&pool->blocks, look_at_page, &free);
    leave_page(&free);
    return free.bytes + all.cached - of_heaps.cached + all.pending - of_heaps.pending +
           bytes_the_driver_keeps(pool, device);
}

CUresult pool_memory_info(struct pool *pool, size_t *free, size_t *total)
{
    CUresult result = pool->driver->cuMemGetInfo_v2(free, total);
    bool green;
    struct context *context = result == CUDA_SUCCESS ? context_current(pool, &green) : NULL;
    if (!context || !free || !total)
        return result;
    struct device *device = context->device;
    struct kept_bytes bytes = kept_bytes(pool, device);
    if (!MUTATED(cache_not_free))
        *free = at_most(*free + free_device_bytes(pool, device), *total);
    if (device->limit != UINT64_MAX)
        *free = at_most(*free, device->limit > bytes.live ? device->limit - bytes.live : 0);
    return result;
}

bool pool_let_go(struct pool *pool, CUdeviceptr address)
{
    bool gone = true;
    for (const struct kind *const *kind = pool->kinds; *kind && gone; kind++)
        gone = !(*kind)->let_go || (*kind)->let_go(pool, address);
    return gone;
}

void pool_forget_address(struct pool *pool, CUdeviceptr address)
{
    TELL_KINDS(pool, forget_address, pool, address);
}

/* ---- pointers ---- */

/* False where the pointer is not inside this block, which another thread may just be giving back.
 */
static bool ask_block(struct block *block, CUdeviceptr pointer, struct pointer_answer *answer)
{
    heap_lock(block->heap);
    CUdeviceptr base = block_address(block);
    bool around = block_state(block) != BLOCK_UNUSED && pointer - base < block->bytes;
    if (around) {
        bool inside =
            block_is_live_at(block, base) && pointer - base < counter_get(&block->requested);
        answer->kind = inside                         ? POINTER_LIVE
                       : MUTATED(freed_pointer_known) ? POINTER_FOREIGN
                                                      : POINTER_HIDDEN;
        answer->base = base;
        answer->block_bytes = block->bytes;
        answer->bytes = MUTATED(size_of_block_told) ? block->bytes : counter_get(&block->requested);
    }
    heap_unlock(block->heap);
    return around;
}

struct pointer_answer pool_ask_pointer(struct pool *pool, CUdeviceptr pointer)
{
    struct pointer_answer answer = {POINTER_FOREIGN, 0, 0, 0};
    struct block *block = block_table_find_around(&pool->blocks, pointer);
    if (!block || !ask_block(block, pointer, &answer))
        stream_pool_ask_pointer(pool, pointer, &answer);
    return answer;
}

/* The driver counts its buffers from 1 up, and never gets so far: so no number of ours is one of
 * the driver's, and stream-ordered memory, whose numbers are its generations, has others than
 * these. */
#define OUR_BUFFERS    (UINT64_C(1) << 63)
#define STREAM_BUFFERS (UINT64_C(1) << 62)

uint64_t pool_buffer_id(struct pool *pool, const struct pointer_answer *answer)
{
    struct block *block = block_table_find(&pool->blocks, answer->base);
    uint64_t number;
    if (!block) {
        number = pool_generation(pool, answer->base);
        return number ? OUR_BUFFERS | STREAM_BUFFERS | number : 0;
    }
    heap_lock(block->heap);
    number = block_name(block, answer->base, &pool->lives);
    heap_unlock(block->heap);
    return number ? OUR_BUFFERS | number : 0;
}

/* Releases and retakes the lock. Others than the context's own work are
 * about to reach memory that a barrier orders, and the device cannot make them wait. So this wait
 * has no other end than the work's; but a process in which it is long raises no more barriers. */
static void wait_for_barrier(struct pool *pool, struct context *context, uint64_t behind)
{
    lock_must_be_held(&context->lock);
    if (epoch_wait_until(pool, context, behind, monotonic_now() + LONG_WAIT_NANOSECONDS))
        return;
    atomic_store_explicit(&pool->memory_is_pinned, true, memory_order_relaxed);
    counter_add(&heap_of(context)->counters->vain_waits, 1);
    epoch_wait_until(pool, context, behind, UINT64_MAX);
}

void pool_share(struct pool *pool, CUdeviceptr pointer)
{
    no_lock_may_be_held();
    struct pointer_answer answer = pool_ask_pointer(pool, pointer);
    struct block *block =
        answer.kind == POINTER_LIVE ? block_table_find(&pool->blocks, answer.base) : NULL;
    if (!block) {
        if (answer.kind == POINTER_LIVE)
            stream_pool_share(pool, answer.base);
        return;
    }
    struct heap *heap = block->heap;
    struct context *context = context_of_heap(heap);
    uint64_t behind = 0;
    heap_lock(heap);
    if (MUTATED(shared_not_marked) || block_share(block, answer.base))
        behind = MUTATED(shared_behind_barrier) ? 0 : counter_get(&block->epoch);
    if (behind > epoch_clean(&context->epochs))
        wait_for_barrier(pool, context, behind);
    heap_unlock(heap);
}

/* ---- contexts ---- */

void pool_context_created(struct pool *pool, CUcontext handle)
{
    no_lock_may_be_held();
    context_register_current(pool, handle);
}

void pool_primary_retained(struct pool *pool, CUcontext handle, CUdevice device)
{
    struct context *context = context_register(pool, handle, device, true);
    if (context)
        atomic_fetch_add_explicit(&context->device->retains, 1, memory_order_relaxed);
}

void pool_green_context_created(struct pool *pool, CUgreenCtx green, CUdevice device)
{
    context_note_green(pool, green, device);
}

void pool_green_context_converted(struct pool *pool, CUcontext handle, CUgreenCtx green)
{
    context_alias(pool, handle, green);
}

void pool_green_context_destroyed(struct pool *pool, CUgreenCtx green)
{
    context_drop_alias(pool, green);
}

/* The plain frees would have waited for other contexts' copies of what is pending, which the end of
 * the context does not: the driver's own free does. perhaps: the context may live on, and then the
 * program waits for none of the work that it has submitted since. */
static void end_frees(struct pool *pool, struct context *context, bool perhaps)
{
    bool pushed;
    if (!context || !atomic_load_explicit(&pool->several_contexts, memory_order_acquire) ||
        !context_push(pool, context, &pushed))
        return;
    /* Captures forbid the driver's frees, but not waiting for what was freed before them. */
    if (!captures_are_going_on(&pool->captures) && !perhaps)
        heap_free_pending(pool, context);
    else if (!MUTATED(last_release_in_capture))
        release_wait_for_pending(pool, context, monotonic_now() + LAST_RESORT_NANOSECONDS);
    context_pop(pool, pushed);
}

struct ending pool_context_ending(struct pool *pool, CUcontext handle)
{
    no_lock_may_be_held();
    if (!handle)
        pool->driver->cuCtxGetCurrent(&handle);
    struct ending ending = {.context = handle ? context_find(pool, handle) : NULL,
                            .cancellation = cancellation_off()};
    end_frees(pool, ending.context, false);
    ending.generation = context_end_begin(pool, ending.context, true);
    return ending;
}

/* The primary lock stays with the caller. */
static struct ending find_primary(struct pool *pool, CUdevice device)
{
    int cancellation = cancellation_off();
    lock_take(&pool->primary_lock, LOCK_PRIMARY);
    return (struct ending){.context = context_find_primary(pool, device),
                           .primary = true,
                           .cancellation = cancellation};
}

/* As far as retains were seen; green contexts retain unseen. If there are others, what is pending
 * is waited for a little later than its frees would have waited without the pool. */
static bool retains_are(const struct ending *ending, uint32_t most)
{
    return ending->context &&
           atomic_load_explicit(&ending->context->device->retains, memory_order_relaxed) <= most;
}

struct ending pool_primary_releasing(struct pool *pool, CUdevice device)
{
    no_lock_may_be_held();
    struct ending ending = find_primary(pool, device);
    ending.release = true;
    bool last = retains_are(&ending, 1);
    if (last && !MUTATED(last_release_ends_no_frees))
        end_frees(pool, ending.context, context_has_green(pool, ending.context));
    ending.generation = context_end_begin(pool, ending.context, last);
    return ending;
}

struct ending pool_primary_resetting(struct pool *pool, CUdevice device)
{
    no_lock_may_be_held();
    struct ending ending = find_primary(pool, device);
    end_frees(pool, ending.context, false);
    ending.generation = context_end_begin(pool, ending.context, true);
    return ending;
}

struct ending pool_green_ending(struct pool *pool, CUgreenCtx green)
{
    no_lock_may_be_held();
    struct ending ending = find_primary(pool, context_green_device(pool, green));
    ending.generation = context_end_begin(pool, ending.context, retains_are(&ending, 0));
    return ending;
}

static void count_release(struct device *device, const struct ending *ending, bool died)
{
    lock_of_rank_must_be_held(LOCK_PRIMARY);
    uint32_t retains = atomic_load_explicit(&device->retains, memory_order_relaxed);
    if (died)
        atomic_store_explicit(&device->retains, 0, memory_order_relaxed);
    else if (ending->release && retains)
        atomic_fetch_sub_explicit(&device->retains, 1, memory_order_relaxed);
}

void pool_context_ended(struct pool *pool, struct ending ending, enum context_fate fate)
{
    bool died = fate == CONTEXT_DIED;
    if (fate == CONTEXT_PRIMARY_MAY_HAVE_DIED && ending.context)
        died = !context_primary_lives_on(pool, ending.context) && !MUTATED(primary_release_missed);
    if (ending.primary && ending.context && fate != CONTEXT_LIVES)
        count_release(ending.context->device, &ending, died);
    context_end_finish(pool, ending.context, ending.generation, died);
    if (ending.primary)
        lock_give(&pool->primary_lock);
    cancellation_restore(ending.cancellation);
}

static void note_barrier(struct pool *pool, struct context *context)
{
    if (!context || MUTATED(programs_barrier_missed))
        return;
    /* Relaxed: a thread that gives memory back meanwhile does so before the barrier or after it. */
    if (streams_of(pool))
        streams_are_barred(pool, context);
    else
        atomic_store_explicit(&context->barred, true, memory_order_relaxed);
}

/* A nested call makes no context known: the caller may hold the locks for that. What is not known
 * has no memory of ours that was used before the barrier. */
static struct context *current_behind_barrier(struct pool *pool)
{
    bool green;
    CUcontext current = NULL;
    if (!driver_calls.depth)
        return context_current(pool, &green);
    pool->driver->cuCtxGetCurrent(&current);
    return current ? context_named(pool, current) : NULL;
}

void pool_barrier_coming(struct pool *pool, CUcontext handle)
{
    note_barrier(pool, handle ? context_named(pool, handle) : current_behind_barrier(pool));
}

/* Only the green context's own streams wait, but the pool does not tell them from the others. */
void pool_green_barrier_coming(struct pool *pool, CUgreenCtx green)
{
    if (MUTATED(green_barrier_missed))
        return;
    note_barrier(pool, context_find_primary(pool, context_green_device(pool, green)));
}

struct synchronising pool_synchronise_begin(struct pool *pool, const CUcontext *handle)
{
    no_lock_may_be_held();
    bool green = false;
    struct synchronising state = {NULL, false, 0, NULL};
    state.context = handle ? context_find(pool, *handle) : context_current(pool, &green);
    /* A green context's synchronise is not the primary's. */
    bool whole = state.context && (!green || MUTATED(green_synchronise_counts));
    if (whole && pool_follows_streams(pool) && !program_captures(&pool->captures))
        state.streams = order_take_context(pool, state.context);
    state.cleans = whole && !captures_are_going_on(&pool->captures);
    if (state.cleans)
        state.epoch = epoch_synchronise_begin(pool, state.context);
    return state;
}

void pool_synchronise_end(struct pool *pool, struct synchronising state, CUresult result)
{
    if (state.streams && result == CUDA_SUCCESS)
        order_context_is_over(state.streams);
    order_free_marks(state.streams);
    if (state.cleans)
        epoch_synchronise_end(pool, state.context, state.epoch, result);
    else if (state.context && !MUTATED(error_found_in_capture_dropped))
        epoch_note_error(state.context, result);
}

/* ---- captures ---- */

bool pool_captures_are_going_on(struct pool *pool)
{
    return captures_are_going_on(&pool->captures);
}

void pool_capture_about_to_begin(struct pool *pool)
{
    no_lock_may_be_held();
    if (MUTATED(no_fence_before_capture))
        return;
    for (struct context *c = context_next(pool, NULL, NULL); c; c = context_next(pool, c, NULL))
        epoch_fence_the_rest(pool, c);
    if (streams_of(pool))
        own_events_capture_comes(pool);
}

void pool_capture_has_come(struct pool *pool)
{
    if (streams_of(pool) && !MUTATED(no_fence_before_capture))
        own_events_capture_has_come(pool);
}

void pool_captures_lock(struct pool *pool)
{
    captures_lock(pool);
}

void pool_captures_unlock(struct pool *pool)
{
    captures_unlock(pool);
}

void pool_capture_began(struct pool *pool, CUstream stream, bool per_thread)
{
    captures_began(pool, stream, per_thread);
}

void pool_capture_perhaps_ended(struct pool *pool, CUstream stream, bool per_thread)
{
    captures_perhaps_ended(pool, stream, per_thread);
}

void pool_capture_stream_destroyed(struct pool *pool, CUstream stream)
{
    captures_stream_destroyed(pool, stream);
}

/* ---- out of memory, caches ---- */

bool pool_make_room(struct pool *pool, struct reclaim *progress)
{
    no_lock_may_be_held();
    return reclaim_for_retry(pool, NULL, progress);
}

uint64_t pool_trim(struct pool *pool)
{
    no_lock_may_be_held();
    uint64_t released = 0;
    for (const struct kind *const *kind = pool->kinds; *kind; kind++)
        released += (*kind)->trim ? (*kind)->trim(pool) : 0;
    return released;
}

void pool_show_figures(struct pool *pool, void (*complain)(const char *line))
{
    figures_show(&pool->figures, &pool->settings, complain);
}

bool pool_figures_are_taken(struct pool *pool)
{
    const struct figures_file *file = &pool->figures.file;
    return figures_header(&pool->figures) && file->path[0] != '\0' && !figures_file_is_there(file);
}

bool pool_figures_are_lost(struct pool *pool)
{
    figures_check(&pool->figures);
    return figures_are_lost(&pool->figures);
}

void pool_end_figures(struct pool *pool, bool stay)
{
    figures_end(&pool->figures, stay);
}

struct kept_bytes pool_device_bytes(struct pool *pool, CUdevice ordinal)
{
    struct device *device = registry_devices(&pool->registry);
    while (device && device->ordinal != ordinal)
        device = device->next;
    return device ? kept_bytes(pool, device) : (struct kept_bytes){0, 0, 0};
}
