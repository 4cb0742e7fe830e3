#include "stream_heap.h"

#include "core/base/clock.h"
#include "core/contexts/capture.h"
#include "core/contexts/device.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"
#include "core/housekeeper/housekeeper.h"
#include "core/reclaim/miss.h"
#include "core/reclaim/waiting.h"
#include "mempool.h"
#include "mempool_list.h"
#include "stream_bypass.h"
#include "stream_cut.h"
#include "stream_pending.h"
#include "stream_release.h"
#include "stream_reserve.h"
#include "stream_search.h"
#include "stream_shelf.h"

/* ---- asking the driver ---- */

static CUresult ask_driver(struct miss *miss)
{
    const struct search *search = miss->with;
    struct streams *streams = streams_of(miss->pool);
    uint64_t started = monotonic_now();
    enter_driver();
    mempool_move_begin(streams);
    mempool_block_comes(search->mempool, miss->bytes);
    CUresult result = miss->pool->driver->cuMemAllocFromPoolAsync(
        miss->address, miss->bytes, mempool_handle(search->mempool), search->handle);
    if (result != CUDA_SUCCESS)
        mempool_block_is_gone(search->mempool, miss->bytes);
    mempool_move_end(streams);
    leave_driver();
    bucket_count_call(miss->cost, monotonic_now() - started, result == CUDA_SUCCESS);
    return result;
}

/* Cuts the request out of memory that was freed meanwhile. anywhere: also out of the other sort of
 * segments, for when the driver has no memory. */
static bool cut_instead(struct miss *miss, bool anywhere)
{
    struct search *search = miss->with;
    search->cut = search->whole && stream_cut_for(search, search->shelf, search->bucket,
                                                  miss->address, miss->requested, anywhere);
    return search->cut;
}

static CUresult cut_or_ask_driver(struct miss *miss)
{
    if (cut_instead(miss, false))
        return CUDA_SUCCESS;
    CUresult result = ask_driver(miss);
    return result == CUDA_ERROR_OUT_OF_MEMORY && cut_instead(miss, true) ? CUDA_SUCCESS : result;
}

/* The driver has no memory for a segment: asks for the requested block alone, before anything is
 * released for the rest of a segment. */
static void ask_for_block_alone(struct miss *miss)
{
    const struct search *search = miss->with;
    if (!miss_is_out_of_memory(miss) || !search->whole || miss->bytes <= search->bucket->bytes)
        return;
    device_unreserve(miss->context->device, miss->bytes - search->bucket->bytes);
    miss->bytes = search->bucket->bytes;
    miss_ask(miss);
}

/* The driver can give memory that was freed on another stream to this stream at once, ordered after
 * the free. So the pool releases its pending blocks of other streams to the driver, each ordered
 * after an event. (Not where a limit is in the way: until its work has completed, such memory is
 * not free.) */
static bool release_behind_other_streams(struct miss *miss)
{
    const struct search *search = miss->with;
    struct context *context = miss->context;
    miss->progress.wanted = miss->requested;
    if (!search_may_wait(search) ||
        !may_look_at_streams(miss->pool, context->device, &miss->progress))
        return false;
    stream_pending_query(miss->pool, context->device);
    uint64_t released = stream_release_clean(miss->pool, context->device, UINT64_MAX,
                                             EVICTION_MEMORY, RELEASE_OUT_OF_MEMORY);
    if (context_pin(context, miss->generation)) {
        released += stream_release_behind_every_event(miss->pool, context);
        context_unpin(context);
    }
    return released != 0;
}

/* Asks the driver, and does everything that may help when it is out of memory. The search may find
 * a block of another stream instead. */
static void ask_driver_hard(struct miss *miss, struct search *search)
{
    uint64_t behind = 0;
    miss_ask(miss);
    ask_for_block_alone(miss);
    if (!miss_is_out_of_memory(miss))
        return;
    /* The stream's own order needs no wait. */
    if (stream_release_in_order(miss->pool, search->ref, search->handle, UINT64_MAX,
                                EVICTION_MEMORY) != 0 ||
        stream_release_behind(miss->pool, search->ref, search->context, &behind) != 0)
        miss_ask(miss);
    if (miss_is_out_of_memory(miss) && search_harder(search))
        return;
    if (miss_is_out_of_memory(miss) && release_behind_other_streams(miss))
        miss_ask(miss);
    miss_ask_again(miss);
    if (miss_is_out_of_memory(miss) && behind &&
        may_wait_for_the_driver(miss->pool, miss->context->device, &miss->progress) &&
        stream_release_wait_behind(miss->pool, search->ref.stream, behind))
        miss_ask_again(miss);
    miss_ask_exactly(miss);
}

/* ---- the outcome ---- */

static void note_given(struct device *device, uint64_t bytes)
{
    struct stream_device *of_device = stream_device(device);
    uint64_t reserved =
        atomic_fetch_add_explicit(&of_device->reserved_bytes, bytes, memory_order_relaxed) + bytes;
    mempool_raise(&of_device->peak_reserved, reserved);
    counter_raise_shared(&of_device->counters->peak_reserved, reserved);
    device_count_given(device, bytes);
}

static struct stream_block *record_block(const struct miss *miss, struct shelf *shelf,
                                         struct bucket *bucket)
{
    lock_must_be_held(&shelf->stream->lock);
    const struct search *search = miss->with;
    struct streams *streams = streams_of(miss->pool);
    struct stream_block *block = stream_block_take(&streams->records);
    if (block) {
        block_set(&block->block, *miss->address, BLOCK_UNUSED);
        block_set_bytes(&block->block, miss->bytes);
    }
    if (!block || !block_table_insert(&streams->blocks, *miss->address, &block->block)) {
        /* Without a record, only the program and the driver know of the memory. */
        if (block)
            stream_block_put(&streams->records, block);
        return NULL;
    }
    block->block.bucket = bucket;
    block->mempool = search->mempool;
    mempool_use(block->mempool);
    block->context = miss->context;
    block->context_generation = miss->generation;
    atomic_store_explicit(&block->shelf, shelf, memory_order_relaxed);
    note_given(miss->context->device, miss->bytes);
    shelf_count_in(shelf, bucket, block);
    return block;
}

/* If a capture began meanwhile and has the stream, the memory is the graph's, and in no memory
 * pool. */
static bool is_in_its_pool(const struct miss *miss)
{
    const struct search *search = miss->with;
    const struct driver *driver = miss->pool->driver;
    CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
    CUmemoryPool handle = NULL;
    void *value = &handle;
    if (!program_captures(&miss->pool->captures))
        return true;
    if (!driver->cuPointerGetAttributes)
        return false;
    enter_driver();
    CUresult result = driver->cuPointerGetAttributes(1, &attribute, &value, *miss->address);
    leave_driver();
    return result == CUDA_SUCCESS && handle && handle == mempool_handle(search->mempool);
}

/* If the pool still has a record at this address, somebody freed it past the pool. */
static void forget_address(const struct miss *miss)
{
    if (miss->result == CUDA_SUCCESS)
        TELL_KINDS(miss->pool, forget_address, miss->pool, *miss->address);
}

/* Without a record, only the program and the driver know of the memory, so it must be as large as
 * the program has asked. No capture forbids the calls. */
static void ask_for_own_size(struct miss *miss)
{
    const struct search *search = miss->with;
    const struct driver *driver = miss->pool->driver;
    if (miss->bytes == miss->requested)
        return;
    struct relaxed_mode mode = enter_driver_relaxed(driver);
    if (driver->cuMemFreeAsync(*miss->address, search->handle) == CUDA_SUCCESS)
        miss->result = driver->cuMemAllocFromPoolAsync(
            miss->address, miss->requested, mempool_handle(search->mempool), search->handle);
    leave_driver_relaxed(driver, mode);
    forget_address(miss);
}

/* The pool does not keep a record of the block: takes it out of the counts of reserved bytes. */
static void leave_to_program(struct miss *miss)
{
    const struct search *search = miss->with;
    device_unreserve(miss->context->device, miss->bytes);
    if (miss->result != CUDA_SUCCESS)
        return;
    ask_for_own_size(miss);
    mempool_block_is_gone(search->mempool, miss->bytes);
}

static CUresult finish_miss(struct miss *miss, struct shelf *shelf, struct bucket *bucket)
{
    struct pool *pool = miss->pool;
    const struct search *search = miss->with;
    /* A block that is smaller than its bucket must not serve that bucket again. A failure counts in
     * the bucket. */
    struct bucket *of_block = search->whole && miss->bytes == search->whole->bytes ? search->whole
                              : miss->bytes == bucket->bytes                       ? bucket
                                                             : &shelf->unkept.bucket;
    if (of_block == &shelf->unkept.bucket && miss->result == CUDA_SUCCESS)
        bucket = of_block;
    bool may_record = miss->result == CUDA_SUCCESS && is_in_its_pool(miss);
    if (miss->result == CUDA_SUCCESS)
        miss_note_met(miss);
    forget_address(miss);
    lock_take(&shelf->stream->lock, LOCK_STREAM);
    miss_count_request(miss, bucket->counters);
    struct stream_block *block = may_record ? record_block(miss, shelf, of_block) : NULL;
    if (block) {
        struct bucket *of_part = bucket;
        shelf->stream->given.missed++;
        if (of_block != bucket)
            block = stream_cut_new(shelf, block, &of_part);
        *miss->address = shelf_hand_out(shelf, of_part, block, miss->requested);
        shelf_note_used(shelf, of_part);
    }
    miss_count_outcome(miss, bucket->counters, block);
    lock_give(&shelf->stream->lock);
    if (!block)
        leave_to_program(miss);
    mempool_note_use(pool, search->mempool);
    housekeeper_look_after_miss(pool);
    return miss->result;
}

/* Moves a block that a search has found to this shelf. Hands it, or a part that is cut out of it,
 * to the program. Returns the address. */
static CUdeviceptr stream_adopt(const struct search *search, struct shelf *shelf,
                                struct bucket *bucket, struct stream_block *block, size_t bytes,
                                enum hit hit)
{
    struct stream *stream = shelf->stream, *former = shelf_of(block)->stream;
    lock_take(&stream->lock, LOCK_STREAM);
    bool whole = search->whole && block->block.bytes > bucket->bytes;
    counter_set(&block->block.epoch, 0);
    block->block.bucket = whole ? search->whole : bucket;
    atomic_store_explicit(&block->shelf, shelf, memory_order_relaxed);
    shelf_count_in(shelf, block->block.bucket, block);
    if (whole)
        block = stream_cut_new(shelf, block, &bucket);
    thread_count_wait(bucket->counters);
    CUdeviceptr address = shelf_hand_out_hit(shelf, bucket, block, bytes, hit);
    stream->given.adopted++;
    lock_give(&stream->lock);
    stream_block_has_a_place(former);
    return address;
}

static CUresult hand_out_found(const struct miss *miss, struct shelf *shelf, struct bucket *bucket)
{
    const struct search *search = miss->with;
    *miss->address =
        stream_adopt(search, shelf, bucket, search->found, miss->requested, search->found_by);
    return CUDA_SUCCESS;
}

static CUresult refuse(struct miss *miss, struct shelf *shelf, struct bucket *bucket)
{
    lock_take(&shelf->stream->lock, LOCK_STREAM);
    miss_count_refusal(miss, bucket->counters);
    lock_give(&shelf->stream->lock);
    return miss->result;
}

/* ---- a miss ---- */

/* Steps 4 to 6 of stream_heap.h. */
static CUresult stream_miss(struct pool *pool, struct shelf *shelf, struct bucket *bucket,
                            CUdeviceptr *address, size_t requested, struct search *search)
{
    struct context *context = search->context;
    if (search->whole)
        stream_cut_aim_for_driver(search);
    struct miss miss = {.pool = pool,
                        .context = context,
                        .generation = search->generation,
                        .requested = requested,
                        .bytes = search->whole   ? search->whole->bytes
                                 : bucket->bytes ? bucket->bytes
                                                 : requested,
                        .in_stream_order = true,
                        .ask = search->whole ? cut_or_ask_driver : ask_driver,
                        .with = search,
                        .cost = bucket->counters,
                        .address = address};
    if (miss_ask_beyond_device(&miss))
        return finish_miss(&miss, shelf, bucket);
    if (stream_reserve_before_growth(pool, context, search->mempool, miss.bytes, search->ref,
                                     search->handle))
        bypass_note_at_bound(shelf->stream);
    if (!miss_reserve(&miss)) {
        if (search_harder(search))
            return hand_out_found(&miss, shelf, bucket);
        if (cut_instead(&miss, true))
            return CUDA_SUCCESS;
        if (!miss_reserve_exactly(&miss))
            return refuse(&miss, shelf, bucket);
    }
    ask_driver_hard(&miss, search);
    if (!search->cut && !search->found)
        return finish_miss(&miss, shelf, bucket);
    device_unreserve(context->device, miss.bytes);
    return search->cut ? CUDA_SUCCESS : hand_out_found(&miss, shelf, bucket);
}

/* ---- allocations ---- */

/* For a request that no block in the stream's own order serves. */
static bool allocate_slowly(struct pool *pool, struct stream_ref ref, CUstream handle,
                            struct shelf *shelf, struct bucket *bucket, CUdeviceptr *address,
                            size_t bytes, CUresult *result)
{
    struct search search;
    struct stream_block *block = NULL;
    enum hit hit = HIT_CLEAN;
    if (!search_begin(&search, pool, ref, handle, shelf, bucket))
        return false;
    *result = CUDA_SUCCESS;
    if (bucket->bytes && shelf_splits(ref.stream)) {
        if (stream_cut_after_asking(&search, shelf, bucket, address, bytes))
            return true;
        stream_cut_search_segment(&search, shelf, bucket);
    }
    if (bucket->bytes && !search_replaces_taken(&search, search.whole ? search.whole : bucket))
        block = search_others(&search, &hit);
    if (!block && bucket->bytes && search.host_only && search_asks(&search)) {
        block = search_ask_about_own(&search, bucket);
        hit = HIT_QUERIED;
    }
    if (block)
        *address = stream_adopt(&search, shelf, bucket, block, bytes, hit);
    else
        *result = stream_miss(pool, shelf, bucket, address, bytes, &search);
    /* Any other error than out of memory the driver must report for the program's own call. */
    return *result == CUDA_SUCCESS || *result == CUDA_ERROR_OUT_OF_MEMORY;
}

bool stream_allocate(struct pool *pool, CUdeviceptr *address, size_t bytes, struct mempool *mempool,
                     struct stream_ref ref, CUstream handle, CUresult *result)
{
    struct stream *stream = ref.stream;
    struct stream_block *block = NULL;
    uint64_t rounded = size_class_round(&stream->on_device->classes, bytes);
    lock_take(&stream->lock, LOCK_STREAM);
    bool served = stream_is(ref) && shelf_is_usable(stream->context);
    struct shelf *shelf = served ? shelf_get(pool, stream, mempool) : NULL;
    if (!shelf) {
        lock_give(&stream->lock);
        return false;
    }
    struct bucket *bucket = rounded ? shelf_get_bucket(pool, shelf, rounded) : NULL;
    if (bucket && shelf_splits(stream))
        block = stream_cut_own(stream, shelf, bucket, false);
    else if (bucket)
        block = search_take_own(stream, bucket);
    else
        bucket = &shelf->unkept.bucket;
    if (block)
        shelf_hand_out_hit(shelf, bucket, block, bytes, HIT_CLEAN);
    lock_give(&stream->lock);
    if (!block)
        return allocate_slowly(pool, ref, handle, shelf, bucket, address, bytes, result);
    *address = block_address(&block->block);
    *result = CUDA_SUCCESS;
    return true;
}

/* The first such request makes the counters. If two threads make them at once, one set stays
 * unused. */
static struct bucket_counters *counters_of_passed_by(struct pool *pool, const struct device *device)
{
    _Atomic(struct bucket_counters *) *place = &stream_device(device)->passed_by;
    struct bucket_counters *counters = atomic_load_explicit(place, memory_order_relaxed);
    if (!counters) {
        counters =
            figures_bucket(&pool->figures, KIND_STREAM_ORDERED, STREAMS_MAX, device->ordinal, 0);
        atomic_store_explicit(place, counters, memory_order_relaxed);
    }
    return counters;
}

void stream_count_passed_by(struct pool *pool, struct device *device, uint64_t bytes,
                            CUresult result)
{
    struct bucket_counters *counters = counters_of_passed_by(pool, device);
    bool met = result == CUDA_SUCCESS;
    if (!counters)
        return;
    counter_add_shared(&counters->requested_bytes, bytes);
    counter_add_shared(&counters->allocation_calls, 1);
    counter_add_shared(bucket_outcome(counters, met, result == CUDA_ERROR_OUT_OF_MEMORY), 1);
    if (!met)
        return;
    counter_add_shared(&counters->evictions[EVICTION_CONTEXT], 1);
    counter_add_shared(&counters->frees, 1);
}
