#include "heap.h"

#include <stdlib.h>
#include <string.h>

#include "mutation.h"
#include "pool_state.h"
#include "release.h"

/* A fence serves the frees before it as well, so not every free records one: at most so many frees
 * go without, or device->fence_bytes. A block of so many bytes has a fence of its own. Twice as
 * much of either while one thread uses the heap: no other waits for what it has freed. */
#define FENCE_EVERY_FREES 16u

/* ---- buckets; the heap lock is held from here down to the ladder ---- */

static uint32_t first_slot(uint64_t bytes, uint32_t slots)
{
    /* Fibonacci hashing: the sizes are multiples of large powers of two. */
    return (uint32_t)((bytes * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (slots - 1);
}

/* The place of this size, which may be empty. */
static _Atomic(struct bucket *) *find_place(struct bucket_table *table, uint64_t bytes)
{
    uint32_t i = first_slot(bytes, table->slots);
    struct bucket *bucket;
    while ((bucket = atomic_load_explicit(&table->buckets[i], memory_order_relaxed)) != NULL &&
           bucket->bytes != bytes)
        i = (i + 1) & (table->slots - 1);
    return &table->buckets[i];
}

static struct bucket_table *make_table(uint32_t slots, struct bucket_table *previous)
{
    struct bucket_table *table = calloc(1, sizeof *table + slots * sizeof table->buckets[0]);
    if (table) {
        table->slots = slots;
        table->previous = previous;
    }
    return table;
}

/* The old table stays: the report may be reading it. */
static bool grow_table(struct heap *heap)
{
    struct bucket_table *old = atomic_load_explicit(&heap->table, memory_order_relaxed);
    struct bucket_table *table = make_table(2 * old->slots, old);
    if (!table)
        return false;
    for (uint32_t i = 0; i < old->slots; i++) {
        struct bucket *bucket = atomic_load_explicit(&old->buckets[i], memory_order_relaxed);
        if (bucket)
            atomic_store_explicit(find_place(table, bucket->bytes), bucket, memory_order_relaxed);
    }
    /* Pairs with the acquire load in heap_visit_buckets. */
    atomic_store_explicit(&heap->table, table, memory_order_release);
    return true;
}

static struct bucket_table *table_of(struct heap *heap)
{
    return atomic_load_explicit(&heap->table, memory_order_relaxed);
}

static bool bucket_init(struct heap *heap, struct bucket *bucket, uint64_t bytes)
{
    bucket->bytes = bytes;
    bucket->counters = figures_bucket(heap->figures, KIND_DEVICE, heap->id, heap->device, bytes);
    return bucket->counters != NULL;
}

static struct bucket *add_bucket(struct heap *heap, uint64_t bytes)
{
    if (heap->bucket_count >= HEAP_BUCKETS_MAX)
        return NULL;
    if (2 * heap->bucket_count >= table_of(heap)->slots && !grow_table(heap))
        return NULL;
    struct bucket *bucket = calloc(1, sizeof *bucket);
    if (!bucket || !bucket_init(heap, bucket, bytes)) {
        free(bucket);
        return NULL;
    }
    /* Pairs with the acquire load in heap_visit_buckets. */
    atomic_store_explicit(find_place(table_of(heap), bytes), bucket, memory_order_release);
    heap->bucket_count++;
    return bucket;
}

bool heap_init(struct heap *heap, struct figures *figures, uint64_t id, CUdevice device)
{
    pthread_mutex_init(&heap->lock, NULL);
    heap->alone = HEAP_ALONE;
    heap->figures = figures;
    heap->id = id;
    heap->device = device;
    heap->counters = figures_heap(figures, id, device);
    struct bucket_table *table = heap->counters ? make_table(64, NULL) : NULL;
    atomic_init(&heap->table, table);
    return table != NULL && bucket_init(heap, &heap->unkept, 0);
}

/* The bucket of this block size; the one of blocks that are not kept where it can't be made. */
static struct bucket *get_bucket(struct heap *heap, uint64_t bytes)
{
    struct bucket *bucket =
        atomic_load_explicit(find_place(table_of(heap), bytes), memory_order_relaxed);
    if (!bucket)
        bucket = add_bucket(heap, bytes);
    return bucket ? bucket : &heap->unkept;
}

void heap_visit_buckets(struct heap *heap, void (*visit)(struct bucket *, void *), void *argument)
{
    struct bucket_table *table = atomic_load_explicit(&heap->table, memory_order_acquire);
    for (uint32_t i = 0; i < table->slots; i++) {
        struct bucket *bucket = atomic_load_explicit(&table->buckets[i], memory_order_acquire);
        if (bucket)
            visit(bucket, argument);
    }
    visit(&heap->unkept, argument);
}

/* ---- blocks coming and going ---- */

static inline void note_user(struct pool *pool, struct heap *heap)
{
    uint64_t self = thread_id(pool);
    if (__builtin_expect(heap->user != self, 0)) {
        /* The very first user is alone from the start. */
        heap->alone = heap->user ? 0 : HEAP_ALONE;
        heap->user = self;
    } else if (__builtin_expect(heap->alone < HEAP_ALONE, 0)) {
        heap->alone++;
    }
}

/* The thread is known: note_user has been called. */
static uint8_t slot_of_this_thread(void)
{
    return (uint8_t)(thread_state.id % HEAP_SLOTS);
}

static void count_pending(struct heap *heap, struct block *block)
{
    uint64_t *pending = &heap->pending_of[block->slot];
    heap->slots_pending += *pending == 0;
    *pending += block->bytes;
}

static void count_no_longer_pending(struct heap *heap, struct block *block)
{
    uint64_t *pending = &heap->pending_of[block->slot];
    *pending -= block->bytes;
    heap->slots_pending -= *pending == 0;
}

static inline void take_pending(struct heap *heap, struct block *block)
{
    block_list_remove(&block->bucket->pending, block, LINK_BUCKET);
    block_list_remove(&heap->pending, block, LINK_HEAP);
    counter_subtract(&heap->pending_bytes, block->bytes);
    count_no_longer_pending(heap, block);
}

static inline void take_clean(struct heap *heap, struct block *block)
{
    block_list_remove(&block->bucket->clean, block, LINK_BUCKET);
    counter_subtract(&block->bucket->counters->clean_bytes, block->bytes);
    counter_subtract(&heap->clean_bytes, block->bytes);
}

__attribute__((always_inline)) static inline void detach_free(struct heap *heap,
                                                              struct block *block)
{
    if (block->state == BLOCK_CLEAN)
        take_clean(heap, block);
    else
        take_pending(heap, block);
    block->bucket->free_blocks--;
    counter_subtract(&block->bucket->counters->free_bytes, block->bytes);
}

void heap_detach_free(struct heap *heap, struct block *block)
{
    detach_free(heap, block);
}

void heap_begin_leaving(struct heap *heap, struct block *block)
{
    counter_subtract(&block->bucket->counters->reserved_bytes, block->bytes);
    heap_detach_free(heap, block);
    block->state = BLOCK_LEAVING;
}

void heap_count_back(struct block *block)
{
    struct bucket *bucket = block->bucket;
    bucket->free_blocks++;
    counter_add(&bucket->counters->free_bytes, block->bytes);
    counter_add(&bucket->counters->reserved_bytes, block->bytes);
}

void heap_add_clean(struct heap *heap, struct block *block)
{
    struct bucket *bucket = block->bucket;
    block->state = BLOCK_CLEAN;
    block_list_append(&bucket->clean, block, LINK_BUCKET);
    counter_add(&bucket->counters->clean_bytes, block->bytes);
    counter_add(&heap->clean_bytes, block->bytes);
}

static inline void count_live(struct heap *heap, struct block *block)
{
    struct bucket_counters *counters = block->bucket->counters;
    uint64_t requested = counter_get(&heap->live_requested) + block->requested;
    counter_set(&heap->live_requested, requested);
    counter_raise_to(&heap->counters->peak_requested, requested);
    counter_raise_to(&counters->peak_live_bytes,
                     counter_get(&counters->reserved_bytes) - counter_get(&counters->free_bytes));
}

void heap_forget_block(struct pool *pool, struct heap *heap, struct block *block)
{
    struct device *device = context_of_heap(heap)->device;
    if (block->state != BLOCK_LEAVING)
        counter_subtract(&block->bucket->counters->reserved_bytes, block->bytes);
    if (block->state == BLOCK_LIVE)
        counter_subtract(&heap->live_requested, block->requested);
    else if (block->state != BLOCK_LEAVING)
        heap_detach_free(heap, block);
    counter_subtract(&heap->reserved_bytes, block->bytes);
    block_table_remove(&pool->blocks, block->address, block);
    /* Relaxed: a number that is compared with limits, and orders nothing. */
    atomic_fetch_sub_explicit(&device->reserved_bytes, block->bytes, memory_order_relaxed);
    block_records_put(&heap->records, block);
}

/* Gives a free block to the program. */
static void hand_out(struct heap *heap, struct block *block, size_t bytes, enum hit hit)
{
    struct bucket_counters *counters = block->bucket->counters;
    detach_free(heap, block);
    block->state = BLOCK_LIVE;
    block->requested = bytes;
    if (__builtin_expect(heap->keep.vain != 0, 0))
        keep_note_hit(&heap->keep, block->bytes);
    counter_add(&counters->requested_bytes, bytes);
    count_live(heap, block);
    counter_add(&counters->hits[hit], 1);
}

static void make_clean(struct heap *heap, struct block *block)
{
    take_pending(heap, block);
    heap_add_clean(heap, block);
}

void heap_sweep(struct context *context)
{
    struct heap *heap = &context->heap;
    uint64_t clean = epoch_clean(&context->epochs) + MUTATED(swept_one_early);
    while (heap->pending.first && heap->pending.first->epoch <= clean)
        make_clean(heap, heap->pending.first);
}

static void make_pending(struct heap *heap, struct block *block, uint64_t epoch)
{
    struct bucket *bucket = block->bucket;
    counter_subtract(&heap->live_requested, block->requested);
    block->state = BLOCK_PENDING;
    block->epoch = epoch;
    block->freed_at = heap->now;
    block_list_append(&bucket->pending, block, LINK_BUCKET);
    block_list_append(&heap->pending, block, LINK_HEAP);
    if (++bucket->free_blocks > heap->blocks_per_bucket)
        heap->crowded = true;
    counter_add(&bucket->counters->free_bytes, block->bytes);
    counter_add(&heap->pending_bytes, block->bytes);
    counter_add(&bucket->counters->frees, 1);
    block->slot = slot_of_this_thread();
    count_pending(heap, block);
    heap->frees_since_fence++;
    heap->bytes_since_fence += block->bytes;
}

uint64_t heap_peak_requested(const struct heap *heap)
{
    return heap_counters_peak(heap->counters);
}

static void add_free_device_bytes(struct bucket *bucket, void *argument)
{
    uint64_t *sum = argument;
    if (bucket->bytes >= SIZE_CLASS_PAGE)
        *sum += bucket->free_blocks * size_class_up(bucket->bytes, SIZE_CLASS_PAGE);
    else
        *sum += counter_get(&bucket->counters->free_bytes);
}

uint64_t heap_free_device_bytes(struct heap *heap)
{
    uint64_t sum = 0;
    pthread_mutex_lock(&heap->lock);
    heap_visit_buckets(heap, add_free_device_bytes, &sum);
    pthread_mutex_unlock(&heap->lock);
    return sum;
}

struct forgetting {
    struct pool *pool;
    struct heap *heap;
};

static void forget_visited(struct block *block, void *argument)
{
    struct forgetting *forgetting = argument;
    heap_forget_block(forgetting->pool, forgetting->heap, block);
}

void heap_set_ending(struct heap *heap, bool ending)
{
    pthread_mutex_lock(&heap->lock);
    heap->ending = ending;
    heap->unusual = heap->fine || ending;
    pthread_mutex_unlock(&heap->lock);
}

void heap_reset(struct pool *pool, struct context *context)
{
    struct heap *heap = &context->heap;
    struct forgetting forgetting = {pool, heap};
    if (MUTATED(dead_blocks_kept))
        return;
    pthread_mutex_lock(&heap->lock);
    block_records_visit(&heap->records, forget_visited, &forgetting);
    epoch_reset(&context->epochs);
    heap->frees_since_fence = 0;
    heap->bytes_since_fence = 0;
    counter_set(&heap->counters->earlier_peak, heap_peak_requested(heap));
    counter_set(&heap->counters->peak_requested, 0);
    keep_reset(&heap->keep);
    pthread_mutex_unlock(&heap->lock);
}

/* ---- the ladder; the heap lock is held, and released where the functions below say so ---- */

static struct block *newest_clean(const struct bucket *bucket)
{
    if (MUTATED(pending_as_clean) && !bucket->clean.last)
        return bucket->pending.last;
    return bucket->clean.last;
}

static bool barriers_may_be_used(struct pool *pool, const struct heap *heap)
{
    bool alone = heap->alone == HEAP_ALONE && launches_alone(pool);
    return (alone || MUTATED(barrier_beside_threads)) && barriers_are_open(pool);
}

/* A pending block that a barrier raised earlier covers. */
static struct block *take_behind_barrier(struct pool *pool, struct context *context,
                                         struct bucket *bucket)
{
    struct block *block = bucket->pending.first;
    uint64_t barrier = context->epochs.barrier + MUTATED(barrier_covers_one_more);
    if (!block || block->epoch > barrier || !barriers_are_open(pool))
        return NULL;
    return block;
}

static void query_for(struct pool *pool, struct context *context, struct bucket *bucket)
{
    struct fence *fence = epoch_fence_for(&context->epochs, bucket->pending.first->epoch, false);
    if (fence)
        epoch_query(pool, context, fence);
}

static struct block *wait_for_one(struct pool *pool, struct context *context, struct bucket *bucket,
                                  enum hit *hit)
{
    struct block *first = bucket->pending.first;
    if (barriers_may_be_used(pool, &context->heap)) {
        struct fence *fence = epoch_fence_for(&context->epochs, first->epoch, true);
        *hit = HIT_BARRIER;
        if (fence && pool->driver->cuCtxWaitEvent)
            epoch_raise_barrier(pool, context, fence);
        return newest_clean(bucket) ? newest_clean(bucket)
                                    : take_behind_barrier(pool, context, bucket);
    }
    *hit = HIT_WAITED;
    if (MUTATED(wait_left_out))
        return first;
    /* Others may be faster: after a few lost races the driver is asked. */
    for (int tries = 0; tries < 4 && bucket->pending.first; tries++) {
        if (!epoch_wait(pool, context, bucket->pending.first->epoch))
            return NULL;
        if (newest_clean(bucket))
            return newest_clean(bucket);
    }
    return NULL;
}

/* Whether a new block keeps what is pending inside the growth budget, and the reserve inside its
 * ratio. */
static bool may_grow(struct pool *pool, struct context *context, uint64_t bytes)
{
    const struct heap *heap = &context->heap;
    return (counter_get(&heap->pending_bytes) <= context->device->growth_budget ||
            MUTATED(budget_ignored)) &&
           counter_get(&heap->reserved_bytes) + bytes <= release_bound(pool, context, bytes);
}

/* Rungs 2 to 4: a block that is not known to be unused yet, or NULL for a new one. Releases and
 * retakes the lock. */
static struct block *climb(struct pool *pool, struct context *context, struct bucket *bucket,
                           enum hit *hit)
{
    if (!bucket->pending.first)
        return NULL;
    struct block *block = take_behind_barrier(pool, context, bucket);
    *hit = HIT_BARRIER;
    if (block)
        return block;
    query_for(pool, context, bucket);
    *hit = HIT_QUERIED;
    if (context->heap.ending)
        return NULL;
    if (newest_clean(bucket))
        return newest_clean(bucket);
    if (!bucket->pending.first || may_grow(pool, context, bucket->bytes))
        return NULL;
    block = wait_for_one(pool, context, bucket, hit);
    return context->heap.ending ? NULL : block;
}

/* Whether this thread has more than its share of what is pending. */
static bool is_ahead(const struct context *context)
{
    const struct heap *heap = &context->heap;
    return heap->slots_pending > 1 && heap->pending_of[slot_of_this_thread()] >
                                          context->device->growth_budget / heap->slots_pending;
}

/* Holds a thread back that runs ahead of the others. Releases and retakes the lock. False where the
 * context is ending by then. */
static bool wait_for_the_others(struct pool *pool, struct context *context)
{
    while (is_ahead(context) && epoch_wait(pool, context, context->heap.pending.first->epoch))
        continue;
    return !context->heap.ending;
}

/* ---- misses; no lock held ---- */

static CUresult ask_driver(struct pool *pool, struct bucket_counters *cost, CUdeviceptr *address,
                           uint64_t bytes)
{
    uint64_t started = monotonic_now();
    enter_driver();
    struct relaxed_mode mode = {false, 0};
    if (MUTATED(allocation_in_relaxed_mode))
        mode = relaxed_mode_begin(pool);
    CUresult result = pool->driver->cuMemAlloc_v2(address, bytes);
    relaxed_mode_end(pool, mode);
    leave_driver();
    bucket_count_call(cost, monotonic_now() - started);
    return result;
}

/* The driver, and everything that may help when it is out of memory. *bytes falls back to what was
 * requested where only that fits. */
static CUresult ask_driver_hard(struct pool *pool, struct context *context,
                                struct bucket_counters *cost, CUdeviceptr *address, uint64_t *bytes,
                                size_t requested)
{
    struct device *device = context->device;
    CUresult result = ask_driver(pool, cost, address, *bytes);
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        return result;
    struct reclaim progress = {.bytes = *bytes, .wanted = requested};
    while (result == CUDA_ERROR_OUT_OF_MEMORY && release_for_retry(pool, device, &progress))
        result = ask_driver(pool, cost, address, *bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && *bytes != requested &&
        !MUTATED(exact_size_left_out)) {
        atomic_fetch_sub_explicit(&device->reserved_bytes, *bytes - requested,
                                  memory_order_relaxed);
        *bytes = requested;
        result = ask_driver(pool, cost, address, requested);
    }
    return result;
}

/* Threads of several contexts may be here at once. Relaxed: a number for the report. What is on the
 * way from the driver does not count yet. */
static void note_reserved(struct pool *pool, struct device *device)
{
    counter *highest = &device->memory->peak_reserved;
    uint64_t reserved = 0, peak = counter_get(highest);
    for (struct context *c = context_next(pool, NULL, device); c; c = context_next(pool, c, device))
        reserved += counter_get(&c->heap.reserved_bytes);
    while (reserved > peak &&
           !atomic_compare_exchange_weak_explicit(highest, &peak, reserved, memory_order_relaxed,
                                                  memory_order_relaxed))
        continue;
}

/* Lock held. */
static void record_block(struct pool *pool, struct heap *heap, struct bucket *bucket,
                         CUdeviceptr address, uint64_t bytes, size_t requested)
{
    struct block *block = block_records_take(&heap->records, heap);
    if (!block || !block_table_insert(&pool->blocks, address, block)) {
        /* Without a record the memory is the program's and the driver's business alone. */
        if (block)
            block_records_put(&heap->records, block);
        atomic_fetch_sub_explicit(&context_of_heap(heap)->device->reserved_bytes, bytes,
                                  memory_order_relaxed);
        return;
    }
    block->address = address;
    block->bytes = bytes;
    block->requested = requested;
    block->bucket = bucket;
    block->state = BLOCK_LIVE;
    counter_add(&heap->reserved_bytes, bytes);
    note_reserved(pool, context_of_heap(heap)->device);
    counter_add(&bucket->counters->reserved_bytes, bytes);
    counter_raise_to(&bucket->counters->peak_reserved_bytes,
                     counter_get(&bucket->counters->reserved_bytes));
    count_live(heap, block);
}

bool heap_let_go(struct pool *pool, CUdeviceptr address)
{
    struct block *block = block_table_find(&pool->blocks, address);
    if (!block)
        return true;
    struct heap *heap = block->heap;
    pthread_mutex_lock(&heap->lock);
    bool live = block->address == address && block->state == BLOCK_LIVE;
    if (live) {
        struct bucket_counters *counters = block->bucket->counters;
        heap_forget_block(pool, heap, block);
        counter_add(&counters->frees, 1);
    }
    pthread_mutex_unlock(&heap->lock);
    return live;
}

void heap_forget_address(struct pool *pool, CUdeviceptr address)
{
    struct block *block = block_table_find(&pool->blocks, address);
    if (!block || MUTATED(stale_record_kept))
        return;
    struct heap *heap = block->heap;
    pthread_mutex_lock(&heap->lock);
    if (block->address == address && block->state != BLOCK_UNUSED && block->state != BLOCK_LEAVING)
        heap_forget_block(pool, heap, block);
    pthread_mutex_unlock(&heap->lock);
}

/* Lock held. Half of the share turns it off again, so that it does not change all the time. */
static void watch_waste(struct heap *heap, const struct device *device)
{
    uint64_t kept = counter_get(&heap->clean_bytes) + counter_get(&heap->pending_bytes);
    uint64_t waste = counter_get(&heap->reserved_bytes) - kept - counter_get(&heap->live_requested);
    uint64_t most = device->total_bytes / HEAP_WASTE_SHARE;
    heap->fine = waste > (heap->fine ? most / 2 : most);
    heap->unusual = heap->fine || heap->ending;
}

/* Lock held. Bytes that could be kept as well as what the context holds. */
static uint64_t room_to_keep(const struct pool *pool, const struct context *context)
{
    uint64_t held = counter_get(&context->heap.reserved_bytes);
    uint64_t bound = release_bound(pool, context, 0);
    uint64_t most = bound < context->device->total_bytes ? bound : context->device->total_bytes;
    return held < most ? most - held : 0;
}

/* generation: of the context, from before the driver was asked. Where it has died since, what the
 * driver gave has died with it, and another context may own the heap. */
static void finish_miss(struct pool *pool, struct context *context, uint64_t generation,
                        struct bucket *bucket, CUdeviceptr address, uint64_t bytes,
                        size_t requested, CUresult result)
{
    struct heap *heap = &context->heap;
    bool lives = context_generation(context) == generation && (generation & 1) != 0;
    /* Whoever freed this address did so behind our back. */
    if (result == CUDA_SUCCESS && lives)
        heap_forget_address(pool, address);
    pthread_mutex_lock(&heap->lock);
    /* A death from here on finds the record: it takes the lock after changing the generation. */
    lives = lives && context_generation(context) == generation;
    counter_add(&bucket->counters->requested_bytes, requested);
    counter_add(&heap->misses, 1);
    if (result == CUDA_SUCCESS && lives)
        record_block(pool, heap, bucket, address, bytes, requested);
    else
        atomic_fetch_sub_explicit(&context->device->reserved_bytes, bytes, memory_order_relaxed);
    counter_add(&bucket->counters->misses, 1);
    if (keep_is_on_trial(&heap->keep))
        keep_note_miss(&heap->keep, &bucket->ghosts, bytes, room_to_keep(pool, context));
    watch_waste(heap, context->device);
    heap->now = monotonic_now();
    pthread_mutex_unlock(&heap->lock);
}

/* Past the hard limit: the driver is not asked, and has nothing to count. */
static CUresult refuse(struct heap *heap, struct bucket *bucket, size_t requested)
{
    pthread_mutex_lock(&heap->lock);
    counter_add(&bucket->counters->requested_bytes, requested);
    counter_add(&bucket->counters->misses, 1);
    pthread_mutex_unlock(&heap->lock);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Nothing is taken into the reserved bytes beforehand: with so many, what other threads ask for
 * meanwhile would seem to be past every limit. */
static CUresult ask_in_vain(struct pool *pool, struct context *context, CUdeviceptr *address,
                            size_t requested)
{
    uint64_t generation = context_generation(context);
    struct bucket *bucket = &context->heap.unkept;
    CUresult result = ask_driver(pool, bucket->counters, address, requested);
    uint64_t bytes = result == CUDA_SUCCESS ? requested : 0;
    atomic_fetch_add_explicit(&context->device->reserved_bytes, bytes, memory_order_relaxed);
    finish_miss(pool, context, generation, bucket, *address, bytes, requested, result);
    return result;
}

static CUresult miss(struct pool *pool, struct context *context, struct bucket *bucket,
                     CUdeviceptr *address, uint64_t bytes, size_t requested)
{
    struct heap *heap = &context->heap;
    uint64_t generation = context_generation(context);
    /* What no device can hold is not worth giving anything back for. */
    if (requested > context->device->total_bytes)
        return ask_in_vain(pool, context, address, requested);
    release_excess(pool, context, RELEASE_IN_ALLOCATION);
    release_before_growth(pool, context, bytes);
    if (!release_reserve(pool, context, bytes, false)) {
        if (bytes == requested || !release_reserve(pool, context, requested, false))
            return refuse(heap, bucket, requested);
        bytes = requested;
    }
    uint64_t taken = bytes;
    CUresult result = ask_driver_hard(pool, context, bucket->counters, address, &taken, requested);
    /* A block that is smaller than its bucket must not serve it again. */
    bool fits = taken == bucket->bytes || MUTATED(smaller_block_in_bucket);
    finish_miss(pool, context, generation, fits ? bucket : &heap->unkept, *address, taken,
                requested, result);
    release_look_at_memory(pool, context);
    return result;
}

CUresult heap_allocate_unkept(struct pool *pool, struct context *context, CUdeviceptr *address,
                              size_t bytes)
{
    return miss(pool, context, &context->heap.unkept, address, bytes, bytes);
}

void heap_adopt(struct pool *pool, struct context *context, uint64_t generation,
                CUdeviceptr address, size_t bytes, size_t reserved)
{
    /* Modulo 2^64: less, where fewer bytes came than were reserved. */
    atomic_fetch_add_explicit(&context->device->reserved_bytes, (uint64_t)bytes - reserved,
                              memory_order_relaxed);
    finish_miss(pool, context, generation, &context->heap.unkept, address, bytes, bytes,
                CUDA_SUCCESS);
}

/* Lock held on entry and return, perhaps released in between. */
static bool take_from(struct pool *pool, struct context *context, struct bucket *bucket,
                      CUdeviceptr *address, size_t bytes)
{
    enum hit hit = HIT_CLEAN;
    note_user(pool, &context->heap);
    if (is_ahead(context) && !wait_for_the_others(pool, context))
        return false;
    struct block *block = newest_clean(bucket);
    if (!block)
        block = climb(pool, context, bucket, &hit);
    if (!block)
        return false;
    hand_out(&context->heap, block, bytes, hit);
    *address = block->address;
    return true;
}

CUresult heap_allocate(struct pool *pool, struct context *context, CUdeviceptr *address,
                       size_t bytes)
{
    struct heap *heap = &context->heap;
    uint64_t block_bytes = size_class_round(&heap->classes, bytes);
    if (MUTATED(fence_in_allocation))
        epoch_fence_the_rest(pool, context);
    if (block_bytes == 0)
        return heap_allocate_unkept(pool, context, address, bytes);

    pthread_mutex_lock(&heap->lock);
    if (__builtin_expect(heap->unusual, 0)) {
        if (heap->ending) {
            pthread_mutex_unlock(&heap->lock);
            return heap_allocate_unkept(pool, context, address, bytes);
        }
        if (heap->classes.policy != BUCKETS_EXACT)
            block_bytes = size_class_finest(bytes);
    }
    struct bucket *bucket = get_bucket(heap, block_bytes);
    bool hit = bucket != &heap->unkept && take_from(pool, context, bucket, address, bytes);
    pthread_mutex_unlock(&heap->lock);
    if (hit)
        return CUDA_SUCCESS;
    return miss(pool, context, bucket, address, bucket == &heap->unkept ? bytes : block_bytes,
                bytes);
}

/* ---- freeing ---- */

static uint64_t fence_bytes(const struct context *context)
{
    return atomic_load_explicit(&context->device->fence_bytes, memory_order_relaxed);
}

/* Lock held. */
static bool fence_is_due(const struct context *context)
{
    const struct heap *heap = &context->heap;
    unsigned twice = heap->alone == HEAP_ALONE;
    return heap->frees_since_fence >= FENCE_EVERY_FREES << twice ||
           heap->bytes_since_fence >= fence_bytes(context) << twice;
}

/* Lock held. */
static bool deserves_fence(const struct context *context, const struct block *block)
{
    return fence_is_due(context) || block->bucket->bytes == 0;
}

/* Lock held. */
static struct fence *close_epoch(struct context *context, bool waitable)
{
    struct fence *fence = epoch_begin_close(context, waitable);
    if (fence) {
        context->heap.frees_since_fence = 0;
        context->heap.bytes_since_fence = 0;
    }
    return fence;
}

/* Slow path after a fence: what it may have made clean, and what is kept too long or too much. */
static void look_after(struct pool *pool, struct context *context)
{
    struct heap *heap = &context->heap;
    pthread_mutex_lock(&heap->lock);
    struct block *unkept = heap->unkept.pending.first;
    if (unkept) {
        struct fence *fence = epoch_fence_for(&context->epochs, unkept->epoch, false);
        if (fence)
            epoch_query(pool, context, fence);
    }
    pthread_mutex_unlock(&heap->lock);
    /* Made while there is memory: it is needed when there is none. */
    if (pool->driver->cuMemFreeAsync)
        release_stream(pool, context);
    release_excess(pool, context, RELEASE_IN_FREE);
    release_look_again(pool, context);
}

static CUresult synchronise_like_the_driver(struct pool *pool, struct context *context)
{
    bool pushed;
    if (!context_push(pool, context, &pushed))
        return CUDA_SUCCESS;
    uint64_t epoch = epoch_synchronise_begin(pool, context);
    enter_driver();
    CUresult result = pool->driver->cuCtxSynchronize();
    leave_driver();
    context_pop(pool, pushed);
    epoch_synchronise_end(pool, context, epoch, result);
    return result;
}

/* The pool records no fence in this context any more. Relaxed: see where it is set. */
static bool is_without_fences(const struct context *context)
{
    return atomic_load_explicit(&context->unusable, memory_order_relaxed);
}

static bool is_the_drivers_to_free(struct pool *pool, const struct context *context,
                                   const struct block *block)
{
    return (block->shared && !MUTATED(shared_block_kept)) ||
           (captures_are_going_on(&pool->captures) && !MUTATED(free_in_capture_kept)) ||
           (is_without_fences(context) && !MUTATED(kept_without_fences));
}

/* Lock held. Not worth keeping; only where the plain call would have waited too. */
static bool goes_directly(struct heap *heap, struct block *block, bool waitable)
{
    return keep_is_on_trial(&heap->keep) && waitable &&
           keep_free_is_the_drivers(&heap->keep, &block->bucket->ghosts, block->bytes);
}

static bool is_live_at(const struct block *block, CUdeviceptr address)
{
    return block->address == address && block->state == BLOCK_LIVE;
}

/* Lock held. A free that came while this thread was recording, or an allocation that waits for one
 * that came before (await_fence_for in epoch.c), may be owed a fence still. */
static struct fence *close_if_owed(struct context *context, bool waitable)
{
    const struct heap *heap = &context->heap;
    bool owed = heap->frees_since_fence && (heap->owed || fence_is_due(context));
    return owed ? close_epoch(context, waitable) : NULL;
}

/* A free that failed has freed nothing. False where the block has a new owner already. */
static bool take_back(struct heap *heap, struct block *block, CUdeviceptr address, uint64_t stamp)
{
    pthread_mutex_lock(&heap->lock);
    bool pending =
        block->address == address && block->state == BLOCK_PENDING && block->epoch == stamp;
    if (pending) {
        heap_detach_free(heap, block);
        block->state = BLOCK_LIVE;
        counter_subtract(&block->bucket->counters->frees, 1);
        count_live(heap, block);
    }
    pthread_mutex_unlock(&heap->lock);
    return pending;
}

/* The wait that the settings ask for. It may fail, where another thread has just begun a capture
 * for one, and the program then goes on using the block. */
__attribute__((noinline)) static CUresult wait_in_free(struct pool *pool, struct block *block,
                                                       CUdeviceptr address, uint64_t stamp)
{
    struct heap *heap = block->heap;
    CUresult result = synchronise_like_the_driver(pool, context_of_heap(heap));
    bool freed = result == CUDA_SUCCESS || MUTATED(failed_wait_frees) ||
                 !take_back(heap, block, address, stamp);
    return freed ? CUDA_SUCCESS : result;
}

/* The slow part of a free: its fence. */
__attribute__((noinline)) static CUresult end_free(struct pool *pool, struct context *context,
                                                   struct fence *fence, bool waitable)
{
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; fence && i < 4; i++) {
        result = epoch_record(pool, context, fence);
        pthread_mutex_lock(&context->heap.lock);
        bool good = context->epochs.failures == 0 && !is_without_fences(context);
        fence = i < 3 && good ? close_if_owed(context, waitable) : NULL;
        context->heap.owed = false; /* whoever waits says so again while there is a record */
        pthread_mutex_unlock(&context->heap.lock);
    }
    look_after(pool, context);
    return result;
}

/* Lock held. */
static void put_back_pending(struct pool *pool, struct heap *heap, struct block *block)
{
    if (!block_table_insert(&pool->blocks, block->address, block))
        return;
    block->state = BLOCK_PENDING;
    block_list_prepend(&block->bucket->pending, block, LINK_BUCKET);
    block_list_prepend(&heap->pending, block, LINK_HEAP);
    heap_count_back(block);
    counter_add(&heap->pending_bytes, block->bytes);
    count_pending(heap, block);
}

/* Lock held on entry and return, released in between. */
static bool free_oldest_pending(struct pool *pool, struct heap *heap)
{
    struct block *block = heap->pending.first;
    heap_begin_leaving(heap, block);
    block_table_remove(&pool->blocks, block->address, block);
    pthread_mutex_unlock(&heap->lock);
    enter_driver();
    CUresult result = pool->driver->cuMemFree_v2(block->address);
    leave_driver();
    pthread_mutex_lock(&heap->lock);
    if (result == CUDA_SUCCESS)
        heap_forget_block(pool, heap, block);
    else
        put_back_pending(pool, heap, block);
    return result == CUDA_SUCCESS;
}

void heap_free_pending(struct pool *pool, struct context *context)
{
    struct heap *heap = &context->heap;
    if (captures_are_going_on(&pool->captures) ||
        !context_pin(context, context_generation(context)))
        return;
    pthread_mutex_lock(&heap->lock);
    while (heap->pending.first && free_oldest_pending(pool, heap))
        continue;
    pthread_mutex_unlock(&heap->lock);
    context_unpin(context);
}

/* A free that the driver answers. */
__attribute__((noinline)) static CUresult free_past_the_pool(struct pool *pool, struct block *block,
                                                             CUdeviceptr address,
                                                             const struct free_call *call)
{
    struct context *context = context_of_heap(block->heap);
    CUresult result = heap_free_by_driver(pool, block, address, call->release, call->argument);
    if (call->waitable && is_without_fences(context))
        heap_free_pending(pool, context);
    return result;
}

/* Lock held. What a free is stamped with. */
static uint64_t stamp_of_now(struct pool *pool, const struct context *context)
{
    bool green;
    if (MUTATED(stamped_by_current_context) && context_current(pool, &green)) {
        uint64_t least = epoch_clean(&context->epochs) + 1;
        uint64_t current = context_current(pool, &green)->epochs.current;
        return current > least ? current : least;
    }
    return context->epochs.current;
}

CUresult heap_free(struct pool *pool, struct block *block, CUdeviceptr address,
                   const struct free_call *call)
{
    struct heap *heap = block->heap;
    struct context *context = context_of_heap(heap);
    pthread_mutex_lock(&heap->lock);
    if (!is_live_at(block, address)) {
        pthread_mutex_unlock(&heap->lock);
        return MUTATED(double_free_taken) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    if (is_the_drivers_to_free(pool, context, block) ||
        goes_directly(heap, block, call->waitable)) {
        pthread_mutex_unlock(&heap->lock);
        return free_past_the_pool(pool, block, address, call);
    }
    note_user(pool, heap);
    uint64_t stamp = stamp_of_now(pool, context);
    make_pending(heap, block, stamp);
    bool synchronise = pool->settings.device.free_synchronizes && call->waitable &&
                       !MUTATED(free_synchronizes_ignored);
    struct fence *fence = NULL;
    if (!synchronise && deserves_fence(context, block))
        fence = close_epoch(context, call->waitable);
    pthread_mutex_unlock(&heap->lock);
    if (fence)
        return end_free(pool, context, fence, call->waitable);
    return synchronise ? wait_in_free(pool, block, address, stamp) : CUDA_SUCCESS;
}

/* Lock held on entry and return, released in between. The driver knows nothing of the work that a
 * barrier orders before the block. */
static void wait_for_barrier_of(struct pool *pool, struct context *context,
                                const struct block *block)
{
    if (block->epoch > epoch_clean(&context->epochs) && !MUTATED(barrier_forgotten_at_free))
        epoch_wait_until(pool, context, block->epoch, UINT64_MAX);
}

/* Lock not held. Puts a live block out of the way of its address's next owner. */
static bool begin_leaving(struct pool *pool, struct block *block, CUdeviceptr address)
{
    struct heap *heap = block->heap;
    pthread_mutex_lock(&heap->lock);
    if (is_live_at(block, address))
        wait_for_barrier_of(pool, context_of_heap(heap), block);
    bool live = is_live_at(block, address);
    if (live) {
        counter_subtract(&heap->live_requested, block->requested);
        counter_subtract(&block->bucket->counters->reserved_bytes, block->bytes);
        block->state = BLOCK_LEAVING;
        block_table_remove(&pool->blocks, address, block);
    }
    pthread_mutex_unlock(&heap->lock);
    return live;
}

static void come_back(struct pool *pool, struct block *block)
{
    if (!block_table_insert(&pool->blocks, block->address, block))
        return;
    block->state = BLOCK_LIVE;
    counter_add(&block->bucket->counters->reserved_bytes, block->bytes);
    count_live(block->heap, block);
}

CUresult heap_free_by_driver(struct pool *pool, struct block *block, CUdeviceptr address,
                             heap_release *release, void *argument)
{
    struct heap *heap = block->heap;
    if (!begin_leaving(pool, block, address))
        return CUDA_ERROR_INVALID_VALUE;
    enter_driver();
    CUresult result = release(pool, address, argument);
    leave_driver();
    pthread_mutex_lock(&heap->lock);
    if (block->state == BLOCK_LEAVING && block->address == address) {
        if (result == CUDA_SUCCESS) {
            struct bucket_counters *counters = block->bucket->counters;
            heap_forget_block(pool, heap, block);
            counter_add(&counters->frees, 1);
        } else {
            come_back(pool, block);
        }
    }
    pthread_mutex_unlock(&heap->lock);
    return result;
}
