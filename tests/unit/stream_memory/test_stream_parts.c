/*
 * Stream-ordered blocks that are cut out of larger ones: the policy split.
 */
#include "core/stream_memory/stream_merge.h"
#include "core/stream_memory/stream_parts.h"
#include "streams_fixture.h"

static void set_up_to_split(void)
{
    set_up_streams();
    settings.stream_ordered.buckets.policy = BUCKETS_SPLIT;
    settings.stream_ordered.caps.cached = (struct byte_size){.percent = 100};
}

TestSuite(stream_parts, .init = set_up_to_split, .fini = tear_down, .timeout = 60);

static struct segments_counters *segments(void)
{
    return &stream_device(device())->counters->segments;
}

static uint64_t spare_bytes(void)
{
    return counter_get(&segments()->spare_bytes);
}

static uint64_t segment_count(void)
{
    return counter_get(&segments()->count);
}

static uint64_t waiting(CUstream stream)
{
    return counter_get(&stream_called(stream)->parts.waiting_bytes);
}

static void goes_home(void)
{
    stream_pending_query(pool, device());
}

/* All goes back, and nothing is left. */
static void nothing_is_left(void)
{
    synchronise_stream(one);
    synchronise_stream(other);
    goes_home();
    cr_assert_eq(segment_count(), 0);
    cr_assert_eq(spare_bytes(), 0);
    pool_trim(pool);
    cr_assert_eq(fake_bytes_used(0), 0);
}

/* ---- cutting ---- */

Test(stream_parts, one_call_of_the_driver_serves_many)
{
    start_streams();
    CUdeviceptr blocks[19];
    for (int i = 0; i < 19; i++)
        blocks[i] = take_on(one, MIB);
    cr_assert_eq(fake_stream_calls().allocations, 1);
    cr_assert_eq(fake_bytes_used(0), 20 * MIB);
    cr_assert_eq(bytes_of(one).live, 19 * MIB);
    cr_assert_eq(bytes_of(one).cached, MIB);
    cr_assert_eq(spare_bytes(), MIB);
    cr_assert_eq(counted_streams().misses, 1);
    cr_assert_eq(counted_streams().hits.clean, 18);
    for (int i = 0; i < 19; i++)
        free_on(one, blocks[i]);
    nothing_is_left();
}

Test(stream_parts, in_its_streams_order_it_is_cut_again_at_once)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    fake_stream_works(one);
    fake_trace();
    free_on(one, first);
    cr_assert_eq(take_on(one, 2 * MIB), first);
    cr_assert_str_eq(fake_trace(), "");
    free_on(one, first);
    free_on(one, second);
    nothing_is_left();
}

Test(stream_parts, another_stream_is_given_nothing_of_it)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    free_on(one, first);
    synchronise_stream(one);
    CUdeviceptr theirs = take_on(other, 3 * MIB);
    cr_assert_geq(theirs, first - SEGMENT_HEAD + 20 * MIB);
    cr_assert_eq(fake_stream_calls().allocations, 2);
    free_on(one, second);
    free_on(other, theirs);
    nothing_is_left();
}

Test(stream_parts, what_nothing_is_left_of_serves_another_stream)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 5 * MIB);
    fake_stream_works(one);
    free_on(one, second);
    free_on(one, first);
    cr_assert_eq(segment_count(), 0);
    cr_assert_eq(bytes_of(one).pending, 20 * MIB);
    CUdeviceptr theirs = take_on(other, 4 * MIB);
    cr_assert_neq(theirs, first);
    cr_assert_eq(fake_stream_calls().allocations, 2);
    synchronise_stream(one);
    for (int i = 0; i < 3; i++)
        cr_assert_neq(take_on(other, 4 * MIB), first);
    cr_assert_eq(take_on(other, 4 * MIB), first);
    cr_assert_eq(fake_stream_calls().allocations, 2);
}

Test(stream_parts, the_largest_are_asked_for_alone)
{
    start_streams();
    CUdeviceptr block = take_on(one, 11 * MIB);
    cr_assert_eq(fake_bytes_used(0), 12 * MIB);
    free_on(one, block);
    /* And cut like others. */
    cr_assert_eq(take_on(one, 3 * MIB), block);
    cr_assert_eq(fake_stream_calls().allocations, 1);
}

Test(stream_parts, where_there_is_no_room_the_block_alone_is_asked_for)
{
    start_streams();
    fake_stream_refuse_memory(1);
    CUdeviceptr block = take_on(one, 3 * MIB);
    cr_assert_eq(fake_bytes_used(0), 3 * MIB);
    cr_assert_eq(segment_count(), 0);
    free_on(one, block);
    nothing_is_left();
}

Test(stream_parts, a_limit_is_not_passed_by_a_segment)
{
    settings.limits.device_bytes = (struct byte_size){.bytes = 8 * MIB};
    start_streams();
    CUdeviceptr block = take_on(one, 3 * MIB - 1000), second = take_on(one, 3 * MIB), none;
    CUresult result;
    cr_assert_eq(fake_bytes_used(0), 6 * MIB);
    cr_assert(pool_allocate_async(pool, &none, 3 * MIB, NULL, one, &result));
    cr_assert_eq(result, CUDA_ERROR_OUT_OF_MEMORY);
    free_on(one, block);
    /* It is its size's. */
    cr_assert_eq(take_on(one, 3 * MIB), block);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE_ASYNC), 0);
    free_on(one, block);
    free_on(one, second);
}

Test(stream_parts, one_sort_lies_among_the_other_where_the_driver_has_none)
{
    start_streams();
    CUdeviceptr large = take_on(one, 3 * MIB);
    fake_stream_refuse_memory(4);
    CUdeviceptr small = take_on(one, 4096);
    cr_assert_eq(small, large + 3 * MIB);
    fake_stream_refuse_memory(0);
    free_on(one, large);
    free_on(one, small);
    nothing_is_left();
}

Test(stream_parts, sizes_that_do_not_come_back_leave_no_blocks)
{
    start_streams();
    for (size_t i = 1; i < 200; i++)
        free_on(one, take_on(one, i * 9 * KIB));
    cr_assert_leq(fake_stream_calls().allocations, 2);
    cr_assert_eq(spare_bytes(), 0);
    nothing_is_left();
}

/* ---- where the stream's order is not enough ---- */

Test(stream_parts, after_an_early_launch_it_has_to_be_over)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    pool_early_launch(pool, one);
    fake_stream_works(one);
    free_on(one, first);
    CUdeviceptr instead = take_on(one, 3 * MIB);
    cr_assert_neq(instead, first);
    synchronise_stream(one);
    goes_home();
    cr_assert_eq(take_on(one, 2 * MIB), first);
    free_on(one, second);
    free_on(one, instead);
    free_on(one, first);
    nothing_is_left();
}

/* What merges bears the newest stamp. */
Test(stream_parts, what_is_over_is_had_beside_what_is_not)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    CUdeviceptr third = take_on(one, 3 * MIB);
    free_on(one, first);
    synchronise_stream(one);
    pool_early_launch(pool, one);
    fake_stream_works(one);
    free_on(one, second);
    cr_assert_eq(take_on(one, 3 * MIB), first);
    free_on(one, first);
    free_on(one, third);
    nothing_is_left();
}

/* What was spare before, too. */
Test(stream_parts, an_early_launch_closes_what_is_spare)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    fake_stream_works(one);
    free_on(one, first);
    pool_early_launch(pool, one);
    CUdeviceptr instead = take_on(one, 3 * MIB);
    cr_assert_neq(instead, first);
    synchronise_stream(one);
    cr_assert_eq(take_on(one, 3 * MIB), first);
    free_on(one, second);
}

Test(stream_parts, a_free_that_others_order_is_an_operation)
{
    start();
    one = NULL;
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    fake_stream_works(one);
    unsigned records = fake_stream_calls().records;
    free_on(one, first);
    cr_assert_eq(fake_stream_calls().records, records + 1);
    cr_assert_eq(take_on(one, 2 * MIB), first);
    /* Without it the part must not be cut again. */
    fake_stream_fail_records(2);
    free_on(one, second);
    fake_stream_fail_records(0);
    free_on(one, first);
}

/* ---- on another stream ---- */

Test(stream_parts, freed_on_another_stream_it_is_nobodys_until_it_is_over)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    fake_stream_works(other);
    free_on(other, first);
    cr_assert_eq(waiting(one), 3 * MIB);
    cr_assert_eq(bytes_of(one).pending, 3 * MIB);
    cr_assert_eq(bytes_of(one).cached, 14 * MIB);
    goes_home();
    cr_assert_eq(waiting(one), 3 * MIB);
    CUdeviceptr instead = take_on(one, 3 * MIB), elsewhere = take_on(other, 3 * MIB);
    cr_assert_neq(instead, first);
    cr_assert_neq(elsewhere, first);
    free_on(one, instead);
    synchronise_stream(other);
    cr_assert_eq(waiting(one), 3 * MIB);
    /* Its own stream gets it before the driver is asked. */
    unsigned calls = fake_stream_calls().allocations;
    CUdeviceptr all[5];
    for (int i = 0; i < 5; i++)
        all[i] = take_on(one, 3 * MIB);
    cr_assert_eq(all[4], first);
    cr_assert_eq(fake_stream_calls().allocations, calls);
    cr_assert_eq(waiting(one), 0);
    for (int i = 0; i < 5; i++)
        free_on(one, all[i]);
    free_on(one, second);
    free_on(other, elsewhere);
    nothing_is_left();
}

/* Queries and waits of a stream that others order must see the free. */
Test(stream_parts, a_free_on_another_stream_is_an_operation_there)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB);
    unsigned records = fake_stream_calls().records;
    free_on(NULL, first);
    cr_assert_eq(fake_stream_calls().records, records + 1);
    nothing_is_left();
}

/* What waits behind a stream that is stuck costs a look no more than some questions, and hides
 * nothing for long that is over. */
Test(stream_parts, many_that_are_not_over_are_not_all_asked_about)
{
    enum { STUCK = 40 };
    driver->cuCtxRecordEvent = NULL; /* so that each waits for an event of its own */
    start_streams();
    CUdeviceptr blocks[STUCK + 1];
    for (int i = 0; i <= STUCK; i++)
        blocks[i] = take_on(one, MIB);
    fake_stream_works(other);
    for (int i = 0; i <= STUCK; i++)
        free_on(i == STUCK / 2 ? NULL : other, blocks[i]);
    unsigned queries = fake_stream_calls().queries;
    goes_home();
    cr_assert_leq(fake_stream_calls().queries - queries, 20);
    goes_home();
    goes_home();
    cr_assert_eq(waiting(one), STUCK * MIB);
    synchronise_stream(other);
    goes_home();
    goes_home();
    nothing_is_left();
}

/* Later than a few questions without a wait would see. */
static void end_work_soon(void *stream)
{
    nanosleep(&(struct timespec){0, 400000000}, NULL);
    fake_stream_is_done(stream);
    fake_finish(context);
}

Test(stream_parts, out_of_memory_waits_for_parts_too)
{
    settings.stream_ordered.segments.large = 40 * GIB;
    start_streams();
    CUdeviceptr first = take_on(one, 3 * GIB);
    fake_stream_works(other);
    free_on(other, first);
    cr_assert_eq(fake_bytes_used(0), 40 * GIB);
    struct errand errand;
    send(&errand, end_work_soon, other);
    take_on(one, 30 * GIB);
    wait_for(&errand);
    cr_assert_leq(fake_bytes_used(0), 40 * GIB);
}

/* ---- going back ---- */

Test(stream_parts, over_the_cap_a_segment_goes_back_in_the_streams_order)
{
    settings.stream_ordered.caps.cached = (struct byte_size){.bytes = 4 * MIB};
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    fake_stream_works(one);
    free_on(one, first);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE_ASYNC), 0);
    free_on(one, second);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE_ASYNC), 1);
    cr_assert_eq(fake_bytes_used(0), 0);
    cr_assert_eq(counted_streams().evictions.cap, 1);
}

Test(stream_parts, a_full_bucket_takes_no_more_segments)
{
    settings.stream_ordered.caps.blocks_per_bucket = 1;
    start_streams();
    CUdeviceptr first = take_on(one, 9 * MIB), second = take_on(one, 9 * MIB);
    CUdeviceptr third = take_on(one, 9 * MIB);
    free_on(one, first);
    free_on(one, second);
    free_on(one, third);
    cr_assert_eq(bytes_of(one).pending, 20 * MIB);
    cr_assert_eq(fake_bytes_used(0), 20 * MIB);
}

Test(stream_parts, what_is_spare_counts_in_the_pools_marks)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB);
    const struct mempool *mempool = mempool_first(streams_of(pool));
    struct mempool_sum sum = mempool_sum(pool, mempool);
    cr_assert_eq(sum.used, 3 * MIB);
    cr_assert_eq(mempool_kept(mempool), 20 * MIB);
    free_on(one, first);
    sum = mempool_sum(pool, mempool);
    cr_assert_eq(sum.used, 0);
    cr_assert_eq(mempool_kept(mempool), 20 * MIB);
}

/* ---- streams, pools and contexts that end ---- */

Test(stream_parts, a_part_outlives_its_stream)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    fake_stream_works(one);
    free_on(one, first);
    destroy_stream(one);
    cr_assert_eq(fake_bytes_used(0), 20 * MIB);
    fake_stream_works(other);
    free_on(other, second);
    synchronise_stream(other);
    fake_finish(context);
    cr_assert_eq(synchronise(), CUDA_SUCCESS);
    pool_trim(pool);
    cr_assert_eq(segment_count(), 0);
    cr_assert_eq(fake_bytes_used(0), 0);
}

/* What is spare of a stream that has ended is not the next one's before it is over. */
Test(stream_parts, a_new_stream_gets_nothing_that_is_not_over)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    fake_stream_works(one);
    free_on(one, first);
    struct stream *record = stream_called(one);
    destroy_stream(one);
    CUstream next = fake_stream();
    cr_assert_neq(take_on(next, 3 * MIB), first);
    cr_assert_neq(stream_called(next), record);
    cr_assert_neq(second, 0);
}

/* Its stamps are epochs of the stream's context. */
Test(stream_parts, a_record_with_spare_memory_serves_no_other_contexts_stream)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    free_on(one, first);
    synchronise_stream(one);
    struct stream *record = stream_called(one);
    destroy_stream(one);
    another_context(0);
    CUstream next = fake_stream();
    take_on(next, 3 * MIB);
    cr_assert_neq(stream_called(next), record);
    cr_assert_neq(second, 0);
    fake_set_current(context);
}

/* The end waits for the blocking streams, and this one is none. */
Test(stream_parts, freed_plainly_it_is_not_over_with_the_blocking_streams)
{
    driver->cuCtxRecordEvent = NULL;
    start_streams();
    CUdeviceptr block = take_on(one, 3 * MIB);
    fake_stream_works(one);
    cr_assert_eq(pool_free(pool, block), CUDA_SUCCESS);
    uint64_t used = fake_bytes_used(0);
    struct ending state = pool_context_ending(pool, context);
    cr_assert_eq(fake_bytes_used(0), used);
    fake_end_context(context);
    pool_context_ended(pool, state, CONTEXT_DIED);
    cr_assert_eq(pool_device_bytes(pool, 0).pending, 0);
}

Test(stream_parts, of_a_pool_that_ends_segments_go_as_they_are_whole)
{
    start_streams();
    CUmemoryPool handle = fake_mempool(0);
    pool_mempool_created(pool, handle, 0);
    CUdeviceptr block = 0;
    CUresult result;
    cr_assert(pool_allocate_async(pool, &block, 3 * MIB, &handle, one, &result));
    fake_stream_works(one);
    pool_mempool_destroying(pool, handle);
    cr_assert_eq(fake_bytes_used(0), 20 * MIB);
    free_on(one, block);
    cr_assert_eq(fake_bytes_used(0), 0);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE_ASYNC), 1);
}

Test(stream_parts, a_context_waits_for_what_is_pending_in_segments)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    fake_stream_works(other);
    free_on(other, first);
    free_on(one, second);
    const struct segments_counters *counters = segments();
    end_context(context);
    cr_assert_eq(counter_get(&counters->count), 0);
    cr_assert_eq(counter_get(&counters->spare_bytes), 0);
}

/* Though what is pending in it is not over. */
Test(stream_parts, a_context_that_ends_gives_whole_segments_back_behind_its_work)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    fake_stream_works(other);
    free_on(other, first);
    fake_stream_works(one);
    free_on(one, second);
    stream_ends_context(pool, context_record());
    cr_assert_eq(segment_count(), 0);
    cr_assert_eq(spare_bytes(), 0);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE_ASYNC), 1);
    cr_assert_eq(fake_bytes_used(0), 0);
    cr_assert_eq(waiting(one), 0);
}

/* But it was not its end, and something is live: nothing there is anybody's before it is over. */
Test(stream_parts, what_stays_where_a_context_seemed_to_end_is_still_pending)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    fake_stream_works(other);
    free_on(other, first);
    stream_ends_context(pool, context_record());
    cr_assert_eq(waiting(one), 3 * MIB);
    CUdeviceptr instead = take_on(one, 3 * MIB);
    cr_assert_neq(instead, first);
    free_on(one, instead);
    free_on(one, second);
    nothing_is_left();
}

/* Nothing orders the driver's plain free behind what its own stream still does with the rest. */
Test(stream_parts, what_is_whole_as_a_context_ends_goes_back_behind_its_work)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    fake_stream_works(other);
    free_on(other, first);
    fake_stream_works(one);
    free_on(one, second);
    synchronise_stream(other);
    cr_assert_eq(waiting(one), 3 * MIB);
    struct ending ending = pool_context_ending(pool, context);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE), 0);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE_ASYNC), 1);
    fake_end_context(context);
    pool_context_ended(pool, ending, CONTEXT_DIED);
}

Test(stream_parts, what_is_whole_where_the_pool_steps_aside_waits_until_it_is_over)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    fake_stream_works(other);
    free_on(other, first);
    fake_stream_works(one);
    free_on(one, second);
    synchronise_stream(other);
    cr_assert_eq(waiting(one), 3 * MIB);
    context_disable(context_record());
    goes_home();
    cr_assert_eq(segment_count(), 0);
    cr_assert_eq(fake_bytes_used(0), 20 * MIB);
    synchronise_stream(one);
    pool_trim(pool);
    cr_assert_eq(fake_bytes_used(0), 0);
}

Test(stream_parts, what_the_driver_refuses_as_a_context_seems_to_end_is_nobodys)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB);
    fake_stream_works(other);
    free_on(other, first);
    fake_fail(FAKE_MEM_FREE_ASYNC, CUDA_ERROR_UNKNOWN, 1);
    stream_ends_context(pool, context_record());
    cr_assert_eq(segment_count(), 0);
    cr_assert_neq(take_on(one, 3 * MIB), first);
}

Test(stream_parts, a_segment_that_was_freed_behind_our_back_is_forgotten)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    CUdeviceptr third = take_on(one, 3 * MIB);
    free_on(one, first);
    fake_stream_works(other);
    free_on(other, third);
    fake_vanish(first - SEGMENT_HEAD);
    pool_forget_address(pool, first - SEGMENT_HEAD);
    cr_assert_eq(segment_count(), 0);
    cr_assert_eq(spare_bytes(), 3 * MIB);
    cr_assert_null(stream_block_at(pool, first - SEGMENT_HEAD));
    /* The program's free of what it held finds it, and merges nothing. */
    free_on(one, second);
    synchronise_stream(one);
    synchronise_stream(other);
    goes_home();
    cr_assert_eq(spare_bytes(), 0);
    cr_assert_null(stream_block_at(pool, third));
    cr_assert_null(stream_block_at(pool, second));
    cr_assert_eq(fake_calls(FAKE_MEM_FREE_ASYNC), 0);
}

/* ---- frees of other sorts ---- */

Test(stream_parts, of_two_frees_one_succeeds)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    free_on(one, first);
    cr_assert_eq(try_to_free_on(one, first), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(pool_free(pool, first), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(pool_free(pool, second), CUDA_SUCCESS);
    cr_assert_eq(pool_free(pool, second), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(try_to_free_on(other, second), CUDA_ERROR_INVALID_VALUE);
    nothing_is_left();
}

/* The program need not have waited: all of the context's work may use it. */
Test(stream_parts, freed_plainly_it_waits_for_its_contexts_work)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    fake_stream_works(one);
    cr_assert_eq(pool_free(pool, first), CUDA_SUCCESS);
    cr_assert_eq(bytes_of(one).live, 3 * MIB);
    goes_home();
    CUdeviceptr instead = take_on(one, 3 * MIB);
    cr_assert_neq(instead, first);
    fake_stream_is_done(one);
    fake_finish(context);
    goes_home();
    cr_assert_eq(take_on(one, 3 * MIB), first);
    free_on(one, first);
    free_on(one, second);
    free_on(one, instead);
    nothing_is_left();
}

/* Other streams may have used it. */
Test(stream_parts, freed_plainly_it_does_not_wait_for_its_stream_alone)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    fake_stream_works(other);
    cr_assert_eq(pool_free(pool, first), CUDA_SUCCESS);
    synchronise_stream(one);
    goes_home();
    cr_assert_eq(waiting(one), 3 * MIB);
    fake_stream_is_done(other);
    fake_finish(context);
    goes_home();
    cr_assert_eq(waiting(one), 0);
    free_on(one, second);
    nothing_is_left();
}

Test(stream_parts, freed_plainly_with_no_fence_it_waits_until_there_is_one)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    fake_fail(FAKE_RECORD, CUDA_ERROR_OUT_OF_MEMORY, 1);
    cr_assert_eq(pool_free(pool, first), CUDA_SUCCESS);
    cr_assert_eq(waiting(one), 3 * MIB);
    goes_home();
    cr_assert_eq(waiting(one), 3 * MIB);
    fake_finish(context);
    cr_assert_eq(synchronise(), CUDA_SUCCESS);
    goes_home();
    cr_assert_eq(waiting(one), 0);
    cr_assert_eq(take_on(one, 3 * MIB), first);
    free_on(one, first);
    free_on(one, second);
    nothing_is_left();
}

Test(stream_parts, a_captured_stream_cannot_free_it)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB);
    begin_capture(one);
    cr_assert_eq(try_to_free_on(one, first), CUDA_ERROR_INVALID_VALUE);
    end_capture(one);
    free_on(one, first);
    nothing_is_left();
}

/* The driver, asked whether a capture minds, has no memory to tell it with. */
static CUresult have_none(CUdeviceptr *address, size_t bytes, CUmemoryPool handle, CUstream stream)
{
    (void)address, (void)bytes, (void)handle, (void)stream;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUmemoryPool asked;

static CUresult forbid(CUdeviceptr *address, size_t bytes, CUmemoryPool handle, CUstream stream)
{
    (void)address, (void)bytes, (void)stream;
    asked = handle;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static CUresult free_beside_a_capture(CUdeviceptr address)
{
    CUresult (*usual)(CUdeviceptr *, size_t, CUmemoryPool, CUstream) =
        driver->cuMemAllocFromPoolAsync;
    begin_capture(other);
    driver->cuMemAllocFromPoolAsync = have_none;
    CUresult result = try_to_free_on(one, address);
    driver->cuMemAllocFromPoolAsync = usual;
    end_capture(other);
    return result;
}

Test(stream_parts, what_a_capture_forbids_is_left_to_the_program)
{
    start_streams();
    CUresult (*usual)(CUdeviceptr *, size_t, CUmemoryPool, CUstream) =
        driver->cuMemAllocFromPoolAsync;
    CUdeviceptr first = take_on(one, 3 * MIB);
    begin_capture(other);
    driver->cuMemAllocFromPoolAsync = forbid;
    cr_assert_eq(try_to_free_on(one, first), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    driver->cuMemAllocFromPoolAsync = usual;
    end_capture(other);
    free_on(one, first);
    nothing_is_left();
}

/* Its handle may be another one's. The device's default pool is. */
Test(stream_parts, a_pool_that_has_ended_is_not_asked_whether_a_capture_minds)
{
    start_streams();
    CUmemoryPool handle = fake_mempool(0);
    pool_mempool_created(pool, handle, 0);
    CUdeviceptr block = 0;
    CUresult result;
    cr_assert(pool_allocate_async(pool, &block, 3 * MIB, &handle, one, &result));
    pool_mempool_destroying(pool, handle);
    begin_capture(other);
    driver->cuMemAllocFromPoolAsync = forbid;
    cr_assert_eq(try_to_free_on(one, block), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end_capture(other);
    CUmemoryPool own = NULL;
    cr_assert_eq(driver->cuDeviceGetDefaultMemPool(&own, 0), CUDA_SUCCESS);
    cr_expect_eq(asked, own);
}

/* Beside a capture nothing of the stream's order is told to the pool. */
Test(stream_parts, beside_a_capture_it_waits_for_an_event_of_its_own)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    fake_stream_works(one);
    cr_assert_eq(free_beside_a_capture(first), CUDA_SUCCESS);
    cr_assert_eq(waiting(one), 3 * MIB);
    cr_assert_eq(bytes_of(one).live, 3 * MIB);
    goes_home();
    CUdeviceptr instead = take_on(one, 3 * MIB);
    cr_assert_neq(instead, first);
    cr_assert_eq(waiting(one), 3 * MIB);
    fake_stream_is_done(one);
    goes_home();
    cr_assert_eq(waiting(one), 0);
    cr_assert_eq(take_on(one, 3 * MIB), first);
    free_on(one, first);
    free_on(one, second);
    free_on(one, instead);
    nothing_is_left();
}

/* The context goes on: it was not its end. */
Test(stream_parts, what_waits_where_a_context_seems_to_end_is_not_over)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    fake_stream_works(one);
    cr_assert_eq(free_beside_a_capture(first), CUDA_SUCCESS);
    struct ending ending = pool_context_ending(pool, context);
    pool_context_ended(pool, ending, CONTEXT_LIVES);
    CUdeviceptr instead = take_on(one, 3 * MIB);
    cr_assert_neq(instead, first);
    fake_stream_is_done(one);
    fake_finish(context);
    cr_assert_eq(synchronise(), CUDA_SUCCESS);
    goes_home();
    cr_assert_eq(take_on(one, 3 * MIB), first);
    free_on(one, first);
    free_on(one, second);
    free_on(one, instead);
    nothing_is_left();
}

static CUdeviceptr live_part;

/* A part waits for a stream of another context, and the segment's other part is live. */
static CUcontext free_in_another_context(CUstream *their_stream)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB);
    live_part = take_on(one, 3 * MIB);
    CUcontext theirs = another_context(0);
    *their_stream = fake_stream();
    fake_stream_works(*their_stream);
    free_on(*their_stream, first);
    fake_set_current(context);
    return theirs;
}

/* Nor is it where another thread looks meanwhile. */
Test(stream_parts, what_waits_for_another_context_that_may_end_is_not_over)
{
    CUstream their_stream;
    CUcontext theirs = free_in_another_context(&their_stream);
    struct ending ending = pool_context_ending(pool, theirs);
    goes_home();
    cr_assert_eq(waiting(one), 3 * MIB);
    pool_context_ended(pool, ending, CONTEXT_LIVES);
    fake_stream_is_done(their_stream);
    goes_home();
    cr_assert_eq(waiting(one), 0);
    free_on(one, live_part);
}

/* Its events have ended with it. */
Test(stream_parts, what_waited_for_another_context_that_has_ended_is_over)
{
    CUstream their_stream;
    CUcontext theirs = free_in_another_context(&their_stream);
    struct ending ending = pool_context_ending(pool, theirs);
    cr_assert_eq(waiting(one), 3 * MIB);
    unsigned queries = fake_stream_calls().queries;
    fake_end_context(theirs);
    pool_context_ended(pool, ending, CONTEXT_DIED);
    cr_assert_eq(fake_stream_calls().queries, queries);
    cr_assert_eq(waiting(one), 0);
    free_on(one, live_part);
}

Test(stream_parts, what_waits_for_a_context_goes_back_behind_its_work_as_it_ends)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    fake_stream_works(one);
    cr_assert_eq(free_beside_a_capture(first), CUDA_SUCCESS);
    free_on(one, second);
    const struct segments_counters *counters = segments();
    struct ending ending = pool_context_ending(pool, context);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE), 0);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE_ASYNC), 1);
    cr_assert_eq(fake_bytes_used(0), 0);
    cr_assert_eq(counter_get(&counters->count), 0);
    cr_assert_eq(counter_get(&counters->spare_bytes), 0);
    fake_end_context(context);
    pool_context_ended(pool, ending, CONTEXT_DIED);
}

/* Its event can still be asked. */
Test(stream_parts, what_waited_for_a_context_that_ends_goes_home)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    fake_stream_works(one);
    cr_assert_eq(free_beside_a_capture(first), CUDA_SUCCESS);
    fake_stream_is_done(one);
    const struct stream *stream = stream_called(one);
    const struct segments_counters *counters = segments();
    cr_assert_eq(counter_get(&stream->parts.waiting_bytes), 3 * MIB);
    struct ending ending = pool_context_ending(pool, context);
    cr_assert_eq(counter_get(&stream->parts.waiting_bytes), 0);
    cr_assert_eq(counter_get(&counters->spare_bytes), 17 * MIB);
    fake_end_context(context);
    pool_context_ended(pool, ending, CONTEXT_DIED);
    cr_assert_neq(second, 0);
}

static unsigned waits;

static CUresult count_wait(CUstream stream)
{
    waits++;
    fake_stream_is_done(stream);
    return CUDA_SUCCESS;
}

Test(stream_parts, where_no_event_can_be_had_the_free_waits)
{
    driver->cuStreamSynchronize = count_wait;
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    fake_stream_fail_records(1);
    cr_assert_eq(free_beside_a_capture(first), CUDA_SUCCESS);
    cr_assert_eq(waits, 1);
    cr_assert_eq(take_on(one, 2 * MIB), first);
    free_on(one, first);
    free_on(one, second);
}

/* What it would wait for may need a lock that the program has. */
Test(stream_parts, where_a_context_seems_to_end_the_free_does_not_wait)
{
    driver->cuStreamSynchronize = count_wait;
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB), second = take_on(one, 3 * MIB);
    fake_stream_works(one);
    atomic_store(&context_record()->dying, true);
    free_on(one, first);
    cr_assert_eq(waits, 0);
    cr_assert_eq(waiting(one), 3 * MIB);
    atomic_store(&context_record()->dying, false);
    goes_home();
    cr_assert_neq(take_on(one, 2 * MIB), first);
    fake_stream_is_done(one);
    goes_home();
    cr_assert_eq(take_on(one, 2 * MIB), first);
    free_on(one, second);
}

static CUresult (*usual_record)(CUevent, CUstream);

static CUresult record_in_its_context(CUevent event, CUstream stream)
{
    CUcontext current = NULL;
    driver->cuCtxGetCurrent(&current);
    return current == context ? usual_record(event, stream) : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult tell_context(CUstream stream, CUcontext *of_stream)
{
    (void)stream;
    *of_stream = context;
    return CUDA_SUCCESS;
}

/* That of the stream is looked for in vain. */
Test(stream_parts, nor_does_it_where_that_is_not_the_current_one)
{
    usual_record = driver->cuEventRecord;
    driver->cuEventRecord = record_in_its_context;
    driver->cuStreamGetCtx = tell_context;
    driver->cuStreamSynchronize = count_wait;
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB);
    fake_stream_works(one);
    struct context *own = context_record();
    fake_set_current(fake_context(1));
    bool green;
    context_current(pool, &green);
    atomic_store(&own->dying, true);
    free_on(one, first);
    cr_assert_eq(waits, 0);
    atomic_store(&own->dying, false);
    cr_assert_eq(waiting(one), 3 * MIB);
}

/* Each context's legacy stream is another one. */
Test(stream_parts, where_no_event_can_be_had_none_of_another_legacy_stream_stands_for_it)
{
    driver->cuStreamSynchronize = count_wait;
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB);
    fake_set_current(fake_context(1));
    fake_stream_fail_records(1);
    free_on(NULL, first);
    cr_assert_eq(waits, 1);
}

static CUcontext recorded_in;

static CUresult note_context_of_record(CUevent event, CUstream stream)
{
    driver->cuCtxGetCurrent(&recorded_in);
    return usual_record(event, stream);
}

static CUresult does_not_capture(CUstream stream, CUstreamCaptureStatus *status)
{
    (void)stream;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

/* The primary context's legacy stream may be forbidden where the green one's is not: a blocking
 * stream captures. */
Test(stream_parts, freed_on_a_green_contexts_legacy_stream_waits_for_that_one)
{
    usual_record = driver->cuEventRecord;
    driver->cuEventRecord = note_context_of_record;
    start_without_context();
    context = fake_primary(0);
    pool_primary_retained(pool, context, 0);
    one = fake_stream();
    other = fake_stream();
    CUdeviceptr first = take_on(one, 3 * MIB);
    begin_capture(other);
    driver->cuMemAllocFromPoolAsync = have_none;
    CUcontext green = fake_green(0);
    pool_green_context_created(pool, (CUgreenCtx)5, 0);
    pool_green_context_converted(pool, green, (CUgreenCtx)5);
    fake_set_current(green);
    driver->cuStreamIsCapturing = does_not_capture;
    free_on(NULL, first);
    cr_assert_eq(recorded_in, green);
    fake_set_current(context);
    end_capture(other);
}

Test(stream_parts, a_library_that_goes_past_the_pool_cannot_free_it)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB);
    cr_assert_not(pool_freed_outside(pool, first));
    free_on(one, first);
    nothing_is_left();
}

Test(stream_parts, exports_are_refused_and_counted)
{
    start_streams();
    CUdeviceptr first = take_on(one, 3 * MIB);
    struct pointer_answer answer = pool_ask_pointer(pool, first + MIB);
    cr_assert_eq(answer.kind, POINTER_LIVE);
    cr_assert(answer.part);
    cr_assert_eq(answer.base, first);
    cr_assert_eq(answer.bytes, 3 * MIB);
    pool_refused_export(pool, &answer);
    cr_assert_eq(counter_get(&segments()->refused_exports), 1);
    /* What is spare is nobody's. */
    cr_assert_eq(pool_ask_pointer(pool, first - 1).kind, POINTER_HIDDEN);
    cr_assert_eq(pool_ask_pointer(pool, first + 3 * MIB).kind, POINTER_HIDDEN);
}
