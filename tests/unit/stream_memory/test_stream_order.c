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

/* ---- events of our own ---- */

Test(stream_order, no_event_is_recorded_unless_somebody_wants_one)
{
    start_streams();
    leave_pending(one, MIB);
    cr_assert_eq(fake_stream_calls().records, 0);
}

Test(stream_order, an_event_is_recorded_again_when_it_is_over)
{
    start_streams();
    let_events_be_wanted(one, other, MIB);
    unsigned created = fake_calls(FAKE_EVENT_CREATE);
    for (int i = 0; i < 10; i++) {
        leave_pending(one, MIB);
        synchronise_stream(one);
    }
    cr_assert_eq(fake_calls(FAKE_EVENT_CREATE), created + 1);
    cr_assert_eq(fake_stream_calls().records, 10);
}

Test(stream_order, wanted_events_come_to_an_end)
{
    start_streams();
    let_events_be_wanted(one, other, MIB);
    for (int i = 0; i < 100; i++) {
        leave_pending(one, MIB);
        synchronise_stream(one);
    }
    unsigned records = fake_stream_calls().records;
    cr_assert_lt(records, 40);
    leave_pending(one, MIB);
    cr_assert_eq(fake_stream_calls().records, records);
}

Test(stream_order, outstanding_events_are_limited)
{
    CUdeviceptr blocks[100];
    start_streams();
    let_events_be_wanted(one, other, MIB);
    stream_called(one)->events_requested = 1000;
    for (int i = 0; i < 100; i++)
        blocks[i] = take_on(one, MIB);
    fake_stream_works(one);
    for (int i = 0; i < 100; i++)
        free_on(one, blocks[i]);
    cr_assert_eq(fake_stream_calls().records, OWN_EVENTS_MAX);
}

Test(stream_order, a_failed_record_leaves_the_block_pending)
{
    start_streams();
    let_events_be_wanted(one, other, MIB);
    fake_stream_fail_records(1);
    CUdeviceptr block = leave_pending(one, MIB);
    cr_assert_eq(bytes_of(one).pending, MIB);
    cr_assert_neq(take_on(other, MIB), block);
    cr_assert_eq(take_on(one, MIB), block);
}

Test(stream_order, before_a_capture_what_is_pending_gets_an_event)
{
    start_streams();
    leave_pending(one, MIB);
    pool_capture_about_to_begin(pool, NULL);
    fake_finish(context);
    stream_pending_query(pool, NULL);
    cr_assert_eq(bytes_of(one).cached, MIB);
}

static CUdeviceptr freed_in_between;

static void free_without_event(void)
{
    fake_stream_fail_records(1);
    free_on(one, freed_in_between);
}

/* Its own free is not the newest any more when the event is outstanding. */
Test(stream_order, an_event_covers_nothing_that_was_freed_while_it_was_recorded)
{
    start_streams();
    let_events_be_wanted(one, other, MIB);
    CUdeviceptr block = take_on(one, MIB);
    freed_in_between = take_on(one, 2 * MIB);
    fake_stream_works(one);
    fake_stream_during_record(free_without_event);
    free_on(one, block);
    cr_assert_eq(bytes_of(one).pending, 3 * MIB);
    cr_assert_eq(stream_called(one)->covered_bytes, MIB);
    fake_stream_is_done(one);
    stream_pending_query(pool, NULL);
    cr_assert_eq(bytes_of(one).cached, MIB);
}

/* Asked for nothing more, it would lie there for good. */
Test(stream_order, reap_waits_for_the_context_where_a_stream_left_no_event)
{
    start_streams();
    leave_pending(one, MIB);
    fake_stream_fail_records(1);
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
    own_events_record_missing(pool, ends);
    cr_assert_eq(fake_stream_calls().records, 0);
    atomic_store(&ends->dying, false);
    own_events_record_missing(pool, ends);
    cr_assert_eq(fake_stream_calls().records, 1);
}

/* ---- events of a record's former owner, in another context ---- */

/* One that is not over, and nothing is pending. */
static struct stream *leave_an_event(void)
{
    let_events_be_wanted(one, other, MIB);
    CUdeviceptr block = leave_pending(one, MIB);
    cr_assert_eq(take_on(one, MIB), block);
    free_on(other, block);
    synchronise_stream(other);
    pool_trim(pool);
    cr_assert_not_null(stream_called(one)->oldest);
    return stream_called(one);
}

static struct stream *begin_in_another_context(void)
{
    pool_stream_ending(pool, one);
    another_context(0);
    return stream_find(pool, fake_stream(), true).stream;
}

Test(stream_order, events_end_with_their_context)
{
    start_streams();
    struct stream *stream = leave_an_event();
    unsigned destroyed = fake_calls(FAKE_EVENT_DESTROY);
    cr_assert_eq(begin_in_another_context(), stream);
    cr_assert_null(stream->oldest);
    cr_assert_null(stream->spare);
    cr_assert_gt(fake_calls(FAKE_EVENT_DESTROY), destroyed);
}

static CUresult (*ask_fake)(CUevent);
static struct stream *begun;

static CUresult ask_as_the_stream_ends(CUevent event)
{
    driver->cuEventQuery = ask_fake;
    begun = begin_in_another_context();
    fake_set_current(context);
    return ask_fake(event);
}

/* An event of another context cannot be recorded on the stream. */
Test(stream_order, nor_does_one_that_was_being_asked_about_serve_again)
{
    start_streams();
    struct stream *stream = leave_an_event();
    CUcontext theirs;
    ask_fake = driver->cuEventQuery;
    driver->cuEventQuery = ask_as_the_stream_ends;
    own_events_query(pool, stream, stream->oldest->stamp);
    cr_assert_eq(begun, stream);
    cr_assert_not_null(stream->spare);
    cr_assert_neq(stream->spare->context, stream->context);
    theirs = stream->context->handle;
    fake_set_current(theirs);
    unsigned created = fake_calls(FAKE_EVENT_CREATE), destroyed = fake_calls(FAKE_EVENT_DESTROY);
    leave_pending(stream->handle, 64 * MIB);
    cr_assert_eq(fake_calls(FAKE_EVENT_CREATE), created + 1);
    cr_assert_eq(fake_calls(FAKE_EVENT_DESTROY), destroyed + 1);
    cr_assert_eq(stream->newest->context, stream->context);
}
