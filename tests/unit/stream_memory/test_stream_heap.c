/*
 * Stream-ordered blocks: which one an allocation gets.
 */
#include "streams_fixture.h"

#include <unistd.h>

#include "core/base/clock.h"

TestSuite(stream_heap, .init = set_up_streams, .fini = tear_down, .timeout = 20);

Test(stream_heap, the_same_stream_gets_it_back_at_once)
{
    start_streams();
    CUdeviceptr block = leave_pending(one, MIB);
    fake_trace();
    cr_assert_eq(take_on(one, MIB - 1000), block);
    cr_assert_str_eq(fake_trace(), "");
    cr_assert_eq(counted_streams().hits.clean, 1);
}

Test(stream_heap, another_stream_does_not)
{
    start_streams();
    CUdeviceptr block = leave_pending(one, MIB);
    cr_assert_neq(take_on(other, MIB), block);
    cr_assert_eq(counted_streams().misses, 2);
}

Test(stream_heap, another_stream_gets_what_is_over)
{
    start_streams();
    CUdeviceptr block = leave_pending(one, MIB);
    synchronise_stream(one);
    cr_assert_eq(take_on(other, MIB), block);
    cr_assert_eq(bytes_of(one).live + bytes_of(one).cached, 0);
    cr_assert_eq(bytes_of(other).live, MIB);
}

Test(stream_heap, its_own_blocks_come_first)
{
    start_streams();
    CUdeviceptr theirs = leave_pending(one, MIB), own = leave_pending(other, MIB);
    synchronise_stream(one);
    cr_assert_eq(take_on(other, MIB), own);
    cr_assert_eq(take_on(other, MIB), theirs);
}

Test(stream_heap, an_event_tells_that_it_is_over)
{
    start_streams();
    let_fences_be_wanted(one, other, MIB);
    CUdeviceptr block = leave_pending(one, MIB);
    fake_stream_is_done(one);
    cr_assert_eq(take_on(other, MIB), block);
    cr_assert_eq(counted_streams().hits.queried, 1);
    cr_assert_eq(fake_stream_calls().waits, 0);
}

Test(stream_heap, where_the_wait_fails_the_block_stays)
{
    start_streams();
    free_on(other, take_on(other, 4096));
    let_memory_be_short(true);
    CUdeviceptr block = leave_pending(one, MIB);
    fake_stream_fail_waits(2);
    fake_stream_refuse_memory(2);
    cr_assert_neq(take_on(other, MIB), block);
    cr_assert_eq(bytes_of(one).pending, MIB);
}

/* Many streams times many sizes are more than the figures have room for: each is counted all the
 * same, in them. */
Test(stream_heap, counts_are_right_where_the_figures_are_full, .timeout = 120)
{
    static CUstream streams[240];
    uint64_t pairs = 0, bytes = 0;
    figures_are_full = true;
    start_streams();
    for (unsigned i = 0; i < 240; i++)
        streams[i] = fake_stream();
    for (unsigned doubling = 9; doubling < 19; doubling++)
        for (unsigned step = 8; step < 16; step++)
            for (unsigned i = 0; i < 240; i++, pairs++) {
                bytes += (uint64_t)step << doubling;
                free_on(streams[i], take_on(streams[i], (size_t)step << doubling));
            }
    struct report_counters totals = counted_streams();
    cr_assert_eq(totals.requests, pairs);
    cr_assert_eq(totals.frees, pairs);
    cr_assert_eq(totals.requested_bytes, bytes);
    cr_assert_eq(totals.rounded_bytes, bytes);
    cr_assert_eq(totals.live_bytes, 0);
    struct device *device = registry_devices(&pool->registry);
    cr_assert_eq(stream_device(device)->reserved_bytes, totals.cached_bytes + totals.pending_bytes);
    pool_trim(pool);
    struct stream_bytes left = stream_sum(pool, device);
    cr_assert_eq(stream_device(device)->reserved_bytes, left.cached + left.pending);
    const struct figures_header *header = figures_header(&pool->figures);
    cr_assert_gt(pairs * sizeof(struct figures_bucket), FIGURES_BYTES_MAX - FIGURES_BYTES_TO_SPARE);
    cr_assert_leq(counter_get(&header->used), FIGURES_BYTES_MAX - FIGURES_BYTES_TO_SPARE / 2);
    cr_assert_eq(counter_get(&header->lost), 0);
    cr_assert_null(pool->figures.outside);
}

/* ---- captures that begin in the middle of a call ---- */

static struct driver below;

static CUresult allocate_as_a_capture_begins(CUdeviceptr *address, size_t bytes,
                                             CUmemoryPool memory_pool, CUstream stream)
{
    CUresult result = below.cuMemAllocFromPoolAsync(address, bytes, memory_pool, stream);
    begin_capture(stream);
    return result;
}

Test(stream_heap, memory_that_a_capture_has_got_is_the_graphs)
{
    start_streams();
    below = *driver;
    driver->cuMemAllocFromPoolAsync = allocate_as_a_capture_begins;
    CUdeviceptr block = take_on(one, MIB);
    driver->cuMemAllocFromPoolAsync = below.cuMemAllocFromPoolAsync;
    end_capture(one);
    cr_assert_eq(pool_generation(pool, block), 0);
    cr_assert_eq(pool_device_bytes(pool, 0).live, 0);
}

static CUstream to_be_captured;
static bool is_of_graph;
static size_t asked_for; /* last */

static CUresult allocate_as_another_begins(CUdeviceptr *address, size_t bytes,
                                           CUmemoryPool memory_pool, CUstream stream)
{
    CUresult result = below.cuMemAllocFromPoolAsync(address, bytes, memory_pool, stream);
    asked_for = bytes;
    if (!program_captures(&pool->captures))
        begin_capture(to_be_captured);
    return result;
}

static CUresult tell_pool(unsigned int count, CUpointer_attribute *attributes, void **values,
                          CUdeviceptr address)
{
    (void)address;
    cr_assert_eq(count, 1);
    cr_assert_eq(attributes[0], CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
    *(CUmemoryPool *)values[0] = is_of_graph ? NULL : (CUmemoryPool)0x100;
    return CUDA_SUCCESS;
}

/* A capture of the stream begins once the driver has given the memory. */
static CUdeviceptr take_as_one_begins(CUstream captured, bool of_graph, size_t bytes)
{
    to_be_captured = captured;
    is_of_graph = of_graph;
    below = *driver;
    driver->cuMemAllocFromPoolAsync = allocate_as_another_begins;
    driver->cuPointerGetAttributes = tell_pool;
    CUdeviceptr block = take_on(one, bytes);
    driver->cuMemAllocFromPoolAsync = below.cuMemAllocFromPoolAsync;
    end_capture(captured);
    return block;
}

Test(stream_heap, memory_that_no_capture_has_got_is_the_pools)
{
    start_streams();
    CUdeviceptr block = take_as_one_begins(other, false, 700000);
    cr_assert_neq(pool_generation(pool, block), 0);
    cr_assert_eq(pool_ask_pointer(pool, block).bytes, 700000);
    cr_assert_eq(fake_misuses(), 0);
    free_on(one, block);
    cr_assert_eq(take_on(one, 700000), block);
}

/* Nobody else says how large it is. */
Test(stream_heap, a_graphs_memory_is_as_large_as_it_was_asked_for)
{
    start_streams();
    CUdeviceptr block = take_as_one_begins(one, true, 700000);
    cr_assert_eq(pool_generation(pool, block), 0);
    cr_assert_eq(asked_for, 700000);
    cr_assert_eq(fake_bytes_used(0), 700000);
    cr_assert_eq(pool_device_bytes(pool, 0).live, 0);
}

static CUresult record_as_a_capture_begins(CUevent event, CUstream stream)
{
    begin_capture(stream);
    return below.cuEventRecord(event, stream);
}

Test(stream_heap, an_event_that_a_capture_has_got_stands_for_nothing)
{
    start_streams();
    free_on(other, take_on(other, 4096));
    let_memory_be_short(true);
    below = *driver;
    driver->cuEventRecord = record_as_a_capture_begins;
    CUdeviceptr block = leave_pending(one, MIB);
    driver->cuEventRecord = below.cuEventRecord;
    end_capture(one);
    unsigned waits = fake_stream_calls().waits;
    fake_stream_refuse_memory(2);
    cr_assert_neq(take_on(other, MIB), block);
    cr_assert_eq(fake_stream_calls().waits, waits);
}

static CUdeviceptr given_out_again;

static CUresult give_it_out_and_wait(CUstream stream, CUevent event, unsigned int flags)
{
    (void)stream;
    (void)event;
    (void)flags;
    stream_block_forget_address(pool, given_out_again);
    return CUDA_ERROR_UNKNOWN;
}

/* Its memory seems to be the driver's again, while it is in no stream's hands. */
Test(stream_heap, a_block_between_two_streams_is_taken_once)
{
    start_streams();
    free_on(other, take_on(other, 4096));
    let_memory_be_short(true);
    given_out_again = leave_pending(one, MIB);
    driver->cuStreamWaitEvent = give_it_out_and_wait;
    fake_stream_refuse_memory(2);
    cr_assert_neq(take_on(other, MIB), given_out_again);
    cr_assert_eq(bytes_of(one).pending, MIB);
    cr_assert_eq(bytes_of(one).live, 0);
    cr_assert_eq(take_on(one, MIB), given_out_again);
}

/* What it would wait for may wait for the stream. */
Test(stream_heap, nor_is_it_made_to_wait_while_there_is_memory)
{
    start_streams();
    let_fences_be_wanted(one, other, MIB);
    CUdeviceptr block = leave_pending(one, MIB);
    unsigned waits = fake_stream_calls().waits;
    cr_assert_neq(take_on(other, MIB), block);
    cr_assert_eq(fake_stream_calls().waits, waits);
}

/* What is too small for the request goes back to the driver behind that free. */
static unsigned waits_out_of_memory(bool internal_dependencies)
{
    settings.stream_ordered.reuse.internal_dependencies = internal_dependencies;
    start_streams();
    free_on(other, take_on(other, 4096));
    let_memory_be_short(true);
    leave_pending(one, MIB);
    unsigned waits = fake_stream_calls().waits;
    fake_stream_refuse_memory(2);
    take_on(other, 8 * MIB);
    return fake_stream_calls().waits - waits;
}

Test(stream_heap, who_is_out_of_memory_has_what_is_pending_on_another_stream)
{
    cr_assert_eq(waits_out_of_memory(true), 1);
}

Test(stream_heap, but_not_where_no_stream_is_to_wait_for_another)
{
    cr_assert_eq(waits_out_of_memory(false), 0);
}

/* Two streams with one block between them would take it from each other for ever. */
Test(stream_heap, a_stream_that_was_robbed_takes_a_new_block)
{
    start_streams();
    CUdeviceptr block = take_on(one, MIB);
    free_on(one, block);
    synchronise_stream(one);
    cr_assert_eq(take_on(other, MIB), block);
    free_on(other, block);
    synchronise_stream(other);
    CUdeviceptr own = take_on(one, MIB);
    cr_assert_neq(own, block);
    free_on(one, own);
    cr_assert_eq(take_on(other, MIB), block);
    cr_assert_eq(take_on(one, MIB), own);
    cr_assert_eq(counted_streams().misses, 2);
}

/* Unless the reserve has no room for it. */
Test(stream_heap, or_the_others_where_there_is_no_room)
{
    settings.device.growth_budget.bytes = 0;
    settings.stream_ordered.caps.reserve_ratio = 1.0;
    settings.stream_ordered.driver_release_threshold.bytes = 0;
    start_streams();
    CUdeviceptr block = take_on(one, MIB);
    free_on(one, block);
    synchronise_stream(one);
    cr_assert_eq(take_on(other, MIB), block);
    free_on(other, block);
    synchronise_stream(other);
    cr_assert_eq(take_on(one, MIB), block);
}

Test(stream_heap, a_pools_attributes_switch_the_ways_off)
{
    int off = 0;
    start_streams();
    CUmemoryPool memory_pool = (CUmemoryPool)0x100;
    leave_pending(one, MIB);
    for (CUmemPool_attribute i = 1; i <= 3; i++) {
        pool_mempool_setting(pool, memory_pool, i);
        pool_mempool_set(pool, memory_pool, i, &off);
    }
    cr_assert_neq(take_on(other, MIB), 0);
    cr_assert_eq(counted_streams().misses, 2);
    leave_pending(one, MIB);
    fake_stream_is_done(one);
    cr_assert_neq(take_on(other, MIB), 0);
    cr_assert_eq(counted_streams().misses, 3);
    cr_assert_eq(fake_stream_calls().records, 0);
}

Test(stream_heap, settings_switch_the_ways_off)
{
    settings.stream_ordered.reuse = (struct reuse_settings){false, false};
    start_streams();
    leave_pending(one, MIB);
    cr_assert_neq(take_on(other, MIB), 0);
    cr_assert_eq(counted_streams().misses, 2);
    leave_pending(one, MIB);
    fake_stream_is_done(one);
    cr_assert_neq(take_on(other, MIB), 0);
    cr_assert_eq(counted_streams().misses, 3);
    cr_assert_eq(fake_stream_calls().records, 0);
}

Test(stream_heap, a_block_freed_elsewhere_belongs_to_that_stream)
{
    start_streams();
    CUdeviceptr block = take_on(one, MIB);
    cr_assert_eq(bytes_of(one).live, MIB);
    free_on(other, block);
    cr_assert_eq(bytes_of(one).live, 0);
    cr_assert_eq(bytes_of(other).pending, MIB);
    cr_assert_eq(take_on(other, MIB), block);
}

Test(stream_heap, a_second_free_is_refused)
{
    start_streams();
    CUdeviceptr block = leave_pending(one, MIB);
    cr_assert_eq(try_to_free_on(one, block), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(try_to_free_on(other, block), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(pool_free(pool, block), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(take_on(one, MIB), block);
}

Test(stream_heap, a_plain_free_is_the_drivers)
{
    start_streams();
    CUdeviceptr block = take_on(one, MIB);
    fake_trace();
    release(block);
    cr_assert_str_eq(fake_trace(), "free");
    cr_assert_eq(bytes_of(one).live, 0);
}

/* The driver knows of neither the free nor the allocation since. */
/* The next stream is known by the same record, and its frees have later stamps. */
Test(stream_heap, a_plain_free_after_a_destroyed_streams_work_is_kept)
{
    start_streams();
    CUdeviceptr block = take_on(one, MIB);
    fake_stream_works(one);
    free_on(one, block);
    cr_assert_eq(take_on(one, MIB), block);
    const struct stream *record = stream_called(one);
    destroy_stream(one);
    CUstream next = fake_stream();
    CUdeviceptr another = take_on(next, 2 * MIB);
    cr_assert_eq(stream_called(next), record);
    free_on(next, another);
    synchronise_stream(next);
    fake_launch(context);
    release(block);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE), 0);
}

/* Nothing of a memory pool that is destroyed is kept. */
Test(stream_heap, a_plain_free_after_its_pools_end_goes_behind_the_work)
{
    start_streams();
    CUdeviceptr block = leave_pending(one, MIB);
    cr_assert_eq(take_on(one, MIB), block);
    stream_block_find(&streams_of(pool)->blocks, block)->shared = true;
    fake_launch(context);
    unsigned frees = fake_calls(FAKE_MEM_FREE), waits = fake_stream_calls().waits;
    release(block);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE), frees);
    cr_assert_eq(fake_stream_calls().waits, waits + 1);
    cr_assert_eq(bytes_of(one).live, 0);
}

/* It would lie there for good. */
Test(stream_heap, a_plain_free_with_no_event_over_its_context_is_the_drivers)
{
    start_streams();
    CUdeviceptr block = leave_pending(one, MIB);
    cr_assert_eq(take_on(one, MIB), block);
    fake_launch(context);
    fake_fail(FAKE_RECORD, CUDA_ERROR_OUT_OF_MEMORY, 2);
    release(block);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE), 1);
    cr_assert_eq(pool_device_bytes(pool, 0).pending, 0);
}

Test(stream_heap, a_plain_free_is_the_drivers_when_the_last_one_is_over)
{
    start_streams();
    CUdeviceptr block = leave_pending(one, MIB);
    cr_assert_eq(take_on(one, MIB), block);
    fake_launch(context);
    release(block);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE), 0);
    cr_assert_eq(pool_device_bytes(pool, 0).pending, MIB);
    cr_assert_neq(take_on(one, MIB), block);
    cr_assert_neq(take_on(other, MIB), block);
    fake_finish(context);
    fake_stream_is_done(one);
    cr_assert_eq(take_on(other, MIB), block);
    cr_assert_eq(counted_streams().hits.queried, 1);
    release(block);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE), 1);
}

Test(stream_heap, a_free_that_the_driver_refuses_changes_nothing)
{
    start_streams();
    CUdeviceptr block = take_on(one, MIB);
    fake_fail(FAKE_MEM_FREE, CUDA_ERROR_INVALID_VALUE, 1);
    cr_assert_eq(pool_free(pool, block), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(bytes_of(one).live, MIB);
    free_on(one, block);
}

Test(stream_heap, pools_keep_apart)
{
    start_streams();
    CUmemoryPool own = fake_mempool(0);
    pool_mempool_created(pool, own, 0);
    CUdeviceptr block = 0;
    CUresult result;
    cr_assert(pool_allocate_async(pool, &block, MIB, &own, one, &result));
    free_on(one, block);
    cr_assert_neq(take_on(one, MIB), block);
    CUdeviceptr again = 0;
    cr_assert(pool_allocate_async(pool, &again, MIB, &own, one, &result));
    cr_assert_eq(again, block);
}

Test(stream_heap, other_contexts_get_nothing)
{
    start_streams();
    CUdeviceptr block = leave_pending(one, MIB);
    synchronise_stream(one);
    another_context(0);
    cr_assert_neq(take_on(NULL, MIB), block);
}

Test(stream_heap, hidden_while_free)
{
    start_streams();
    CUdeviceptr block = take_on(one, 1000);
    cr_assert_eq(pool_ask_pointer(pool, block + 999).kind, POINTER_LIVE);
    cr_assert_eq(pool_ask_pointer(pool, block + 1000).kind, POINTER_HIDDEN);
    cr_assert_eq(pool_ask_pointer(pool, block).bytes, 1000);
    free_on(one, block);
    cr_assert_eq(pool_ask_pointer(pool, block).kind, POINTER_HIDDEN);
}

Test(stream_heap, an_address_that_comes_from_elsewhere_was_freed_behind_our_back)
{
    start_streams();
    CUdeviceptr live = take_on(one, MIB), free = leave_pending(one, 2 * MIB);
    pool_forget_address(pool, live);
    pool_forget_address(pool, free);
    cr_assert_eq(bytes_of(one).live + bytes_of(one).pending, 0);
    cr_assert_eq(reserved_bytes(), 0);
    cr_assert_eq(pool_ask_pointer(pool, live).kind, POINTER_FOREIGN);
}

Test(stream_heap, after_early_launches_its_own_blocks_must_be_over)
{
    start_streams();
    take_on(one, 4 * MIB);
    pool_early_launch(pool, one);
    CUdeviceptr block = leave_pending(one, MIB);
    cr_assert_neq(take_on(one, MIB), block);
    fake_stream_is_done(one);
    usleep(1000); /* what was not over is not asked about again at once */
    cr_assert_eq(take_on(one, MIB), block);
    cr_assert_eq(fake_stream_calls().waits, 0);
}

/* One that the driver had the memory of then. */
Test(stream_heap, nor_after_those_before_the_stream_became_known)
{
    start_streams();
    take_on(other, MIB);
    streams_of(pool)->short_lived = 1000;
    streams_of(pool)->left_to_driver = 1;
    pool_early_launch(pool, one);
    cr_assert_null(stream_find(pool, one, false).stream);
    streams_of(pool)->short_lived = 0;
    take_on(one, 4 * MIB);
    CUdeviceptr block = leave_pending(one, MIB);
    cr_assert_neq(take_on(one, MIB), block);
}

/* Where each ends before anything that it has left is over. */
Test(stream_heap, short_lived_streams_are_the_drivers)
{
    unsigned served = 0;
    start_streams();
    for (unsigned i = 0; i < 200; i++) {
        CUdeviceptr block;
        CUresult result;
        CUstream stream = fake_stream();
        if (!pool_allocate_async(pool, &block, MIB, NULL, stream, &result))
            continue;
        fake_stream_works(stream);
        free_on(stream, block);
        destroy_stream(stream);
        served++;
    }
    cr_assert_lt(served, 70);
}

/* An event that was not over a moment ago is not asked about for each allocation: the pause between
 * two questions grows to a millisecond. */
Test(stream_heap, what_is_not_over_is_asked_about_now_and_then)
{
    start_streams();
    let_fences_be_wanted(one, other, MIB);
    leave_pending(one, MIB);
    unsigned before = fake_stream_calls().queries;
    uint64_t began = monotonic_now();
    for (unsigned i = 0; i < 1000; i++)
        take_on(other, MIB);
    uint64_t milliseconds = (monotonic_now() - began) / 1000000;
    cr_assert_lt(fake_stream_calls().queries - before, 100 + milliseconds, "%u questions",
                 fake_stream_calls().queries - before);
}

Test(stream_heap, beside_captures_the_driver_answers)
{
    start_streams();
    CUdeviceptr block = leave_pending(one, MIB), more = 0;
    CUresult result;
    begin_capture(other);
    cr_assert_not(pool_allocate_async(pool, &more, MIB, NULL, one, &result));
    end_capture(other);
    cr_assert_eq(take_on(one, MIB), block);
}

Test(stream_heap, nothing_is_asked_for_nothing)
{
    CUdeviceptr address;
    CUresult result;
    start_streams();
    cr_assert_not(pool_allocate_async(pool, &address, 0, NULL, one, &result));
    cr_assert_not(pool_allocate_async(pool, NULL, 10, NULL, one, &result));
}

Test(stream_heap, switched_off_the_driver_answers)
{
    CUdeviceptr address;
    CUresult result;
    settings.stream_ordered.enabled = false;
    start_streams();
    cr_assert_not(pool_allocate_async(pool, &address, MIB, NULL, one, &result));
    cr_assert_not(pool_follows_streams(pool));
}

Test(stream_heap, it_works_with_device_memory_switched_off)
{
    settings.device.enabled = false;
    start_streams();
    CUdeviceptr block = leave_pending(one, MIB);
    cr_assert_eq(take_on(one, MIB), block);
}

Test(stream_heap, generations_differ)
{
    start_streams();
    CUdeviceptr block = take_on(one, MIB);
    uint64_t first = pool_generation(pool, block);
    cr_assert_neq(first, 0);
    free_on(one, block);
    cr_assert_eq(pool_generation(pool, block), 0);
    cr_assert_eq(take_on(one, MIB), block);
    cr_assert_neq(pool_generation(pool, block), first);
}

/* ---- where memory is short ---- */

/* All that the driver still has. */
static size_t room_left;

static CUresult allocate_what_fits(CUdeviceptr *address, size_t bytes, CUmemoryPool memory_pool,
                                   CUstream stream)
{
    return bytes > room_left ? CUDA_ERROR_OUT_OF_MEMORY
                             : below.cuMemAllocFromPoolAsync(address, bytes, memory_pool, stream);
}

/* It does not serve the bucket that it would be in, and is not kept. */
Test(stream_heap, where_only_what_was_asked_for_fits_it_is_taken)
{
    start_streams();
    below = *driver;
    room_left = 9 * MIB - 4096;
    driver->cuMemAllocFromPoolAsync = allocate_what_fits;
    CUdeviceptr block = take_on(one, room_left);
    cr_assert_eq(fake_bytes_used(0), room_left);
    cr_assert_eq(reserved_bytes(), room_left);
    fake_stream_works(one);
    free_on(one, block);
    cr_assert_eq(fake_bytes_used(0), 0);
    cr_assert_eq(reserved_bytes(), 0);
}

Test(stream_heap, at_the_hard_limit_too)
{
    settings.limits.device_bytes = (struct byte_size){.bytes = 9 * MIB - 4096};
    start_streams();
    CUdeviceptr block = take_on(one, 9 * MIB - 8192);
    cr_assert_eq(reserved_bytes(), 9 * MIB - 8192);
    free_on(one, block);
    cr_assert_eq(reserved_bytes(), 0);
}

/* Until its work is over, it is not free: the limit holds for what the device has in use. */
Test(stream_heap, at_the_hard_limit_what_is_pending_on_another_stream_is_in_use)
{
    settings.limits.device_bytes = (struct byte_size){.bytes = 8 * MIB};
    start_streams();
    free_on(other, take_on(other, 4096));
    let_memory_be_short(true);
    CUdeviceptr block = leave_pending(one, 6 * MIB);
    CUresult result;
    CUdeviceptr none;
    cr_assert(pool_allocate_async(pool, &none, 6 * MIB, NULL, other, &result));
    cr_assert_eq(result, CUDA_ERROR_OUT_OF_MEMORY);
    synchronise_stream(one);
    cr_assert_eq(take_on(other, 6 * MIB), block);
}

/* Nobody gets them back in time; until the stream has a use for them itself. */
Test(stream_heap, what_is_freed_on_a_stream_far_behind_is_the_drivers)
{
    CUdeviceptr blocks[40];
    start_streams();
    CUdeviceptr own = leave_pending(one, MIB);
    for (unsigned i = 0; i < 40; i++)
        blocks[i] = take_on(other, MIB);
    for (unsigned i = 0; i < 10; i++)
        free_on(one, blocks[i]);
    cr_assert_eq(bytes_of(one).pending, 2 * MIB);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE_ASYNC), 9);
    cr_assert_eq(take_on(one, MIB), blocks[0]);
    cr_assert_eq(take_on(one, MIB), own);
    for (unsigned i = 10; i < 20; i++)
        free_on(one, blocks[i]);
    cr_assert_eq(bytes_of(one).pending, 10 * MIB);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE_ASYNC), 9);
}
