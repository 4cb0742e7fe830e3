#include "heap.h"

#include <stdlib.h>

#include "core/base/clock.h"
#include "core/contexts/device.h"
#include "core/contexts/pool_state.h"

/* ---- what core/segments asks of the heap ---- */

static struct heap *heap_of_segments(struct segments *segments)
{
    return (struct heap *)((char *)segments - offsetof(struct heap, segments));
}

static struct block *take_record(struct segments *segments, const struct block *like)
{
    (void)like;
    struct heap *heap = heap_of_segments(segments);
    return block_records_take(&heap->records, heap);
}

static void put_record(struct segments *segments, struct block *record)
{
    block_records_put(&heap_of_segments(segments)->records, record);
}

static const struct segments_kind heap_segments_kind = {
    .lock = LOCK_CONTEXT, .take_record = take_record, .put_record = put_record};

/* ---- buckets ---- */

static bool bucket_init(struct heap *heap, struct bucket *bucket, uint64_t bytes)
{
    bucket->bytes = bytes;
    bucket->counters =
        figures_bucket(heap->figures, KIND_DEVICE, heap->figures_id, heap->device, bytes);
    return bucket->counters != NULL;
}

static struct bucket *add_bucket(struct heap *heap, uint64_t bytes)
{
    if (!bucket_set_make_room(&heap->buckets))
        return NULL;
    struct device_bucket *made = calloc(1, sizeof *made);
    if (!made || !bucket_init(heap, &made->bucket, bytes)) {
        free(made);
        return NULL;
    }
    made->bin = bytes <= CACHE_LARGEST && heap->bins < CACHE_NO_BIN ? heap->bins++ : CACHE_NO_BIN;
    bucket_set_add(&heap->buckets, &made->bucket);
    return &made->bucket;
}

bool heap_init(struct pool *pool, struct context *context)
{
    struct heap *heap = heap_of(context);
    const struct device_settings *settings = &pool->settings.device;
    heap->uses_in_a_row = HEAP_USES_ALONE;
    heap->figures = &pool->figures;
    heap->figures_id = context->figures_id;
    heap->device = context->device->ordinal;
    heap->counters = context->counters;
    heap->blocks_per_bucket = settings->caps.blocks_per_bucket;
    bucket_settings_resolve(&settings->buckets, context->device->total_bytes, &heap->classes);
    atomic_init(&heap->closed, (settings->free_synchronizes ? CLOSED_SYNCHRONISING : 0u) |
                                   (pool->expedited ? 0u : CLOSED_WEAKLY));
    heap->unkept.bin = CACHE_NO_BIN;
    heap->pages.table = &pool->blocks;
    heap->segments = (struct segments){.kind = &heap_segments_kind,
                                       .table = &pool->blocks,
                                       .small = settings->segments.small,
                                       .large = settings->segments.large};
    /* The list of buckets ends with unkept, which is never looked up by a size. */
    heap->buckets.first = &heap->unkept.bucket;
    return bucket_set_make_room(&heap->buckets) && bucket_init(heap, &heap->unkept.bucket, 0);
}

struct bucket *heap_bucket(struct heap *heap, uint64_t bytes)
{
    heap_lock_must_be_held(heap);
    struct bucket *bucket = bucket_set_find(&heap->buckets, bytes);
    if (!bucket)
        bucket = add_bucket(heap, bytes);
    return bucket ? bucket : &heap->unkept.bucket;
}

uint8_t heap_slot_of_this_thread(void)
{
    return (uint8_t)(thread_state.id % HEAP_SLOTS);
}

/* Counts the pending bytes, also by slot: policy_is_ahead compares the slots. */
static void count_pending(struct heap *heap, struct block *block)
{
    uint64_t *pending = &heap->pending_by_slot[block->slot];
    counter_add(&heap->pending_bytes, block->bytes);
    heap->slots_with_pending += *pending == 0;
    *pending += block->bytes;
    heap->pending_slots |= UINT64_C(1) << block->slot;
}

static void count_no_longer_pending(struct heap *heap, struct block *block)
{
    uint64_t *pending = &heap->pending_by_slot[block->slot];
    counter_subtract(&heap->pending_bytes, block->bytes);
    *pending -= block->bytes;
    heap->slots_with_pending -= *pending == 0;
    heap->pending_slots &= ~((uint64_t)(*pending == 0) << block->slot);
}

static inline void take_pending(struct heap *heap, struct block *block)
{
    block_list_remove(&block->bucket->pending, block, LINK_BUCKET);
    block_list_remove(&heap->pending, block, LINK_HEAP);
    count_no_longer_pending(heap, block);
}

/* Whether a clean block may be cut. An uncached block may not, since it is released to the driver
 * next. */
static bool may_be_cut(const struct heap *heap, const struct block *block)
{
    return heap_splits(heap) && block->bucket->bytes != 0;
}

static inline void take_clean(struct heap *heap, struct block *block)
{
    if (may_be_cut(heap, block))
        segments_unlist(&heap->segments, block);
    block_list_remove(&block->bucket->clean, block, LINK_BUCKET);
    counter_subtract(&block->bucket->counters->clean_bytes, block->bytes);
    counter_subtract(&heap->clean_bytes, block->bytes);
}

bool heap_enter_table(struct pool *pool, struct heap *heap, struct block *block)
{
    heap_lock_must_be_held(heap);
    if (!block_table_insert(&pool->blocks, block_address(block), block))
        return false;
    page_counts_come(&heap->pages, block);
    return true;
}

void heap_leave_table(struct pool *pool, struct heap *heap, struct block *block)
{
    heap_lock_must_be_held(heap);
    bool was_there = block_table_remove(&pool->blocks, block_address(block), block);
    if (was_there && block_state(block) != BLOCK_SPARE)
        page_counts_go(&heap->pages, block);
}

void heap_detach_free(struct heap *heap, struct block *block)
{
    heap_lock_must_be_held(heap);
    if (block_state(block) == BLOCK_CLEAN)
        take_clean(heap, block);
    else
        take_pending(heap, block);
    block->bucket->free_blocks--;
    counter_subtract(&block->bucket->counters->free_bytes, block->bytes);
    page_counts_unlist(&heap->pages, block);
}

void heap_begin_leaving(struct heap *heap, struct block *block)
{
    heap_lock_must_be_held(heap);
    counter_subtract(&block->bucket->counters->reserved_bytes, block->bytes);
    heap_detach_free(heap, block);
    block_set_state(block, BLOCK_LEAVING);
}

void heap_count_back(struct block *block)
{
    heap_lock_must_be_held(block->heap);
    struct bucket *bucket = block->bucket;
    bucket->free_blocks++;
    counter_add(&bucket->counters->free_bytes, block->bytes);
    counter_add(&bucket->counters->reserved_bytes, block->bytes);
    page_counts_list(&block->heap->pages, block);
}

void heap_count_spare(struct heap *heap, uint64_t bytes)
{
    heap_lock_must_be_held(heap);
    struct bucket_counters *counters = heap->unkept.bucket.counters;
    counter_add(&counters->reserved_bytes, bytes);
    counter_add(&counters->free_bytes, bytes);
    counter_add(&counters->clean_bytes, bytes);
    counter_add(&heap->counters->segments.spare_bytes, bytes);
    counter_raise_to(&counters->peak_reserved_bytes, counter_get(&counters->reserved_bytes));
}

void heap_count_no_longer_spare(struct heap *heap, uint64_t bytes)
{
    heap_lock_must_be_held(heap);
    struct bucket_counters *counters = heap->unkept.bucket.counters;
    counter_subtract(&heap->counters->segments.spare_bytes, bytes);
    counter_subtract(&counters->clean_bytes, bytes);
    counter_subtract(&counters->free_bytes, bytes);
    counter_subtract(&counters->reserved_bytes, bytes);
}

void heap_put_whole(struct heap *heap, struct block *whole)
{
    heap_lock_must_be_held(heap);
    whole->bucket = heap_bucket(heap, whole->bytes);
    counter_set(&whole->epoch, 0);
    atomic_store_explicit(&whole->bin, device_bucket(whole->bucket)->bin, memory_order_relaxed);
    heap_count_no_longer_spare(heap, whole->bytes);
    page_counts_close(&heap->pages, whole);
    heap_count_back(whole);
    counter_raise_to(&whole->bucket->counters->peak_reserved_bytes,
                     counter_get(&whole->bucket->counters->reserved_bytes));
    heap_add_clean(heap, whole);
}

/* Merges a free part, which is in no list, into its segment. Its bucket counts it no more. */
static void merge_part(struct heap *heap, struct block *part)
{
    struct bucket *bucket = part->bucket;
    counter_subtract(&bucket->counters->reserved_bytes, part->bytes);
    bucket->free_blocks--;
    counter_subtract(&bucket->counters->free_bytes, part->bytes);
    part->bucket = &heap->unkept.bucket;
    heap_count_spare(heap, part->bytes);
    struct block *whole = segments_merge(&heap->segments, part);
    if (!whole)
        return;
    struct heap_counters *counters = heap->counters;
    counter_subtract(&counters->segments.count, 1);
    counter_subtract(&counters->segments.bytes, whole->bytes);
    heap_put_whole(heap, whole);
}

void heap_add_clean(struct heap *heap, struct block *block)
{
    heap_lock_must_be_held(heap);
    struct bucket *bucket = block->bucket;
    if (block_is_part(block)) {
        merge_part(heap, block);
        return;
    }
    block_set_state(block, BLOCK_CLEAN);
    if (may_be_cut(heap, block))
        segments_list(&heap->segments, block);
    block_list_append(&bucket->clean, block, LINK_BUCKET);
    counter_add(&bucket->counters->clean_bytes, block->bytes);
    counter_add(&heap->clean_bytes, block->bytes);
}

void heap_forget_block(struct pool *pool, struct heap *heap, struct block *block)
{
    heap_lock_must_be_held(heap);
    struct device *device = context_of_heap(heap)->device;
    enum block_state state = block_state(block);
    if (state == BLOCK_SPARE) {
        /* A segment's head, which has no record below it, is in no tree. */
        if (block_is_part(block) && block->below)
            segments_unlist(&heap->segments, block);
        heap_count_no_longer_spare(heap, block->bytes);
    } else if (state == BLOCK_LIVE || state == BLOCK_KEPT) {
        counter_subtract(&block->bucket->counters->reserved_bytes, block->bytes);
        counter_subtract(&heap->live_requested, counter_get(&block->requested));
    } else if (state != BLOCK_LEAVING) {
        counter_subtract(&block->bucket->counters->reserved_bytes, block->bytes);
        heap_detach_free(heap, block);
    }
    counter_subtract(&heap->reserved_bytes, block->bytes);
    heap_leave_table(pool, heap, block);
    device_unreserve(device, block->bytes);
    device_count_returned(device, block->bytes);
    block_records_put(&heap->records, block);
}

bool heap_claim_live(struct heap *heap, struct block *block, CUdeviceptr address,
                     enum block_state state)
{
    heap_lock_must_be_held(heap);
    if (!block_claim(block, address, state))
        return false;
    counter_subtract(&heap->live_requested, counter_get(&block->requested));
    if (state == BLOCK_LEAVING)
        counter_subtract(&block->bucket->counters->reserved_bytes, block->bytes);
    return true;
}

static void make_clean(struct heap *heap, struct block *block)
{
    take_pending(heap, block);
    heap_add_clean(heap, block);
}

void heap_sweep(struct context *context)
{
    lock_must_be_held(&context->lock);
    struct heap *heap = heap_of(context);
    uint64_t clean = epoch_clean(&context->epochs);
    while (heap->pending.first && counter_get(&heap->pending.first->epoch) <= clean)
        make_clean(heap, heap->pending.first);
}

/* Inserts the block by its stamp. The search begins at the end, since blocks from a thread's cache
 * are seldom much older than the newest ones of the list. */
static void insert_pending(struct block_list *list, struct block *block, enum block_link link)
{
    uint64_t stamp = counter_get(&block->epoch);
    struct block *before = list->last;
    while (before && counter_get(&before->epoch) > stamp)
        before = before->links[link].previous;
    block_list_insert_after(list, before, block, link);
}

/* A cache hands over the blocks of one cache_segment in a row, the newest first. Each of them is
 * inserted before the one that came before it, without a search. So the lists have the oldest
 * first. */
static void insert_by_stamp(struct heap *heap, struct block *block)
{
    struct block *last = heap->last_accepted;
    bool is_next = last && block_state(last) == BLOCK_PENDING && last->bucket == block->bucket &&
                   counter_get(&last->epoch) == counter_get(&block->epoch);
    if (is_next) {
        struct block *in_bucket = last->links[LINK_BUCKET].previous;
        struct block *in_heap = last->links[LINK_HEAP].previous;
        block_list_insert_after(&block->bucket->pending, in_bucket, block, LINK_BUCKET);
        block_list_insert_after(&heap->pending, in_heap, block, LINK_HEAP);
    } else {
        insert_pending(&block->bucket->pending, block, LINK_BUCKET);
        insert_pending(&heap->pending, block, LINK_HEAP);
    }
    heap->last_accepted = block;
}

/* Counts a block that has become free, whichever list it will join. */
static void note_free_block(struct heap *heap, const struct block *block)
{
    struct bucket *bucket = block->bucket;
    if (++bucket->free_blocks + device_bucket(bucket)->granted_to_caches > heap->blocks_per_bucket)
        heap->bucket_may_exceed_cap = true;
    counter_add(&bucket->counters->free_bytes, block->bytes);
    page_counts_list(&heap->pages, block);
}

static void accept_pending(struct heap *heap, struct block *block)
{
    insert_by_stamp(heap, block);
    block_set_state(block, BLOCK_PENDING);
    count_pending(heap, block);
    if (counter_get(&block->epoch) == epoch_current(&context_of_heap(heap)->epochs)) {
        heap->frees_since_fence++;
        heap->bytes_since_fence += block->bytes;
    }
}

void heap_accept(struct heap *heap, struct block *block, uint8_t slot)
{
    heap_lock_must_be_held(heap);
    block->slot = slot;
    note_free_block(heap, block);
    if (counter_get(&block->epoch) <= epoch_clean(&context_of_heap(heap)->epochs))
        heap_add_clean(heap, block);
    else
        accept_pending(heap, block);
}

void heap_add_pending(struct heap *heap, struct block *block, uint64_t stamp)
{
    heap_lock_must_be_held(heap);
    struct bucket *bucket = block->bucket;
    counter_subtract(&heap->live_requested, counter_get(&block->requested));
    counter_set(&block->epoch, stamp);
    block->freed_at = monotonic_now();
    block->slot = heap_slot_of_this_thread();
    note_free_block(heap, block);
    block_list_append(&bucket->pending, block, LINK_BUCKET);
    block_list_append(&heap->pending, block, LINK_HEAP);
    counter_add(&bucket->counters->frees, 1);
    count_pending(heap, block);
    heap->frees_since_fence++;
    heap->bytes_since_fence += block->bytes;
}

void heap_put_back_pending(struct pool *pool, struct heap *heap, struct block *block)
{
    heap_lock_must_be_held(heap);
    if (!heap_enter_table(pool, heap, block))
        return;
    block_set_state(block, BLOCK_PENDING);
    insert_pending(&block->bucket->pending, block, LINK_BUCKET);
    insert_pending(&heap->pending, block, LINK_HEAP);
    heap_count_back(block);
    count_pending(heap, block);
}

void heap_set_closed(struct heap *heap, uint32_t bit, bool set)
{
    heap_lock_must_be_held(heap);
    /* Sequentially consistent, like the load in cache_enter. */
    bool is_set = (atomic_load(&heap->closed) & bit) != 0;
    if (set && !is_set)
        atomic_fetch_or(&heap->closed, bit);
    else if (is_set && !set)
        atomic_fetch_and(&heap->closed, ~bit);
}
