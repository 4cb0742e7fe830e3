/*
 * Giving stream-ordered memory back.
 */
#include <pthread.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/contexts/registry.h"
#include "core/stream_memory/stream_events.h"
#include "core/stream_memory/stream_pending.h"
#include "core/stream_memory/stream_release.h"
#include "core/stream_memory/stream_reserve.h"
#include "core/stream_memory/stream_shelf.h"
#include "streams_fixture.h"

TestSuite(stream_release, .init = set_up_streams, .fini = tear_down, .timeout = 20);

static void fill_stream(CUstream stream, unsigned count, size_t bytes)
{
    CUdeviceptr blocks[64];
    leave_many(stream, count, bytes, blocks);
}

Test(stream_release, the_cap_holds_for_what_is_pending)
{
    settings.stream_ordered.caps.cached = (struct byte_size){.bytes = 4 * MIB};
    start_streams();
    fill_stream(one, 10, MIB);
    cr_assert_eq(bytes_of(one).pending, 4 * MIB);
    cr_assert_eq(fake_bytes_used(0), 4 * MIB);
}

Test(stream_release, over_the_cap_what_is_over_goes_first)
{
    settings.stream_ordered.caps.cached = (struct byte_size){.bytes = 4 * MIB};
    start_streams();
    fill_stream(one, 4, MIB);
    synchronise_stream(one);
    fill_stream(other, 2, 2 * MIB);
    cr_assert_eq(bytes_of(other).pending, 4 * MIB);
    cr_assert_eq(bytes_of(one).cached, 0);
    cr_assert_eq(counted_streams().evictions.cap, 4);
}

/* A block carries the time of its stream's last look. */
static void leave_clean_at(CUstream stream, size_t bytes, uint64_t now)
{
    CUdeviceptr block = take_on(stream, bytes);
    lock_take(&stream_called(stream)->lock, LOCK_STREAM);
    shelf_note_time(stream_called(stream), now);
    lock_give(&stream_called(stream)->lock);
    free_on(stream, block);
    synchronise_stream(stream);
}

/* Of an older block of 1 MiB and a newer one of 4 MiB one goes back. */
static void give_one_back(enum evict_policy policy)
{
    settings.stream_ordered.evict = policy;
    start_streams();
    leave_clean_at(one, MIB, 1000);
    leave_clean_at(other, 4 * MIB, 2000);
    stream_pending_query(pool, device());
    stream_release_clean(pool, device(), 1, EVICTION_CAP, RELEASE_IN_ALLOCATION);
}

Test(stream_release, the_largest_goes_first)
{
    give_one_back(EVICT_LARGEST_FIRST);
    cr_assert_eq(bytes_of(one).cached, MIB);
    cr_assert_eq(bytes_of(other).cached, 0);
}

Test(stream_release, or_the_least_recently_used)
{
    give_one_back(EVICT_LEAST_RECENTLY_USED);
    cr_assert_eq(bytes_of(one).cached, 0);
    cr_assert_eq(bytes_of(other).cached, 4 * MIB);
}

Test(stream_release, a_full_bucket_takes_no_more)
{
    settings.stream_ordered.caps.blocks_per_bucket = 3;
    start_streams();
    fill_stream(one, 5, MIB);
    cr_assert_eq(bytes_of(one).pending, 3 * MIB);
    fill_stream(one, 2, 2 * MIB);
    cr_assert_eq(bytes_of(one).pending, 7 * MIB);
}

Test(stream_release, many_streams_stay_inside_the_cap_together)
{
    settings.stream_ordered.caps.cached = (struct byte_size){.bytes = 64 * MIB};
    start_streams();
    for (int i = 0; i < 40; i++)
        fill_stream(fake_stream(), 8, MIB);
    cr_assert_leq(pool_device_bytes(pool, 0).cached + pool_device_bytes(pool, 0).pending, 64 * MIB);
    cr_assert_geq(pool_device_bytes(pool, 0).cached + pool_device_bytes(pool, 0).pending, 60 * MIB);
}

Test(stream_release, the_reserve_keeps_its_ratio)
{
    settings.device.growth_budget.bytes = 0;
    settings.stream_ordered.caps.reserve_ratio = 1.0;
    settings.stream_ordered.driver_release_threshold.bytes = 0;
    start_streams();
    fill_stream(one, 8, MIB);
    synchronise_stream(one);
    take_on(one, 16 * MIB);
    cr_assert_eq(bytes_of(one).cached, 0);
    cr_assert_eq(fake_bytes_used(0), 16 * MIB);
}

static void stay_below_the_floor(void)
{
    settings.device.growth_budget.bytes = 0;
    settings.stream_ordered.caps.reserve_ratio = 1.0;
    settings.stream_ordered.reserve_floor.bytes = 24 * MIB;
    settings.stream_ordered.driver_release_threshold.bytes = 0;
    start_streams();
    fill_stream(one, 8, MIB);
    synchronise_stream(one);
}

Test(stream_release, below_the_floor_the_ratio_sends_nothing_back)
{
    stay_below_the_floor();
    take_on(one, 16 * MIB);
    cr_assert_eq(bytes_of(one).cached, 8 * MIB);
    take_on(one, 2 * MIB);
    cr_assert_leq(fake_bytes_used(0), 24 * MIB);
}

Test(stream_release, where_memory_is_short_there_is_no_floor)
{
    stay_below_the_floor();
    device_set_short(context_find(pool, context)->device, true);
    take_on(one, 16 * MIB);
    cr_assert_eq(bytes_of(one).cached, 0);
}

static void keep_to_the_peak(void)
{
    settings.device.growth_budget.bytes = 0;
    settings.stream_ordered.caps.reserve_ratio = 1.0;
    settings.stream_ordered.driver_release_threshold.bytes = 0;
    start_streams();
}

/* What the driver's pool would hold on to it would give out again in other sizes. */
Test(stream_release, a_threshold_keeps_no_more_than_was_needed_once)
{
    settings.device.growth_budget.bytes = 4 * MIB;
    settings.stream_ordered.caps.reserve_ratio = 1.0;
    settings.stream_ordered.driver_release_threshold.bytes = 40 * GIB;
    start_streams();
    for (unsigned i = 1; i <= 100; i++) {
        free_on(one, take_on(one, i * MIB / 4));
        synchronise_stream(one);
    }
    cr_assert_geq(bytes_of(one).cached, 29 * MIB, "%lu", bytes_of(one).cached);
    cr_assert_leq(bytes_of(one).cached, 66 * MIB);
}

/* Nothing is over, and no event can tell. */
Test(stream_release, what_a_stream_left_pending_goes_before_it_grows)
{
    keep_to_the_peak();
    fake_stream_fail_records(100);
    fill_stream(one, 8, MIB);
    take_on(one, 10 * MIB);
    cr_assert_eq(bytes_of(one).pending, 0);
    cr_assert_eq(fake_bytes_used(0), 10 * MIB);
    cr_assert_eq(fake_calls(FAKE_STREAM_SYNCHRONIZE), 0);
}

/* No more than the excess. */
Test(stream_release, and_no_more_than_that)
{
    keep_to_the_peak();
    fake_stream_fail_records(100);
    fill_stream(one, 8, MIB);
    take_on(one, 4 * MIB);
    cr_assert_eq(bytes_of(one).pending, 4 * MIB);
}

Test(stream_release, what_others_left_pending_goes_behind_events)
{
    keep_to_the_peak();
    fill_stream(one, 8, MIB);
    take_on(other, 10 * MIB);
    cr_assert_eq(bytes_of(one).pending, 0);
    cr_assert_eq(fake_calls(FAKE_STREAM_SYNCHRONIZE), 0);
}

/* What two streams have needed together: a small block, and four large ones. */
static CUdeviceptr leave_small_and_large(void)
{
    keep_to_the_peak();
    CUdeviceptr small = take_on(one, KIB);
    fill_stream(other, 4, 4 * MIB);
    fake_stream_works(one);
    free_on(one, small);
    return small;
}

/* Each costs a call of the driver's, and a miss later. */
Test(stream_release, small_ones_stay_where_a_few_large_ones_will_do)
{
    CUdeviceptr small = leave_small_and_large();
    take_on(fake_stream(), 8 * MIB);
    cr_assert_eq(bytes_of(other).pending + bytes_of(other).cached, 8 * MIB);
    cr_assert_eq(take_on(one, KIB), small);
}

Test(stream_release, also_of_what_is_over)
{
    settings.stream_ordered.evict = EVICT_LEAST_RECENTLY_USED;
    leave_small_and_large();
    synchronise_stream(one);
    synchronise_stream(other);
    take_on(fake_stream(), 8 * MIB);
    cr_assert_eq(bytes_of(other).cached, 8 * MIB);
    cr_assert_eq(bytes_of(one).cached, KIB);
}

Test(stream_release, and_go_where_there_are_no_others)
{
    keep_to_the_peak();
    fill_stream(one, 64, 64 * KIB);
    take_on(other, 8 * MIB);
    cr_assert_eq(bytes_of(one).pending, 0);
}

/* The event does not come after that free. */
Test(stream_release, what_was_freed_after_the_last_event_stays)
{
    start_streams();
    free_on(other, take_on(other, 4096));
    let_memory_be_short(true);
    fill_stream(one, 1, MIB);
    let_memory_be_short(false);
    cr_assert_eq(fake_stream_calls().records, 1);
    fill_stream(one, 1, 2 * MIB);
    cr_assert_eq(fake_stream_calls().records, 1);
    fake_stream_refuse_memory(2); /* also behind what the stream itself has left */
    take_on(other, 2 * MIB);
    cr_assert_eq(bytes_of(one).pending, 2 * MIB);
}

struct question {
    struct stream *stream;
    struct stream_event *event;
};

static void *put_event_back(void *argument)
{
    const struct question *question = argument;
    usleep(5000);
    lock_take(&question->stream->lock, LOCK_STREAM);
    stream_events_put(question->stream, question->event);
    lock_give(&question->stream->lock);
    return NULL;
}

/* Whoever is out of memory finds no other. */
Test(stream_release, an_event_that_another_thread_asks_about_is_waited_for)
{
    start_streams();
    let_memory_be_short(true);
    fill_stream(one, 1, MIB);
    struct stream *stream = stream_called(one);
    lock_take(&stream->lock, LOCK_STREAM);
    struct question question = {stream, stream_events_take(stream, 0)};
    lock_give(&stream->lock);
    cr_assert_not_null(question.event);
    pthread_t asking;
    cr_assert_eq(pthread_create(&asking, NULL, put_event_back, &question), 0);
    cr_assert(context_pin(stream->context, stream->generation));
    cr_assert_eq(stream_release_behind_every_event(pool, stream->context), MIB);
    context_unpin(stream->context);
    pthread_join(asking, NULL);
}

/* An event that stands for more than the free is only asked about. */
Test(stream_release, what_others_left_goes_behind_no_later_work)
{
    settings.device.growth_budget.bytes = 128 * MIB;
    settings.stream_ordered.caps.reserve_ratio = 1.0;
    settings.stream_ordered.driver_release_threshold.bytes = 0;
    start_streams();
    fill_stream(one, 4, 2 * MIB);
    fake_launch(context);
    stream_pending_capture_comes(pool);
    fill_stream(other, 40, 4 * MIB);
    take_on(fake_stream(), 174 * MIB);
    cr_assert_eq(bytes_of(one).pending, 8 * MIB);
    cr_assert_lt(bytes_of(other).pending, 160 * MIB);
}

Test(stream_release, as_memory_runs_short_what_is_pending_gets_fences)
{
    start_streams();
    fill_stream(one, 1, MIB);
    cr_assert_eq(fake_calls(FAKE_RECORD), 0);
    take_on(other, 40 * GIB);
    cr_assert_eq(fake_calls(FAKE_RECORD), 1);
    fill_stream(one, 2, MIB);
    take_on(other, GIB);
    cr_assert_eq(fake_calls(FAKE_RECORD), 1);
    take_on(other, 12 * GIB);
    cr_assert_eq(fake_calls(FAKE_RECORD), 2);
}

/* Others order it: in its own order, where a free of ours would be counted as a mistake, nothing
 * may go in an allocation. */
Test(stream_release, nothing_goes_in_others_order)
{
    keep_to_the_peak();
    fill_stream(NULL, 8, MIB);
    take_on(NULL, 10 * MIB);
    cr_assert_eq(bytes_of(NULL).pending, 0);
}

/* Given back to it, the memory would stay with the driver. */
Test(stream_release, the_reserve_may_be_what_the_driver_keeps)
{
    settings.device.growth_budget.bytes = 0;
    settings.stream_ordered.caps.reserve_ratio = 1.0;
    settings.stream_ordered.driver_release_threshold.bytes = 24 * MIB;
    start_streams();
    fill_stream(one, 8, MIB);
    synchronise_stream(one);
    take_on(one, 16 * MIB);
    cr_assert_eq(bytes_of(one).cached, 8 * MIB);
    take_on(one, 2 * MIB);
    cr_assert_eq(bytes_of(one).cached, 6 * MIB);
}

Test(stream_release, idle_blocks_go)
{
    settings.stream_ordered.release_after_idle_ns = 1000000;
    start_streams();
    fill_stream(one, 4, MIB);
    synchronise_stream(one);
    struct timespec nap = {0, 3000000};
    nanosleep(&nap, NULL);
    for (int i = 0; i < 100; i++)
        free_on(other, take_on(other, 4096));
    cr_assert_eq(bytes_of(one).cached, 0);
    cr_assert_eq(counted_streams().evictions.idle, 4);
}

/* In between the housekeeper answers its neighbours. */
Test(stream_release, idle_blocks_go_in_portions)
{
    start_streams();
    fill_stream(one, 12, 2 * GIB);
    synchronise_stream(one);
    uint64_t idle = settings.stream_ordered.release_after_idle_ns + HOUSEKEEPING_INTERVAL;
    uint64_t due = monotonic_now() + idle + 1;
    for (uint64_t left = 24; left > 0; left -= 8) {
        cr_assert_eq(bytes_of(one).cached, left * GIB);
        cr_assert_eq(stream_reserve_release_idle(pool, device(), due), RELEASE_MORE_AT_ONCE);
    }
    cr_assert_eq(stream_reserve_release_idle(pool, device(), due), UINT64_MAX);
    cr_assert_eq(bytes_of(one).cached, 0);
}

Test(stream_release, trim_gives_back_what_is_over)
{
    start_streams();
    fill_stream(one, 4, MIB);
    fill_stream(other, 4, MIB);
    synchronise_stream(one);
    cr_assert_eq(pool_trim(pool), 4 * MIB);
    cr_assert_eq(bytes_of(other).pending, 4 * MIB);
    cr_assert_eq(fake_bytes_used(0), 4 * MIB);
}

Test(stream_release, what_the_driver_refuses_stays)
{
    start_streams();
    fill_stream(one, 2, MIB);
    synchronise_stream(one);
    fake_fail(FAKE_MEM_FREE_ASYNC, CUDA_ERROR_UNKNOWN, 1);
    fake_fail(FAKE_MEM_FREE, CUDA_ERROR_UNKNOWN, 1);
    cr_assert_eq(pool_trim(pool), MIB);
    cr_assert_eq(bytes_of(one).cached, MIB);
    take_on(one, MIB);
    cr_assert_eq(counted_streams().misses, 2);
}

Test(stream_release, out_of_memory_takes_what_is_cached)
{
    start_streams();
    fill_stream(one, 4, GIB);
    synchronise_stream(one);
    take_on(other, 31 * GIB);
    take_on(other, 31 * GIB);
    cr_assert_eq(bytes_of(one).cached, 0);
}

Test(stream_release, out_of_memory_takes_its_own_in_order)
{
    start_streams();
    fill_stream(one, 2, 20 * GIB);
    take_on(one, 31 * GIB);
    cr_assert_eq(bytes_of(one).live, 31 * GIB);
    cr_assert_leq(bytes_of(one).pending, 20 * GIB);
}

Test(stream_release, device_memory_finds_room_too)
{
    start_streams();
    fill_stream(one, 4, 8 * GIB);
    synchronise_stream(one);
    allocate(31 * GIB);
    allocate(31 * GIB);
    cr_assert_eq(bytes_of(one).cached, 0);
}

Test(stream_release, out_of_memory_for_good_is_the_drivers_answer)
{
    CUdeviceptr address;
    CUresult result = CUDA_SUCCESS;
    start_streams();
    take_on(one, 40 * GIB);
    cr_assert(pool_allocate_async(pool, &address, 40 * GIB, NULL, one, &result));
    cr_assert_eq(result, CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(reserved_bytes(), 40 * GIB);
}

Test(stream_release, the_hard_limit_counts_both_kinds)
{
    CUdeviceptr address;
    CUresult result = CUDA_SUCCESS;
    settings.limits.device_bytes = (struct byte_size){.bytes = 8 * MIB};
    start_streams();
    allocate(4 * MIB);
    take_on(one, 4 * MIB);
    cr_assert(pool_allocate_async(pool, &address, MIB, NULL, one, &result));
    cr_assert_eq(result, CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(try_to_allocate(MIB), CUDA_ERROR_OUT_OF_MEMORY);
}

static unsigned asked;

static void works_until_asked_often(void)
{
    if (++asked == 3)
        fake_stream_is_done(one);
}

static CUresult (*ask_fake)(CUevent);

static CUresult count_question(CUevent event)
{
    works_until_asked_often();
    return ask_fake(event);
}

Test(stream_release, reap_waits_for_those_with_pending_frees)
{
    ask_fake = driver->cuEventQuery;
    driver->cuEventQuery = count_question;
    start_streams();
    fill_stream(one, 2, MIB);
    fill_stream(other, 2, MIB);
    synchronise_stream(other);
    cr_assert_eq(pool_reap(pool), 1);
    cr_assert_eq(asked, 3);
    cr_assert_eq(bytes_of(one).cached, 2 * MIB);
    cr_assert_eq(pool_reap(pool), 0);
}

Test(stream_release, a_context_takes_its_pending_blocks_along)
{
    start_streams();
    fill_stream(one, 3, MIB);
    fake_launch(context);
    end_context(context);
    cr_assert_eq(fake_bytes_used(0), 0);
    cr_assert_eq(pool_device_bytes(pool, 0).pending, 0);
}

/* ---- what the driver refuses ---- */

static void leave_for_another(void)
{
    keep_to_the_peak();
    fill_stream(one, 8, MIB);
}

static void expect_to_stay(void)
{
    cr_assert_eq(bytes_of(one).pending, 8 * MIB);
    cr_assert_eq(bytes_of(one).live, 0);
    cr_assert_eq(fake_calls(FAKE_STREAM_CREATE), fake_calls(FAKE_STREAM_DESTROY));
    cr_assert_eq(atomic_load(&stream_called(one)->detached), 0);
}

static CUresult (*wait_fake)(CUstream, CUevent, unsigned int);

static CUresult never_wait(CUstream stream, CUevent event, unsigned int flags)
{
    (void)stream;
    (void)event;
    (void)flags;
    return CUDA_ERROR_UNKNOWN;
}

/* Given back before the work is over, it would be another's too early. */
Test(stream_release, what_cannot_go_behind_an_event_stays)
{
    leave_for_another();
    wait_fake = driver->cuStreamWaitEvent;
    driver->cuStreamWaitEvent = never_wait;
    take_on(other, 10 * MIB);
    expect_to_stay();
    driver->cuStreamWaitEvent = wait_fake;
    take_on(other, 2 * MIB);
    cr_assert_eq(bytes_of(one).pending, 0);
}

static CUresult late_streams_answer;

static CUresult query_late_stream(CUstream stream)
{
    (void)stream;
    return late_streams_answer;
}

/* The context's own stream for it is behind other work. */
Test(stream_release, what_no_stream_can_be_made_for_stays)
{
    driver->cuStreamQuery = query_late_stream;
    leave_for_another();
    take_on(other, 10 * MIB);
    cr_assert_eq(bytes_of(one).pending, 0);
    cr_assert_eq(fake_calls(FAKE_STREAM_CREATE), 1);
    fill_stream(one, 8, MIB);
    late_streams_answer = CUDA_ERROR_NOT_READY;
    fake_fail(FAKE_STREAM_CREATE, CUDA_ERROR_OUT_OF_MEMORY, 100);
    take_on(other, 10 * MIB);
    cr_assert_eq(bytes_of(one).pending, 8 * MIB);
    cr_assert_eq(fake_calls(FAKE_STREAM_DESTROY), 0);
}

/* A plain free relies on nobody's work being behind it but the event's. */
Test(stream_release, a_plain_free_whose_context_has_ended_is_the_drivers)
{
    start_streams();
    CUdeviceptr block = take_on(one, MIB);
    struct context *gone = context_find(pool, context);
    struct fence_event event = {.context = gone, .generation = context_generation(gone) + 2};
    unsigned frees = fake_calls(FAKE_MEM_FREE_ASYNC);
    cr_assert_not(stream_release_one_behind(pool, &event, block));
    cr_assert_eq(fake_calls(FAKE_MEM_FREE_ASYNC), frees);
}

Test(stream_release, nothing_of_a_context_that_ends_is_given_back)
{
    start_streams();
    fill_stream(one, 4, MIB);
    synchronise_stream(one);
    struct context *ends = context_find(pool, context);
    atomic_store(&ends->dying, true);
    cr_assert_eq(pool_trim(pool), 0);
    cr_assert_eq(bytes_of(one).cached, 4 * MIB);
    atomic_store(&ends->dying, false);
    cr_assert_eq(pool_trim(pool), 4 * MIB);
}

/* ---- waiting for a context ---- */

static struct context *ending;
static unsigned marked_as;
enum { DYING, ANOTHERS };

static CUresult begin_the_end(CUevent event)
{
    CUresult result = ask_fake(event);
    driver->cuEventQuery = ask_fake;
    if (marked_as == DYING)
        atomic_store(&ending->dying, true);
    else
        atomic_fetch_add(&ending->generation, 2);
    return result;
}

/* Whether who waits for at most so many milliseconds does so to the end. */
static bool waits_as_the_context_ends(unsigned as, uint64_t milliseconds)
{
    marked_as = as;
    ask_fake = driver->cuEventQuery;
    start_streams();
    fill_stream(one, 2, MIB);
    fake_launch(context);
    ending = context_find(pool, context);
    fake_stream_fail_records(100);
    driver->cuEventQuery = begin_the_end;
    uint64_t give_up_at = monotonic_now() + milliseconds * 1000000;
    unsigned destroyed = fake_calls(FAKE_EVENT_DESTROY);
    stream_pending_wait_until(pool, NULL, give_up_at);
    cr_assert_eq(fake_calls(FAKE_EVENT_DESTROY), destroyed);
    return monotonic_now() >= give_up_at;
}

/* It may live on. */
Test(stream_release, a_context_that_may_end_is_not_asked_about)
{
    cr_assert(waits_as_the_context_ends(DYING, 50));
    cr_assert_eq(bytes_of(one).pending, 2 * MIB);
}

Test(stream_release, and_one_that_has_ended_is_not_waited_for)
{
    cr_assert_not(waits_as_the_context_ends(ANOTHERS, 10000));
}

/* Something is wrong there: nobody waits for what may never be over. */
Test(stream_release, where_no_event_can_be_recorded_nothing_is_waited_for)
{
    start_streams();
    fill_stream(one, 2, MIB);
    fake_fail(FAKE_RECORD, CUDA_ERROR_UNKNOWN, 1);
    unsigned created = fake_calls(FAKE_EVENT_CREATE), destroyed = fake_calls(FAKE_EVENT_DESTROY);
    uint64_t give_up_at = monotonic_now() + UINT64_C(10000000000);
    stream_pending_wait_until(pool, NULL, give_up_at);
    cr_assert_lt(monotonic_now(), give_up_at);
    cr_assert_eq(bytes_of(one).pending, 2 * MIB);
    cr_assert_eq(fake_calls(FAKE_EVENT_CREATE) - created,
                 fake_calls(FAKE_EVENT_DESTROY) - destroyed + 1);
}

/* ---- contexts that end on drivers that record no event in them ---- */

static CUresult flags_of_all_but_other(CUstream stream, unsigned int *flags)
{
    *flags = stream == other ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
    return CUDA_SUCCESS;
}

/* Nobody can name it any more: it ended inside a call of ours. */
static CUdeviceptr leave_unnamed(CUstream stream)
{
    CUdeviceptr block = leave_pending(stream, MIB);
    driver_calls.depth++;
    pool_stream_ending(pool, stream);
    driver_calls.depth--;
    return block;
}

static CUresult finish_the_legacy_stream(CUevent event)
{
    if (++asked == 3)
        fake_stream_is_done(NULL);
    return ask_fake(event);
}

static void start_without_records(void)
{
    driver->cuCtxRecordEvent = NULL;
    driver->cuStreamGetFlags = flags_of_all_but_other;
    ask_fake = driver->cuEventQuery;
    driver->cuEventQuery = finish_the_legacy_stream;
    asked = 0;
    start_streams();
    fake_stream_works(NULL);
}

static void begin_and_finish_the_end(void (*expect)(CUdeviceptr, CUdeviceptr), CUdeviceptr a,
                                     CUdeviceptr b)
{
    struct ending state = pool_context_ending(pool, context);
    expect(a, b);
    fake_end_context(context);
    pool_context_ended(pool, state, CONTEXT_DIED);
    cr_assert_eq(pool_device_bytes(pool, 0).pending, 0);
}

/* Of a blocking stream and another one; so many records fail. */
static void end_with_one_event(unsigned failures, void (*expect)(CUdeviceptr, CUdeviceptr))
{
    start_without_records();
    CUdeviceptr blocking = leave_unnamed(one), others = leave_unnamed(other);
    unsigned created = fake_calls(FAKE_EVENT_CREATE), destroyed = fake_calls(FAKE_EVENT_DESTROY);
    fake_stream_fail_records(failures);
    begin_and_finish_the_end(expect, blocking, others);
    cr_assert_eq(fake_calls(FAKE_EVENT_CREATE) - created, 1);
    cr_assert_eq(fake_calls(FAKE_EVENT_DESTROY) - destroyed, 1);
}

static void only_the_blocking_ones(CUdeviceptr blocking, CUdeviceptr other_ones)
{
    cr_assert_eq(asked, 3);
    cr_assert_not(fake_is_allocated(blocking));
    cr_assert(fake_is_allocated(other_ones));
}

/* An event on the legacy stream comes after the work of its blocking streams, and of no others. */
Test(stream_release, the_end_waits_for_the_legacy_stream)
{
    end_with_one_event(0, only_the_blocking_ones);
}

static void neither(CUdeviceptr a, CUdeviceptr b)
{
    cr_assert_eq(asked, 0);
    cr_assert(fake_is_allocated(a));
    cr_assert(fake_is_allocated(b));
}

/* The driver, which waits itself, has them. */
Test(stream_release, or_for_nothing_where_that_cannot_be_recorded)
{
    end_with_one_event(1, neither);
}

/* It would be a part of the capture. */
Test(stream_release, nor_is_it_recorded_while_a_capture_goes_on)
{
    start_without_records();
    CUdeviceptr blocking = leave_unnamed(one), others = leave_unnamed(other);
    unsigned records = fake_stream_calls().records;
    begin_capture(fake_stream());
    begin_and_finish_the_end(neither, blocking, others);
    cr_assert_eq(fake_stream_calls().records, records);
}

static void both(CUdeviceptr a, CUdeviceptr b)
{
    cr_assert_not(fake_is_allocated(a));
    cr_assert_not(fake_is_allocated(b));
}

/* Where they can be named, each goes in its stream's own order, and nothing is waited for. */
Test(stream_release, or_for_nothing_where_streams_can_be_named)
{
    start_without_records();
    CUdeviceptr blocking = leave_pending(one, MIB), others = leave_pending(other, MIB);
    begin_and_finish_the_end(both, blocking, others);
    cr_assert_eq(asked, 0);
}

static CUresult finish_one_soon(CUevent event)
{
    if (++asked == 3) {
        fake_stream_is_done(one);
        fake_stream_is_done(other);
    }
    return ask_fake(event);
}

/* No fence can be recorded then; the one that the stream left when it ended tells. */
Test(stream_release, while_a_capture_goes_on_the_end_waits_for_the_fences_there_are)
{
    ask_fake = driver->cuEventQuery;
    driver->cuEventQuery = finish_one_soon;
    asked = 0;
    start_streams();
    CUdeviceptr unnamed = leave_pending(one, MIB), named = leave_pending(other, MIB);
    pool_stream_ending(pool, one);
    fake_launch(context);
    begin_capture(fake_stream());
    begin_and_finish_the_end(both, unnamed, named);
    cr_assert_geq(asked, 3);
}

/* ---- what the driver's own pool keeps ---- */

static unsigned housekeepers;

static int count_a_thread(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*body)(void *), void *argument)
{
    (void)thread, (void)attributes, (void)body, (void)argument;
    housekeepers++;
    return 0;
}

/* The cap keeps nothing, and the driver's pool all. */
Test(stream_release, what_the_driver_gets_past_the_cap_makes_the_housekeeper_again)
{
    settings.neighbours.enabled = true;
    settings.stream_ordered.caps.cached = (struct byte_size){.bytes = 0};
    thread_functions.create = count_a_thread;
    thread_functions.set_stack_size = pthread_attr_setstacksize;
    start_streams();
    CUdeviceptr block = take_on(one, 16 * MIB);
    housekeepers = 0;
    atomic_store(&pool->housekeeping.phase, HOUSEKEEPING_WATCHED);
    free_on(one, block);
    cr_assert_eq(fake_bytes_used(0), 0);
    cr_assert_eq(housekeepers, 1);
    cr_assert_eq(atomic_load(&pool->housekeeping.phase), HOUSEKEEPING_MADE);
}

/* A trim leaves what is pending, which the driver's pool keeps when it is over. */
Test(stream_release, the_housekeeper_stays_while_the_drivers_pool_does_not_give_it_back)
{
    start_streams();
    free_on(one, take_on(one, MIB));
    synchronise_stream(one);
    pool_trim(pool);
    cr_assert_not(stream_reserve_watch(pool));
    uint64_t *reserved =
        fake_mempool_attribute((CUmemoryPool)0x100, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    *reserved = 64 * MIB;
    cr_assert(stream_reserve_watch(pool));
    *reserved = 0;
    cr_assert_not(stream_reserve_watch(pool));
}

/* ---- beside plain frees ---- */

static void finish_the_work(void *unused)
{
    (void)unused;
    fake_finish(context);
}

/* Its size tells what may be asked for again, as that of device memory does. */
Test(stream_release, a_plain_free_waits_for_what_a_large_request_in_a_streams_order_would_miss)
{
    driver = fake_driver(16 * GIB);
    fake_streams(driver);
    settings.device.growth_budget.bytes = 64 * MIB;
    settings.stream_ordered.caps.cached = (struct byte_size){.bytes = 0};
    start_streams();
    CUdeviceptr block = allocate(GIB);
    free_on(one, take_on(one, 14 * GIB + 512 * MIB));
    fake_launch(context);
    fake_during(FAKE_EVENT_QUERY, finish_the_work, NULL);
    release(block);
    cr_assert_eq(pool_device_bytes(pool, 0).pending, 0);
}
