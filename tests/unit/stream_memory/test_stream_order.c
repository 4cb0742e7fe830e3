/*
 * What is known to be over, and what comes after what.
 */
#include "streams_fixture.h"

TestSuite(stream_order, .init = set_up_streams, .fini = tear_down, .timeout = 20);

Test(stream_order, a_synchronise_settles_what_was_freed_before_it)
{
    start_streams();
    leave_pending(one, MIB);
    struct order_mark mark = pool_stream_wait_begin(pool, one);
    CUdeviceptr late = take_on(one, 2 * MIB);
    free_on(one, late);
    pool_stream_wait_end(pool, mark, CUDA_SUCCESS);
    cr_assert_eq(bytes_of(one).cached, MIB);
    cr_assert_eq(bytes_of(one).pending, 2 * MIB);
}

Test(stream_order, a_synchronise_that_failed_settles_nothing)
{
    start_streams();
    leave_pending(one, MIB);
    struct order_mark mark = pool_stream_wait_begin(pool, one);
    pool_stream_wait_end(pool, mark, CUDA_ERROR_NOT_READY);
    cr_assert_eq(bytes_of(one).pending, MIB);
}

/* After an error that stays, the driver answers. */
Test(stream_order, a_synchronise_that_finds_a_lasting_error_ends_it)
{
    CUdeviceptr address = 0;
    CUresult result;
    start_streams();
    free_on(one, take_on(one, MIB));
    struct order_mark mark = pool_stream_wait_begin(pool, one);
    pool_stream_wait_end(pool, mark, CUDA_ERROR_ILLEGAL_ADDRESS);
    cr_assert_not(take_at_once(&address, MIB, NULL, one));
    cr_assert_not(pool_allocate_async(pool, &address, MIB, NULL, one, &result));
}

static void expect_no_service(void)
{
    CUdeviceptr address = 0;
    CUresult result;
    cr_assert_not(take_at_once(&address, MIB, NULL, one));
    cr_assert_not(pool_allocate_async(pool, &address, MIB, NULL, one, &result));
}

static void synchronise_context(CUresult result)
{
    struct synchronising state = pool_synchronise_begin(pool, NULL);
    pool_synchronise_end(pool, state, result);
}

Test(stream_order, and_so_does_one_of_the_context_without_device_memory)
{
    settings.device.enabled = false;
    start_streams();
    free_on(one, take_on(one, MIB));
    synchronise_context(CUDA_SUCCESS);
    take_on(one, MIB);
    free_on(one, take_on(one, MIB));
    synchronise_context(CUDA_ERROR_ILLEGAL_ADDRESS);
    expect_no_service();
}

static void find_error_on_stream(void)
{
    struct order_mark mark = pool_stream_wait_begin(pool, one);
    pool_stream_wait_end(pool, mark, CUDA_ERROR_ILLEGAL_ADDRESS);
}

Test(stream_order, and_so_does_one_while_a_capture_goes_on)
{
    start_streams();
    free_on(one, take_on(one, MIB));
    begin_capture(other);
    synchronise_context(CUDA_ERROR_ILLEGAL_ADDRESS);
    end_capture(other);
    expect_no_service();
}

/* In the stream's context, whichever is current. */
Test(stream_order, and_one_of_a_stream_then_from_another_context)
{
    start_streams();
    CUcontext neighbour = another_context(0);
    fake_set_current(context);
    free_on(one, take_on(one, MIB));
    begin_capture(other);
    fake_set_current(neighbour);
    find_error_on_stream();
    fake_set_current(context);
    end_capture(other);
    expect_no_service();
}

Test(stream_order, and_so_does_an_event)
{
    start_streams();
    free_on(one, take_on(one, MIB));
    pool_event_wait_ended(pool, CUDA_ERROR_ILLEGAL_ADDRESS);
    expect_no_service();
}

/* The event may be of the other one. */
Test(stream_order, but_not_with_several_contexts)
{
    CUdeviceptr address = 0;
    start_streams();
    free_on(one, take_on(one, MIB));
    another_context(0);
    allocate(MIB);
    fake_set_current(context);
    pool_event_wait_ended(pool, CUDA_ERROR_ILLEGAL_ADDRESS);
    cr_assert(take_at_once(&address, MIB, NULL, one));
}

Test(stream_order, a_synchronised_context_settles_all)
{
    start_streams();
    leave_pending(one, MIB);
    leave_pending(other, MIB);
    cr_assert_eq(synchronise(), CUDA_SUCCESS);
    cr_assert_eq(bytes_of(one).cached, MIB);
    cr_assert_eq(bytes_of(other).cached, MIB);
}

/* ---- fences ---- */

Test(stream_order, no_fence_is_recorded_unless_somebody_wants_one)
{
    start_streams();
    leave_pending(one, MIB);
    cr_assert_eq(fake_calls(FAKE_RECORD), 0);
}

Test(stream_order, a_fence_is_recorded_again_when_it_is_over)
{
    start_streams();
    let_fences_be_wanted(one, other, MIB);
    unsigned created = fake_calls(FAKE_EVENT_CREATE), records = fake_calls(FAKE_RECORD);
    for (int i = 0; i < 10; i++) {
        leave_pending(one, MIB);
        fake_stream_is_done(one);
        cr_assert_eq(synchronise(), CUDA_SUCCESS);
    }
    cr_assert_leq(fake_calls(FAKE_EVENT_CREATE), created + 1);
    cr_assert_eq(fake_calls(FAKE_RECORD), records + 10);
    cr_assert_eq(fake_stream_calls().records, 0);
}

Test(stream_order, wanted_fences_come_to_an_end)
{
    start_streams();
    let_fences_be_wanted(one, other, MIB);
    unsigned before = fake_calls(FAKE_RECORD);
    for (int i = 0; i < 100; i++) {
        leave_pending(one, MIB);
        synchronise_stream(one);
    }
    unsigned records = fake_calls(FAKE_RECORD);
    cr_assert_lt(records - before, 40);
    leave_pending(one, MIB);
    cr_assert_eq(fake_calls(FAKE_RECORD), records);
}

/* Another stream's work keeps the fence from being over, but not the block from this stream. */
Test(stream_order, a_fence_waits_for_the_whole_context)
{
    start_streams();
    let_fences_be_wanted(one, other, MIB);
    fake_stream_works(other);
    CUdeviceptr block = leave_pending(one, MIB);
    fake_stream_is_done(one);
    CUdeviceptr instead = take_on(other, MIB);
    cr_assert_neq(instead, block);
    fake_stream_is_done(other);
    cr_assert_eq(take_on(other, MIB), block);
}

Test(stream_order, outstanding_events_are_limited)
{
    start_streams();
    let_memory_be_short(true);
    CUdeviceptr blocks[100];
    for (int i = 0; i < 100; i++)
        blocks[i] = take_on(one, MIB);
    let_memory_be_short(true);
    fake_stream_works(one);
    for (int i = 0; i < 100; i++)
        free_on(one, blocks[i]);
    cr_assert_eq(fake_stream_calls().records, STREAM_EVENTS_MAX);
}

Test(stream_order, a_failed_record_leaves_the_block_pending)
{
    start_streams();
    let_fences_be_wanted(one, other, MIB);
    fake_fail(FAKE_RECORD, CUDA_ERROR_OUT_OF_MEMORY, 1);
    CUdeviceptr block = leave_pending(one, MIB);
    cr_assert_eq(bytes_of(one).pending, MIB);
    cr_assert_neq(take_on(other, MIB), block);
    cr_assert_eq(take_on(one, MIB), block);
}

Test(stream_order, before_a_capture_what_is_pending_gets_a_fence)
{
    start_streams();
    leave_pending(one, MIB);
    pool_capture_about_to_begin(pool, NULL);
    fake_stream_is_done(one);
    stream_pending_query(pool, NULL);
    cr_assert_eq(bytes_of(one).cached, MIB);
}

static CUdeviceptr freed_in_between;

static void free_another(void)
{
    free_on(one, freed_in_between);
}

/* It comes after no work of a free that was made while it was recorded. */
Test(stream_order, an_event_covers_nothing_that_was_freed_while_it_was_recorded)
{
    start_streams();
    CUdeviceptr block = take_on(one, MIB);
    freed_in_between = take_on(one, 2 * MIB);
    fake_stream_works(one);
    let_memory_be_short(true);
    stream_called(one)->unchecked.bytes = 0;
    fake_stream_during_record(free_another);
    fake_stream_fail_records(0);
    free_on(one, block);
    cr_assert_eq(bytes_of(one).pending, 3 * MIB);
    cr_assert_lt(stream_called(one)->events.list->stamp,
                 counter_get(&stream_called(one)->pending.last->epoch));
}

/* Others' work, which a fence of several contexts waits for. */
Test(stream_order, another_contexts_work_does_not_matter)
{
    start_streams();
    let_fences_be_wanted(one, other, MIB);
    CUcontext neighbour = another_context(0);
    allocate(MIB);
    fake_launch(neighbour);
    fake_set_current(context);
    CUdeviceptr block = leave_pending(one, MIB);
    fake_stream_is_done(one);
    cr_assert_eq(take_on(other, MIB), block);
}

static void wait_for_the_legacy_stream(void)
{
    struct order_mark mark = pool_stream_wait_begin(pool, NULL);
    pool_stream_wait_end(pool, mark, CUDA_SUCCESS);
}

/* Its operation may come after the wait. */
Test(stream_order, a_wait_tells_nothing_of_a_free_that_is_under_way)
{
    start_streams();
    leave_pending(NULL, MIB);
    CUdeviceptr block = take_on(NULL, 64 * MIB);
    fake_stream_works(NULL);
    fake_stream_during_record(wait_for_the_legacy_stream);
    free_on(NULL, block);
    cr_assert_eq(bytes_of(NULL).pending, 65 * MIB);
}

/* Asked for nothing more, it would lie there for good. */
Test(stream_order, reap_waits_for_the_context_where_a_stream_left_no_fence)
{
    start_streams();
    leave_pending(one, MIB);
    fake_fail(FAKE_RECORD, CUDA_ERROR_OUT_OF_MEMORY, 1);
    fake_stream_is_done(one);
    destroy_stream(one);
    cr_assert_eq(pool_device_bytes(pool, 0).pending, MIB);
    unsigned records = fake_calls(FAKE_RECORD);
    cr_assert_eq(pool_reap(pool), 1);
    cr_assert_eq(fake_calls(FAKE_RECORD), records + 1);
    cr_assert_eq(pool_device_bytes(pool, 0).cached, MIB);
}

Test(stream_order, nothing_is_recorded_in_a_context_that_ends)
{
    start_streams();
    leave_pending(one, MIB);
    struct context *ends = context_find(pool, context);
    atomic_store(&ends->dying, true);
    stream_pending_fence(pool, ends);
    cr_assert_eq(fake_calls(FAKE_RECORD), 0);
    atomic_store(&ends->dying, false);
    stream_pending_fence(pool, ends);
    cr_assert_eq(fake_calls(FAKE_RECORD), 1);
}

/* ---- drivers that record no event in a context ---- */

Test(stream_order, an_older_driver_tells_only_by_waits)
{
    driver->cuCtxRecordEvent = NULL;
    start_streams();
    CUdeviceptr block = leave_pending(one, MIB);
    fake_stream_is_done(one);
    cr_assert_neq(take_on(other, MIB), block);
    cr_assert_neq(take_on(other, MIB), block);
    synchronise_stream(one);
    cr_assert_eq(take_on(other, MIB), block);
}

Test(stream_order, an_older_driver_has_what_a_stream_leaves)
{
    driver->cuCtxRecordEvent = NULL;
    start_streams();
    CUdeviceptr block = leave_pending(one, MIB);
    destroy_stream(one);
    cr_assert_not(fake_is_allocated(block));
    cr_assert_eq(pool_device_bytes(pool, 0).pending, 0);
}

/* ---- events of a record's former owner, in another context ---- */

static struct stream *begin_in_another_context(void)
{
    pool_stream_ending(pool, one);
    another_context(0);
    return stream_find(pool, fake_stream(), true).stream;
}

/* Its stamps are another context's, too: whatever was done there says nothing here. */
Test(stream_order, events_and_stamps_end_with_their_context)
{
    start_streams();
    for (int i = 0; i < 20; i++) {
        leave_pending(one, MIB);
        synchronise_stream(one);
    }
    let_memory_be_short(true);
    CUdeviceptr block = leave_pending(one, 64 * MIB);
    let_memory_be_short(false);
    cr_assert_eq(take_on(one, 64 * MIB), block);
    struct stream *stream = stream_called(one);
    cr_assert_not_null(stream->events.list);
    free_on(other, block);
    synchronise_stream(one);
    synchronise_stream(other);
    pool_trim(pool);
    unsigned destroyed = fake_calls(FAKE_EVENT_DESTROY);
    cr_assert_eq(begin_in_another_context(), stream);
    cr_assert_null(stream->events.list);
    cr_assert_null(stream->events.spare);
    cr_assert_gt(fake_calls(FAKE_EVENT_DESTROY), destroyed);
    cr_assert_eq(stream_done(stream), 0);
}
