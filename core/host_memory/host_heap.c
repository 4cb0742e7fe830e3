#include "host_heap.h"

#include <stdlib.h>

#include "core/base/lines.h"
#include "core/base/numbers.h"
#include "core/contexts/kind.h"
#include "core/contexts/registry.h"
#include "host_large.h"

/* A shard closes an epoch after so many frees, or after its share of bytes (see fence_bytes). */
#define FENCE_EVERY_FREES 64u

/* ---- buckets and shards ---- */

/* Stands in by_request where a shard knows no bin. Never written. */
static struct host_bin no_bin;

static struct bucket_counters *counters_of(struct pool *pool, const struct host_heap *heap,
                                           uint64_t key)
{
    return figures_bucket(&pool->figures, KIND_HOST, heap->context->figures_id,
                          heap->context->device->ordinal, host_key_bytes(key));
}

void host_know_machine(const struct host_settings *settings, struct host_memory *memory)
{
    machine_read(&memory->machine, "");
    machine_keep_open(&memory->machine);
    uint64_t bytes = memory->machine.memory_bytes;
    memory->cached_cap = byte_size_resolve(&settings->caps.cached, bytes);
    memory->growth_budget = byte_size_resolve(&settings->growth_budget, bytes);
    memory->keeps_any = memory->cached_cap && settings->caps.blocks_per_bucket;
}

void host_heap_make_ready(struct pool *pool, struct host_heap *heap)
{
    no_lock_may_be_held_behind(LOCK_PRIMARY);
    struct host_memory *memory = host_memory_of(pool);
    context_lock(heap->context);
    if (!host_heap_is_ready(heap)) {
        bucket_settings_resolve(&pool->settings.host.buckets, memory->machine.memory_bytes,
                                &heap->classes);
        host_share(memory, heap, 1);
        atomic_store_explicit(&heap->ready, true, memory_order_release);
    }
    context_unlock(heap->context);
}

bool host_heap_init(struct pool *pool, struct context *context)
{
    struct host_memory *memory = host_memory_of(pool);
    struct host_heap *heap = host_heap_of(context);
    if (!memory)
        return true;
    heap->context = context;
    heap->pool = pool;
    heap->unkept.bucket.counters = counters_of(pool, heap, 0);
    return heap->unkept.bucket.counters && bucket_set_make_room(&heap->buckets);
}

struct host_bin *host_bucket(struct pool *pool, struct host_heap *heap, uint64_t key)
{
    lock_must_be_held(&heap->context->lock);
    if (host_key_bytes(key) == 0)
        return &heap->unkept;
    struct host_bin *bucket = (struct host_bin *)bucket_set_find(&heap->buckets, key);
    if (bucket || !bucket_set_make_room(&heap->buckets))
        return bucket ? bucket : &heap->unkept;
    bucket = calloc(1, sizeof *bucket);
    struct bucket_counters *counters = bucket ? counters_of(pool, heap, key) : NULL;
    if (!counters) {
        free(bucket);
        return &heap->unkept;
    }
    bucket->bucket.bytes = key;
    bucket->bucket.counters = counters;
    bucket_set_add(&heap->buckets, &bucket->bucket);
    return bucket;
}

static void list_shard(struct host_heap *heap, struct host_shard *shard)
{
    shard->next = atomic_load_explicit(&heap->first_shard, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&heap->first_shard, &shard->next, shard,
                                                  memory_order_release, memory_order_relaxed))
        continue;
}

struct host_shard *host_shard_make(struct pool *pool, struct host_heap *heap)
{
    unsigned number = (unsigned)(thread_id(pool) % HOST_SHARDS);
    struct host_shard *made = allocate_apart(2 * LINE_BYTES, sizeof *made), *before = NULL;
    if (!made)
        return NULL;
    made->heap = heap;
    for (unsigned i = 0; i < HOST_PLACES; i++)
        made->by_request[i] = &no_bin;
    /* Listed before any thread can use the shard, so that a context's end finds it. */
    list_shard(heap, made);
    /* Later threads see the release store of the thread that came first, by the acquire load in
     * host_shard_at or here. A shard that another thread made too late stays in the list, empty. */
    bool first = atomic_compare_exchange_strong_explicit(
        &heap->shards[number], &before, made, memory_order_acq_rel, memory_order_acquire);
    struct host_shard *shard = first ? made : before;
    if (thread_state.context == heap->context)
        thread_state.shard = shard;
    return shard;
}

/* Threads of several shards may call this at the same time. */
static void list_bin(struct host_bin *of_all, struct host_bin *bin)
{
    struct host_bin *first = atomic_load_explicit(&of_all->same_key, memory_order_relaxed);
    do
        atomic_store_explicit(&bin->same_key, first, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&of_all->same_key, &first, bin,
                                                  memory_order_release, memory_order_relaxed));
}

static struct host_bin *add_bin(struct pool *pool, struct host_heap *heap, struct host_shard *shard,
                                struct host_bin *bucket)
{
    lock_must_be_held(&shard->lock);
    if (!bucket_set_make_room(&shard->bins))
        return NULL;
    struct host_bin *bin = calloc(1, sizeof *bin);
    struct bin_counters *counts =
        bin ? figures_bin(&pool->figures, KIND_HOST, heap->context->figures_id,
                          heap->context->device->ordinal, host_key_bytes(bucket->bucket.bytes))
            : NULL;
    if (!counts) {
        free(bin);
        return NULL;
    }
    bin->bucket.bytes = bucket->bucket.bytes;
    bin->bucket.counters = bucket->bucket.counters;
    bin->counts = counts;
    bin->shard = shard;
    bin->of_all = bucket;
    bin->bytes = host_key_bytes(bin->bucket.bytes);
    bin->sort = (unsigned)(bin->bucket.bytes & HOST_SORT_MASK);
    bin->requests = size_class_span(&heap->classes, bin->bytes, SIZE_CLASS_GRANULE);
    bucket_set_add(&shard->bins, &bin->bucket);
    list_bin(bucket, bin); /* the bin is complete: other shards' threads read it from now on */
    return bin;
}

struct host_bin *host_bin_make(struct pool *pool, struct host_heap *heap, struct host_shard *shard,
                               uint64_t key)
{
    context_lock(heap->context);
    struct host_bin *bucket = host_bucket(pool, heap, key);
    context_unlock(heap->context);
    if (bucket == &heap->unkept)
        return NULL;
    host_lock(shard);
    struct host_bin *bin = host_bin_find(shard, key);
    if (!bin)
        bin = add_bin(pool, heap, shard, bucket);
    host_unlock(shard);
    return bin;
}

/* ---- the lists of a bin ---- */

static void take_pending(struct host_bin *bin, struct block *block)
{
    block_list_remove(&bin->bucket.pending, block, LINK_BUCKET);
    counter_subtract(&bin->shard->pending_bytes, bin->bytes);
    counter_add(&bin->counts->not_pending, 1);
}

static void add_to_clean(struct host_bin *bin)
{
    counter_add(&bin->shard->clean_bytes, bin->bytes);
    /* A thread that no longer sees the bytes in pending_bytes sees them in clean_bytes. Pairs with
     * the acquire fence in host_free_bytes. */
    counter_fence(memory_order_release);
}

void host_sweep(struct host_bin *bin, uint64_t clean)
{
    lock_must_be_held(&bin->shard->lock);
    struct block *block;
    while ((block = bin->bucket.pending.first) && counter_get(&block->epoch) <= clean) {
        add_to_clean(bin);
        take_pending(bin, block);
        block_set_state(block, BLOCK_CLEAN);
        block_list_append(&bin->bucket.clean, block, LINK_BUCKET);
    }
}

static void detach(struct host_bin *bin, struct block *block)
{
    lock_must_be_held(&bin->shard->lock);
    if (block_state(block) == BLOCK_CLEAN) {
        block_list_remove(&bin->bucket.clean, block, LINK_BUCKET);
        counter_subtract(&bin->shard->clean_bytes, bin->bytes);
    } else {
        take_pending(bin, block);
    }
}

void host_take_over(struct host_bin *bin, struct block *block, size_t bytes)
{
    host_detach_unused(bin->shard, bin, block);
    counter_set(&block->requested, bytes);
    block_set_state(block, BLOCK_LIVE);
    counter_subtract(&bin->counts->moved, 1);
    uint64_t live = host_live_with(bin->shard, bytes);
    counter_set(&bin->shard->live_requested, live);
    if (!host_is_noted(bin->shard, live))
        host_note_peaks(bin->shard);
}

void host_take_out(struct host_bin *bin, struct block *block)
{
    detach(bin, block);
    block_set_state(block, BLOCK_LEAVING);
    counter_subtract(&bin->counts->moved, 1);
}

void host_put_back(struct host_bin *bin, struct block *block, uint64_t clean)
{
    lock_must_be_held(&bin->shard->lock);
    bool pending = counter_get(&block->epoch) > clean;
    counter_add(&bin->counts->moved, 1);
    host_set_bin(block, bin);
    if (pending) {
        counter_subtract(&bin->counts->not_pending, 1);
        counter_add(&bin->shard->pending_bytes, bin->bytes);
    } else {
        add_to_clean(bin);
    }
    block_set_state(block, pending ? BLOCK_PENDING : BLOCK_CLEAN);
    block_list_prepend(pending ? &bin->bucket.pending : &bin->bucket.clean, block, LINK_BUCKET);
}

/* ---- what may be freed without a fence ---- */

static int32_t fence_frees(const struct pool *pool)
{
    const struct host_settings *settings = &pool->settings.host;
    if (settings->free_synchronizes)
        return 1;
    return (int32_t)smaller_of(FENCE_EVERY_FREES, settings->caps.blocks_per_bucket);
}

/* Sets bytes_left: how many bytes may still be freed in this epoch before a fence is due, or before
 * the shard reaches its share of the cap. freed: bytes already freed in this epoch. */
static void count_bytes_anew(struct host_shard *shard, uint64_t freed)
{
    const struct host_heap *heap = shard->heap;
    uint64_t fence = atomic_load_explicit(&heap->fence_bytes, memory_order_relaxed);
    uint64_t share = atomic_load_explicit(&heap->cap_share, memory_order_relaxed);
    uint64_t left = smaller_of(rest_of(fence, freed), rest_of(share, host_free_bytes(shard)));
    shard->bytes_left = (int64_t)left;
    shard->bytes_at_first = (int64_t)(left + freed);
}

void host_begin_epoch(const struct pool *pool, struct host_shard *shard, uint64_t stamp)
{
    lock_must_be_held(&shard->lock);
    bool closed = epoch_is_closed(&shard->heap->context->epochs, counter_get(&shard->newest));
    uint64_t freed = closed ? 0 : (uint64_t)(shard->bytes_at_first - shard->bytes_left);
    counter_set(&shard->newest, stamp);
    if (closed)
        shard->frees_left = shard->fence_next ? 1 : fence_frees(pool);
    count_bytes_anew(shard, freed);
}

struct host_spent host_look_what_is_spent(const struct pool *pool, struct host_shard *shard)
{
    lock_must_be_held(&shard->lock);
    const struct host_heap *heap = shard->heap;
    uint64_t freed = (uint64_t)(shard->bytes_at_first - shard->bytes_left);
    int64_t live = (int64_t)counter_get(&shard->live_requested);
    if (shard->noted_up_to > live + HOST_STEP)
        shard->noted_up_to = live + HOST_STEP;
    bool due = shard->frees_left <= 0 ||
               freed >= atomic_load_explicit(&heap->fence_bytes, memory_order_relaxed);
    bool past_share =
        host_free_bytes(shard) > atomic_load_explicit(&heap->cap_share, memory_order_relaxed);
    if (shard->fence_next)
        shard->frees_left = fence_frees(pool);
    shard->fence_next = false;
    if (!due)
        count_bytes_anew(shard, freed);
    return (struct host_spent){due, past_share};
}

/* ---- sums ---- */

struct host_sums host_sum(const struct host_heap *heap)
{
    struct host_sums sums = {0, 0, 0};
    for (const struct host_shard *shard = host_shards(heap); shard; shard = shard->next) {
        sums.free_bytes += host_free_bytes(shard);
        sums.pending_bytes += counter_get(&shard->pending_bytes);
        sums.live_requested += counter_get(&shard->live_requested);
    }
    /* If one thread allocates a block and another frees it meanwhile, the sum may have seen only
     * the free. */
    if (sums.live_requested > INT64_MAX)
        sums.live_requested = 0;
    return sums;
}

struct host_sums host_sweep_and_sum(struct host_heap *heap)
{
    uint64_t clean = host_clean_epoch(heap);
    for (struct host_shard *shard = host_shards(heap); shard; shard = shard->next) {
        host_lock(shard);
        for (struct bucket *b = shard->bins.first; b; b = b->next)
            host_sweep((struct host_bin *)b, clean);
        host_unlock(shard);
    }
    return host_sum(heap);
}

uint64_t host_newest_pending(const struct host_heap *heap)
{
    uint64_t newest = 0;
    for (const struct host_shard *shard = host_shards(heap); shard; shard = shard->next)
        newest = larger_of(newest, counter_get(&shard->newest));
    return newest > host_clean_epoch(heap) ? newest : 0;
}

void host_count_live(struct pool *pool, struct host_heap *heap, uint64_t bytes)
{
    struct host_shard *shard = host_shard_of_thread(pool, heap);
    if (!shard)
        return;
    host_lock(shard);
    counter_add(&shard->live_requested, bytes);
    host_unlock(shard);
}

/* ---- peaks: threads of several shards may raise them at once ---- */

/* Raises the peaks of all contexts of the device. bytes: of a block that is just being recorded. */
static void raise_peaks_of_device(struct host_heap *heap, uint64_t bytes)
{
    struct device *device = heap->context->device;
    struct kind_counters *counters = ((struct host_device *)device->of_kind[KIND_HOST])->counters;
    uint64_t live = 0, reserved = bytes;
    for (struct context *c = context_next(heap->pool, NULL, device); c;
         c = context_next(heap->pool, c, device)) {
        struct host_heap *of = host_heap_of(c);
        uint64_t requested = host_sum(of).live_requested;
        counter_raise_shared(&of->peak_requested, requested);
        live += requested;
        reserved += counter_get(&of->reserved_bytes);
    }
    counter_raise_shared(&counters->peak_reserved, reserved);
    counter_raise_shared(&counters->peak_requested, live);
}

/* Live bytes of a key = its reserved bytes - bytes in its bins. */
static void raise_peak_of_key(const struct host_bin *of_all, uint64_t bytes)
{
    struct bucket_counters *counters = of_all->bucket.counters;
    uint64_t reserved = counter_get(&counters->reserved_bytes) + bytes, free = 0;
    const struct host_bin *bin = atomic_load_explicit(&of_all->same_key, memory_order_acquire);
    for (; bin; bin = atomic_load_explicit(&bin->same_key, memory_order_relaxed))
        free += bin_free_blocks(bin->counts) * bin->bytes;
    counter_raise_shared(&counters->peak_live_bytes, rest_of(reserved, free));
}

void host_note_peaks(struct host_shard *shard)
{
    lock_must_be_held(&shard->lock);
    for (struct bucket *b = shard->bins.first; b; b = b->next)
        raise_peak_of_key(((const struct host_bin *)b)->of_all, 0);
    raise_peaks_of_device(shard->heap, 0);
    shard->noted_up_to = (int64_t)counter_get(&shard->live_requested) + HOST_STEP;
}

/* Called before a block is recorded. The process may be killed at any moment and its figures read
 * afterwards, and no number in the figures may be above its peak. */
static void raise_peaks(struct host_heap *heap, const struct host_bin *of_all, uint64_t bytes)
{
    lock_must_be_held(&heap->context->lock);
    struct bucket_counters *counters = of_all->bucket.counters;
    counter_raise_to(&counters->peak_reserved_bytes,
                     counter_get(&counters->reserved_bytes) + bytes);
    raise_peak_of_key(of_all, bytes);
    raise_peaks_of_device(heap, bytes);
}

/* ---- records ---- */

bool host_record(struct pool *pool, struct host_heap *heap, struct host_bin *bucket,
                 CUdeviceptr address, uint64_t bytes, uint64_t requested, enum host_origin origin)
{
    lock_must_be_held(&heap->context->lock);
    struct block *block = block_records_take(&heap->records, (struct heap *)(void *)heap);
    if (!block)
        return false;
    /* All of this comes before the block can be found, since a free looks it up without a lock. */
    block_set_bytes(block, bytes);
    host_set_bin(block, bucket);
    __atomic_store_n(&block->slot, (uint8_t)origin, __ATOMIC_RELAXED);
    counter_set(&block->requested, requested);
    bool added = host_pieces_add(&heap->pieces, block, address);
    block_set(block, address, BLOCK_LIVE);
    if (!added || !block_table_insert(&host_memory_of(pool)->blocks, address, block)) {
        if (added)
            host_pieces_remove(&heap->pieces, block);
        block_records_put(&heap->records, block);
        return false;
    }
    raise_peaks(heap, bucket, bytes);
    counter_add(&heap->reserved_bytes, bytes);
    atomic_fetch_add_explicit(&pool->machine_bytes, bytes, memory_order_relaxed);
    counter_add(&bucket->bucket.counters->reserved_bytes, bytes);
    return true;
}

void host_count_leaving(const struct block *block)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    counter_subtract(&host_counters_of(block)->reserved_bytes, block->bytes);
}

bool host_claim(struct block *block, CUdeviceptr address)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    bool claimed = block_claim(block, address, BLOCK_LEAVING);
    if (claimed)
        host_count_leaving(block);
    return claimed;
}

void host_count_back(const struct block *block)
{
    lock_of_rank_must_be_held(LOCK_CONTEXT);
    counter_add(&host_counters_of(block)->reserved_bytes, block->bytes);
}

void host_forget(struct pool *pool, struct host_heap *heap, struct block *block)
{
    lock_must_be_held(&heap->context->lock);
    host_pieces_remove(&heap->pieces, block);
    counter_subtract(&heap->reserved_bytes, block->bytes);
    atomic_fetch_sub_explicit(&pool->machine_bytes, block->bytes, memory_order_relaxed);
    block_table_remove(&host_memory_of(pool)->blocks, block_address(block), block);
    block_records_put(&heap->records, block);
}

/* ---- blocks that are freed past the pool ---- */

static struct block *find(struct pool *pool, CUdeviceptr address)
{
    const struct host_memory *memory = host_memory_of(pool);
    return memory ? block_table_find(&memory->blocks, address) : NULL;
}

/* Forgets a live block of the program's, which no call will free through the pool. */
static bool forget_live(struct pool *pool, struct block *block, CUdeviceptr address)
{
    struct host_heap *heap = host_heap_of_block(block);
    context_lock(heap->context);
    bool claimed = host_claim(block, address);
    if (claimed) {
        struct bucket_counters *counters = host_counters_of(block);
        host_count_live(pool, heap, 0 - counter_get(&block->requested));
        host_forget(pool, heap, block);
        bucket_count_lost(counters);
    }
    context_unlock(heap->context);
    return claimed;
}

bool host_heap_freed_outside(struct pool *pool, CUdeviceptr address)
{
    struct block *block = find(pool, address);
    return !block || forget_live(pool, block, address);
}

/* Takes the block out of its bin's list. False if it is not, or no longer, in a list at this
 * address. */
static bool take_listed(struct block *block, CUdeviceptr address)
{
    struct host_bin *bin = host_bin_of(block);
    if (!bin->shard)
        return false;
    host_lock(bin->shard);
    enum block_state state = block_state(block);
    bool listed = host_bin_of(block) == bin && block_address(block) == address &&
                  (state == BLOCK_PENDING || state == BLOCK_CLEAN);
    if (listed) {
        host_count_leaving(block);
        host_take_out(bin, block);
    }
    host_unlock(bin->shard);
    return listed;
}

void host_heap_forget_address(struct pool *pool, CUdeviceptr address)
{
    struct block *block = find(pool, address);
    if (!block || forget_live(pool, block, address))
        return;
    struct host_heap *heap = host_heap_of_block(block);
    context_lock(heap->context);
    if (take_listed(block, address)) {
        struct bucket_counters *counters = host_counters_of(block);
        host_forget(pool, heap, block);
        counter_add(&counters->evictions[EVICTION_CONTEXT], 1);
    } else if (block_state(block) == BLOCK_LEAVING) {
        /* The thread that is releasing the block has not yet recorded the driver's answer. */
        block_table_remove(&host_memory_of(pool)->blocks, address, block);
    }
    context_unlock(heap->context);
}

/* ---- the context's end ---- */

/* Takes a block out of its list. It stays CLEAN or PENDING, which tells forget_visited that it is
 * not on its way to the driver. */
static void detach_for_good(struct host_bin *bin, struct block *block)
{
    counter_subtract(&block->bucket->counters->reserved_bytes, block->bytes);
    detach(bin, block);
    counter_subtract(&bin->counts->moved, 1);
}

static void empty_shard(struct host_shard *shard)
{
    host_lock(shard);
    for (struct bucket *b = shard->bins.first; b; b = b->next) {
        struct host_bin *bin = (struct host_bin *)b;
        while (b->pending.first)
            detach_for_good(bin, b->pending.first);
        while (b->clean.first)
            detach_for_good(bin, b->clean.first);
    }
    counter_set(&shard->live_requested, 0);
    counter_set(&shard->newest, 0);
    host_unlock(shard);
}

struct forgetting {
    struct pool *pool;
    struct host_heap *heap;
};

static void forget_visited(struct block *block, void *argument)
{
    const struct forgetting *forgetting = argument;
    struct bucket_counters *counters = host_counters_of(block);
    bool live = block_state(block) == BLOCK_LIVE, leaving = block_state(block) == BLOCK_LEAVING;
    if (host_origin_of(block) == HOST_REGISTERED)
        host_large_unmap(block_address(block), block->bytes);
    if (live)
        host_count_leaving(block);
    host_forget(forgetting->pool, forgetting->heap, block);
    counter_add(&counters->evictions[EVICTION_CONTEXT], 1);
    /* A block that is on its way to the driver here was freed by the program. */
    counter_add(&counters->frees, live || leaving);
}

/* The driver has freed its memory with the context. Mappings that the pool made are unmapped here.
 */
void host_heap_reset(struct pool *pool, struct context *context)
{
    struct host_heap *heap = host_heap_of(context);
    if (!heap->context)
        return;
    context_lock(context);
    for (struct host_shard *shard = host_shards(heap); shard; shard = shard->next)
        empty_shard(shard);
    struct forgetting forgetting = {pool, heap};
    block_records_visit(&heap->records, forget_visited, &forgetting);
    counter_set(&heap->peak_requested, 0);
    atomic_store_explicit(&heap->aside, NULL, memory_order_relaxed);
    atomic_store_explicit(&heap->waited_for, 0, memory_order_relaxed);
    context_unlock(context);
}
