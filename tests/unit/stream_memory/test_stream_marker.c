/*
 * Streams that others order: what their own order gives once an operation is behind a free.
 */
#include "core/stream_memory/stream_shelf.h"
#include "streams_fixture.h"

TestSuite(stream_marker, .init = set_up_streams, .fini = tear_down, .timeout = 20);

/* More than a stream may leave without a marker. */
#define LARGE (64 * MIB)

Test(stream_marker, each_free_puts_one_there)
{
    CUdeviceptr blocks[8];
    start_streams();
    leave_many(NULL, 8, MIB, blocks);
    cr_assert_eq(fake_stream_calls().records, 8);
    cr_assert_eq(fake_calls(FAKE_EVENT_CREATE), 1);
    fake_trace();
    for (int i = 8; i-- > 0;)
        cr_assert_eq(take_on(NULL, MIB), blocks[i]);
    cr_assert_str_eq(fake_trace(), "");
}

Test(stream_marker, a_pair_costs_a_record)
{
    start_streams();
    for (int i = 0; i < 800; i++)
        leave_pending(NULL, MIB);
    cr_assert_eq(counted_streams().misses, 1);
    cr_assert_eq(fake_stream_calls().records, 800);
    cr_assert_eq(fake_stream_calls().queries, 0);
}

Test(stream_marker, and_so_does_one_of_any_size)
{
    start_streams();
    CUdeviceptr small = leave_pending(NULL, 4096);
    CUdeviceptr large = leave_pending(NULL, LARGE);
    cr_assert_eq(fake_stream_calls().records, 2);
    cr_assert_eq(take_on(NULL, 4096), small);
    cr_assert_eq(take_on(NULL, LARGE), large);
}

Test(stream_marker, a_wait_tells_of_the_frees_before_it)
{
    CUdeviceptr blocks[9];
    start_streams();
    leave_many(NULL, 9, MIB, blocks);
    synchronise_stream(NULL);
    cr_assert_eq(bytes_of(NULL).cached, 9 * MIB);
}

Test(stream_marker, a_wait_for_the_context_tells_of_all)
{
    start_streams();
    CUdeviceptr block = leave_pending(NULL, MIB);
    cr_assert_eq(synchronise(), CUDA_SUCCESS);
    cr_assert_eq(bytes_of(NULL).cached, MIB);
    cr_assert_eq(take_on(NULL, MIB), block);
}

/* A record, which they do not see either, and a wait for it. */
Test(stream_marker, it_is_one_that_waits_see)
{
    start_streams();
    pool_barrier_coming(pool, NULL);
    leave_pending(one, MIB);
    cr_assert_eq(fake_stream_calls().records, 1);
    cr_assert_eq(fake_stream_calls().waits, 1);
}

static void a_capture_comes(void)
{
    pool_capture_about_to_begin(pool, NULL);
}

/* Nothing could tell any more when it is over, unless its stream can be named. */
Test(stream_marker, frees_as_a_capture_comes_are_the_drivers)
{
    start_streams();
    pool_barrier_coming(pool, NULL);
    CUdeviceptr block = take_on(one, MIB), later = take_on(one, MIB);
    fake_stream_works(one);
    fake_stream_during_record(a_capture_comes);
    free_on(one, block);
    cr_assert_eq(bytes_of(one).pending, 0);
    pool_capture_has_come(pool);
    free_on(one, later);
    cr_assert_eq(bytes_of(one).pending, MIB);
}

Test(stream_marker, streams_of_their_own_need_none)
{
    start_streams();
    CUdeviceptr block = leave_pending(one, MIB);
    cr_assert_eq(take_on(one, MIB), block);
    cr_assert_eq(fake_stream_calls().records, 0);
}

Test(stream_marker, behind_a_barrier_every_stream_does)
{
    start_streams();
    CUdeviceptr block = leave_pending(one, MIB);
    pool_barrier_coming(pool, NULL);
    cr_assert_neq(take_on(one, MIB), block);
    synchronise_stream(one);
    cr_assert_eq(bytes_of(one).pending, MIB);
    block = leave_pending(one, 2 * MIB);
    cr_assert_eq(fake_stream_calls().records, 1);
    cr_assert_eq(take_on(one, 2 * MIB), block);
    CUstream later = fake_stream();
    leave_pending(later, MIB);
    cr_assert_eq(fake_stream_calls().records, 2);
}

/* The free that has one serves those from before as well. */
Test(stream_marker, and_what_was_freed_before_is_behind_the_next)
{
    CUdeviceptr blocks[2];
    start_streams();
    leave_many(one, 2, MIB, blocks);
    pool_barrier_coming(pool, NULL);
    leave_pending(one, 2 * MIB);
    cr_assert_eq(take_on(one, MIB), blocks[1]);
    cr_assert_eq(take_on(one, MIB), blocks[0]);
}

/* Only the green context's streams wait there, of which the pool knows as its device's. */
Test(stream_marker, and_behind_a_green_contexts)
{
    start_without_context();
    context = fake_primary(0);
    pool_primary_retained(pool, context, 0);
    one = fake_stream();
    pool_green_context_created(pool, (CUgreenCtx)5, 0);
    CUdeviceptr block = leave_pending(one, MIB);
    pool_green_barrier_coming(pool, (CUgreenCtx)5);
    cr_assert_neq(take_on(one, MIB), block);
    leave_pending(one, 2 * MIB);
    cr_assert_eq(fake_stream_calls().records, 1);
}

static CUresult flags_of_a_blocking_stream(CUstream stream, unsigned int *flags)
{
    (void)stream;
    *flags = CU_STREAM_DEFAULT;
    return CUDA_SUCCESS;
}

Test(stream_marker, blocking_streams_do)
{
    driver->cuStreamGetFlags = flags_of_a_blocking_stream;
    start_streams();
    leave_pending(one, MIB);
    cr_assert_eq(fake_stream_calls().records, 1);
}

Test(stream_marker, and_those_of_which_the_driver_does_not_tell)
{
    driver->cuStreamGetFlags = NULL;
    start_streams();
    leave_pending(one, MIB);
    cr_assert_eq(fake_stream_calls().records, 1);
}

Test(stream_marker, where_it_fails_the_driver_frees)
{
    CUdeviceptr blocks[2];
    driver->cuStreamGetFlags = flags_of_a_blocking_stream;
    start_streams();
    for (int i = 0; i < 2; i++)
        blocks[i] = take_on(one, i ? MIB : LARGE);
    fake_stream_fail_records(3);
    for (int i = 0; i < 2; i++)
        free_on(one, blocks[i]);
    cr_assert_eq(bytes_of(one).pending, 0);
    cr_assert_eq(bytes_of(one).live, 0);
}

/* There are no more events then, but there is still an operation. */
Test(stream_marker, it_goes_on_behind_work_that_does_not_end)
{
    start_streams();
    free_on(NULL, take_on(NULL, MIB));
    let_memory_be_short(true);
    CUdeviceptr block = leave_pending(NULL, LARGE);
    for (unsigned i = 0; i < 2 * STREAM_EVENTS_MAX; i++)
        cr_assert_eq(leave_pending(NULL, LARGE), block);
    cr_assert_leq(fake_calls(FAKE_EVENT_CREATE), STREAM_EVENTS_MAX + 1);
    cr_assert_eq(counted_streams().misses, 2);
}

Test(stream_marker, what_is_over_serves_again)
{
    start_streams();
    for (unsigned i = 0; i < 10 * STREAM_EVENTS_MAX; i++) {
        leave_pending(NULL, LARGE);
        if (i % 16 == 0)
            fake_stream_is_done(NULL);
    }
    cr_assert_lt(fake_calls(FAKE_EVENT_CREATE), STREAM_EVENTS_MAX);
    cr_assert_lt(fake_stream_calls().queries, 2 * STREAM_EVENTS_MAX);
}

/* What it would be made to wait for, others that it orders need not wait for. */
Test(stream_marker, it_takes_of_others_only_what_is_over)
{
    start_streams();
    free_on(one, take_on(one, 4096));
    let_memory_be_short(true);
    CUdeviceptr block = leave_pending(one, MIB);
    unsigned waits = fake_stream_calls().waits;
    fake_stream_refuse_memory(1);
    CUdeviceptr instead = 0;
    CUresult result;
    pool_allocate_async(pool, &instead, MIB, NULL, NULL, &result);
    cr_assert_eq(fake_stream_after(NULL, one), 0);
    cr_assert_eq(fake_stream_calls().waits, waits);
    synchronise_stream(one);
    cr_assert_eq(take_on(NULL, MIB), block);
}

Test(stream_marker, reap_waits_for_the_context)
{
    start_streams();
    leave_pending(NULL, LARGE);
    leave_pending(one, MIB);
    fake_stream_is_done(NULL);
    fake_stream_is_done(one);
    cr_assert_eq(pool_reap(pool), 2);
    cr_assert_eq(bytes_of(NULL).cached, LARGE);
    cr_assert_eq(bytes_of(one).cached, MIB);
    cr_assert_eq(fake_calls(FAKE_STREAM_SYNCHRONIZE), 0);
    cr_assert_eq(pool_reap(pool), 0);
}

static CUdeviceptr freed_in_between;

static void free_another(void)
{
    free_on(NULL, freed_in_between);
}

/* Two threads that free at once have made one each. */
Test(stream_marker, one_is_enough)
{
    start_streams();
    CUdeviceptr block = take_on(NULL, MIB);
    freed_in_between = take_on(NULL, MIB);
    fake_stream_works(NULL);
    fake_stream_during_record(free_another);
    free_on(NULL, block);
    cr_assert_eq(fake_calls(FAKE_EVENT_CREATE), 2);
    leave_pending(NULL, LARGE);
    cr_assert_eq(fake_calls(FAKE_EVENT_DESTROY), 1);
    leave_pending(NULL, 2 * MIB);
    cr_assert_eq(fake_calls(FAKE_EVENT_CREATE), 3);
    cr_assert_eq(stream_called(NULL)->events.marker->users, 0);
}

/* One that has none must wait, whichever is the newer. */
Test(stream_marker, the_oldest_serves_where_the_newest_has_none)
{
    CUdeviceptr blocks[2];
    start_streams();
    leave_many(NULL, 2, MIB, blocks);
    stream_called(NULL)->marked = 1;
    counter_set(&stream_called(NULL)->pending.last->epoch, 2);
    cr_assert_eq(take_on(NULL, MIB), blocks[0]);
    cr_assert_neq(take_on(NULL, MIB), blocks[1]);
}

/* A profiler's, told from inside a call of ours. */
Test(stream_marker, a_nested_barrier_counts)
{
    start_streams();
    CUdeviceptr block = leave_pending(one, MIB);
    driver_calls.depth++;
    fake_set_current(NULL);
    pool_barrier_coming(pool, NULL);
    fake_set_current(context);
    cr_assert(stream_called(one)->own_order);
    pool_barrier_coming(pool, NULL);
    driver_calls.depth--;
    cr_assert_neq(take_on(one, MIB), block);
}

/* ---- events that tell of much ---- */

Test(stream_marker, a_free_of_much_records_an_event)
{
    start_streams();
    leave_pending(one, 40 * MIB);
    cr_assert_eq(fake_stream_calls().records, 1);
    cr_assert_eq(stream_called(one)->covered_bytes, 40 * MIB);
}

Test(stream_marker, so_do_many_of_less)
{
    CUdeviceptr blocks[10];
    start_streams();
    for (int i = 0; i < 10; i++)
        blocks[i] = take_on(one, 4 * MIB);
    for (int i = 0; i < 10; i++)
        free_on(one, blocks[i]);
    cr_assert_eq(fake_stream_calls().records, 1);
}

Test(stream_marker, where_memory_is_short_less_is_much)
{
    start_streams();
    take_on(other, 40 * GIB);
    leave_pending(one, 9 * MIB);
    cr_assert_eq(fake_stream_calls().records, 1);
    leave_pending(one, 7 * MIB);
    cr_assert_eq(fake_stream_calls().records, 1);
    leave_pending(one, 2 * MIB);
    cr_assert_eq(fake_stream_calls().records, 2);
}

/* Nor is less than the driver keeps itself, which others than the settings may say; up to a 64th of
 * the device. */
Test(stream_marker, what_the_driver_would_keep_is_not_much)
{
    settings.stream_ordered.driver_release_threshold.unlimited = true;
    start_streams();
    *fake_mempool_attribute((CUmemoryPool)0x100, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) = UINT64_MAX;
    leave_pending(one, 60 * MIB);
    cr_assert_eq(fake_stream_calls().records, 0);
    leave_pending(one, 600 * MIB);
    cr_assert_eq(fake_stream_calls().records, 1);
}

/* What is taken and freed again is no more than before. */
Test(stream_marker, pairs_are_not_much)
{
    start_streams();
    for (int i = 0; i < 100; i++)
        leave_pending(one, 30 * MIB);
    cr_assert_eq(fake_stream_calls().records, 0);
}

/* ---- what is counted ---- */

static void check_sums(const struct stream *stream)
{
    uint64_t covered = 0, pending = 0;
    for (const struct block *b = stream->pending.first; b; b = b->links[LINK_HEAP].next) {
        pending += b->bytes;
        covered += counter_get(&b->epoch) <= stream->covered ? b->bytes : 0;
    }
    cr_assert_eq(covered, stream->covered_bytes);
    cr_assert_eq(pending, counter_get(&stream->free_bytes) - counter_get(&stream->clean_bytes));
    cr_assert_leq(stream->marked, epoch_current(&stream->context->epochs));
    cr_assert_leq(stream->unchecked.bytes, (int64_t)stream->unchecked.cap);
}

/* A step of a random program, on two streams and the legacy one. */
static void do_something(unsigned random, CUdeviceptr *block, CUstream stream)
{
    if (*block) {
        fake_stream_works(stream);
        free_on(stream, *block);
        *block = 0;
    } else {
        *block = take_on(stream, (random % 5 + 1) * 3 * MIB);
    }
    if (random % 61 == 0)
        synchronise_stream(stream);
    if (random % 67 == 0)
        fake_stream_is_done(stream);
    if (random % 71 == 0)
        stream_pending_query(pool, NULL);
    if (random % 401 == 0)
        pool_trim(pool);
    if (random % 997 == 0)
        cr_assert_eq(synchronise(), CUDA_SUCCESS);
}

Test(stream_marker, sums_are_right)
{
    CUdeviceptr blocks[40] = {0};
    unsigned random = 1;
    start_streams();
    CUstream streams[] = {one, other, NULL};
    for (int i = 0; i < 20000; i++) {
        random = random * 1664525u + 1013904223u;
        do_something(random >> 8, &blocks[(random >> 24) % 40], streams[i % 3]);
        for (unsigned j = 0; j < stream_count(streams_of(pool)); j++)
            check_sums(stream_at(streams_of(pool), j));
    }
}

/* Sizes of which each is missed, and takes the place of what was freed before it. */
static void take_sizes_that_crowd_each_other_out(unsigned pairs)
{
    static unsigned turn;
    for (unsigned i = 0; i < pairs; i++)
        free_on(NULL, take_on(NULL, (5 + turn++ % 3) * MIB));
}

Test(stream_marker, what_comes_back_to_nobody_gets_none)
{
    settings.device.growth_budget.bytes = 0;
    settings.stream_ordered.caps.reserve_ratio = 1.0;
    start_streams();
    free_on(NULL, take_on(NULL, 8 * MIB));
    take_sizes_that_crowd_each_other_out(8);
    unsigned records = fake_stream_calls().records;
    take_sizes_that_crowd_each_other_out(60);
    cr_assert_eq(fake_stream_calls().records, records, "%u more",
                 fake_stream_calls().records - records);
}

/* ---- where there is a marker already, and nothing else to be seen to ---- */

static void start_with_marker(void)
{
    start_streams();
    pool_barrier_coming(pool, NULL);
    leave_pending(one, 4 * MIB);
    leave_pending(one, MIB);
    cr_assert_not_null(stream_called(one)->events.marker);
}

static CUresult not_marked_at_once(CUdeviceptr address, CUstream stream)
{
    (void)address, (void)stream;
    return CUDA_ERROR_NOT_READY;
}

static bool free_at_once(CUstream stream, CUdeviceptr address)
{
    return pool_free_async_at_once(pool, address, stream, not_marked_at_once) == CUDA_SUCCESS;
}

Test(stream_marker, the_next_free_looks_no_further)
{
    start_with_marker();
    CUdeviceptr block = take_on(one, MIB);
    unsigned records = fake_stream_calls().records;
    cr_assert(free_at_once(one, block));
    cr_assert_eq(fake_stream_calls().records, records + 1);
    cr_assert_eq(bytes_of(one).pending, 5 * MIB);
    cr_assert_eq(take_on(one, MIB), block);
}

Test(stream_marker, nor_where_it_fails_which_changes_nothing)
{
    start_with_marker();
    CUdeviceptr block = take_on(one, MIB);
    fake_stream_fail_records(1);
    cr_assert_not(free_at_once(one, block));
    cr_assert_eq(bytes_of(one).live, MIB);
    cr_assert_eq(bytes_of(one).pending, 4 * MIB);
    cr_assert(free_at_once(one, block));
    cr_assert_eq(bytes_of(one).live, 0);
}

Test(stream_marker, as_a_capture_comes_there_it_is_the_drivers)
{
    start_with_marker();
    CUdeviceptr block = take_on(one, MIB);
    fake_stream_works(one);
    fake_stream_during_record(a_capture_comes);
    free_on(one, block);
    cr_assert_eq(bytes_of(one).pending, 4 * MIB);
    cr_assert_eq(bytes_of(one).live, 0);
    pool_capture_has_come(pool);
}

static struct context *ending;

static void the_context_begins_to_end(void)
{
    atomic_store(&ending->dying, true);
}

/* What would come to lie there then would be given back by nobody. */
Test(stream_marker, as_the_context_ends_too)
{
    start_with_marker();
    CUdeviceptr block = take_on(one, MIB);
    ending = context_find(pool, context);
    fake_stream_during_record(the_context_begins_to_end);
    cr_assert_not(free_at_once(one, block));
    atomic_store(&ending->dying, false);
    cr_assert_eq(bytes_of(one).live, MIB);
}

/* Nothing else may put an event there later. */
Test(stream_marker, where_memory_is_short_each_free_records_an_event)
{
    start_with_marker();
    CUdeviceptr block = take_on(one, MIB);
    let_memory_be_short(true);
    cr_assert_null(stream_called(one)->events.list);
    free_on(one, block);
    cr_assert_not_null(stream_called(one)->events.list);
}

Test(stream_marker, after_early_launches_each_free_records_a_fence)
{
    start_with_marker();
    CUdeviceptr block = take_on(one, MIB);
    pool_early_launch(pool, one);
    unsigned records = fake_calls(FAKE_RECORD);
    free_on(one, block);
    cr_assert_eq(fake_calls(FAKE_RECORD), records + 1);
}

Test(stream_marker, nor_is_one_put_there_that_does_not_pay)
{
    start_with_marker();
    CUdeviceptr block = take_on(one, MIB);
    stream_called(one)->bypass.for_driver = 1;
    cr_assert_not(free_at_once(one, block));
    cr_assert_eq(stream_called(one)->bypass.for_driver, 1);
}

Test(stream_marker, now_and_then_its_share_is_reckoned_anew)
{
    start_with_marker();
    struct stream *stream = stream_called(one);
    stream->unchecked.may_be_uncovered = 12345678;
    for (unsigned i = 0; i <= FREES_PER_LOOK; i++)
        free_on(one, take_on(one, MIB));
    cr_assert_neq(stream->unchecked.may_be_uncovered, 12345678);
}

static void the_housekeeper_ends(void)
{
    stream_reserve_watch(pool);
}

/* Which has seen nothing free. */
Test(stream_marker, the_clock_is_looked_at_where_the_housekeeper_ends_meanwhile)
{
    start_with_marker();
    struct stream *stream = stream_called(one);
    CUdeviceptr block = take_on(one, MIB);
    stream->now = 0;
    fake_stream_during_record(the_housekeeper_ends);
    cr_assert(free_at_once(one, block));
    cr_assert_neq(stream->now, 0);
}
