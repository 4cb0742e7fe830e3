/*
 * What other processes cache: asked for when this one has nothing more to give back, waited for
 * where it is pending, counted; and the limit of a group.
 */
#include "streams_fixture.h"

#include "fake_board.h"

#include "core/base/clock.h"
#include "core/housekeeper/house.h"
#include "core/housekeeper/housekeeper.h"
#include "core/housekeeper/neighbours.h"
#include "core/reclaim/waiting.h"

#define MILLISECOND UINT64_C(1000000)
#define SECOND      (1000 * MILLISECOND)

/* Memory of another process's: blocks of the fake driver's that the pool does not know. */
static CUdeviceptr theirs[8];
static unsigned their_count;

static void set_up_to_ask(void)
{
    set_up_streams();
    settings.device.buckets.largest.percent = 100;
    settings.device.caps.cached.percent = 100;
    settings.device.caps.reserve_ratio = 100;
}

TestSuite(neighbours, .init = set_up_to_ask, .fini = tear_down, .timeout = 60);

static void join(void)
{
    struct device *of_pool = device();
    of_pool->board = &fake.board;
    of_pool->board_place = 3;
}

/* A pool on a board, on a device of so many bytes. */
static void start_on(uint64_t device_bytes)
{
    struct settings kept = settings;
    driver = fake_driver(device_bytes);
    fake_streams(driver);
    settings = kept;
    start_streams();
    join();
}

/* The pool itself knows of the board as well, as its housekeeper needs it. */
static void start_to_answer(void)
{
    start_on(16 * MIB);
    atomic_store(&pool->board, &fake.board);
}

static void they_take(size_t bytes)
{
    cr_assert_eq(driver->cuMemAlloc_v2(&theirs[their_count++], bytes), CUDA_SUCCESS);
}

static void they_free(void)
{
    cr_assert_gt(their_count, 0);
    cr_assert_eq(driver->cuMemFree_v2(theirs[--their_count]), CUDA_SUCCESS);
}

/* Another process answers at once, with a block of 4 MiB. */
static struct board_progress give_four(unsigned number)
{
    if (number == 1 && their_count)
        they_free();
    return (struct board_progress){.given = 4 * MIB, .asked = 1};
}

/* And has nothing any more after that. */
static struct board_progress give_four_once(unsigned number)
{
    fake.look = NULL;
    return give_four(number);
}

static struct neighbour_counters *counters(void)
{
    return device()->neighbours;
}

static uint64_t get(const counter *of)
{
    return counter_get(of);
}

/* ---- who is asked, and for what ---- */

Test(neighbours, what_they_cache_can_be_had)
{
    start_on(16 * MIB);
    they_take(4 * MIB), they_take(8 * MIB);
    theirs[2] = theirs[0], theirs[0] = theirs[1], theirs[1] = theirs[2]; /* 4 MiB go first */
    fake.look = give_four;
    cr_assert_eq(try_to_allocate(8 * MIB), CUDA_SUCCESS);
    cr_assert_eq(fake.asked, 1);
    cr_assert_eq(fake.bytes, 4 * MIB, "what is missing beside the 4 that are free");
    cr_assert_eq(fake.device, 3);
    cr_assert_eq(fake.device_total, 16 * MIB);
    cr_assert_not(fake.of_group);
    cr_assert_eq(fake.ended, 1);
    cr_assert_eq(get(&counters()->got_bytes), 4 * MIB);
    cr_assert_eq(get(&counters()->got_times), 1);
    cr_assert_leq(monotonic_now() - get(&counters()->got_at), 10 * SECOND);
    cr_assert_eq(get(&counters()->asked_times), 1);
    cr_assert_eq(get(&counters()->silent_times), 0);
}

/* The driver prepares memory for its new owner meanwhile. */
Test(neighbours, who_takes_piece_by_piece_asks_for_more_each_time)
{
    start_on(128 * MIB);
    they_take(112 * MIB);
    for (unsigned i = 0; i < 4; i++)
        they_take(4 * MIB);
    fake.look = give_four;
    cr_assert_eq(try_to_allocate(4 * MIB), CUDA_SUCCESS);
    cr_assert_eq(fake.bytes, 4 * MIB);
    device()->series_at = monotonic_now(); /* the machine may be slow */
    cr_assert_eq(try_to_allocate(4 * MIB), CUDA_SUCCESS);
    cr_assert_eq(fake.bytes, 64 * MIB, "sixteen times as much");
    device()->series_at = monotonic_now();
    cr_assert_eq(try_to_allocate(4 * MIB), CUDA_SUCCESS);
    cr_assert_eq(fake.bytes, 128 * MIB, "and not more than there can be");
    device()->series_at = monotonic_now() - SECOND;
    cr_assert_eq(try_to_allocate(4 * MIB), CUDA_SUCCESS);
    cr_assert_eq(fake.bytes, 4 * MIB, "a series ends");
}

Test(neighbours, who_has_just_taken_from_the_driver_asks_for_more_at_once)
{
    start_on(256 * MIB);
    they_take(244 * MIB);
    they_take(4 * MIB), they_take(4 * MIB);
    fake.look = give_four;
    cr_assert_eq(try_to_allocate(4 * MIB), CUDA_SUCCESS);
    device()->series_at = monotonic_now();
    cr_assert_eq(try_to_allocate(4 * MIB), CUDA_SUCCESS);
    cr_assert_eq(fake.asked, 1);
    cr_assert_eq(fake.bytes, 64 * MIB);
}

Test(neighbours, however_little_is_missing_at_first)
{
    start_on(1024 * MIB);
    they_take(1013 * MIB);
    they_take(4 * MIB), they_take(4 * MIB);
    fake.look = give_four;
    cr_assert_eq(try_to_allocate(4 * MIB), CUDA_SUCCESS);
    cr_assert_eq(fake.bytes, MIB);
    device()->series_at = monotonic_now();
    cr_assert_eq(try_to_allocate(4 * MIB), CUDA_SUCCESS);
    cr_assert_eq(fake.bytes, 64 * MIB, "the request counts");
}

Test(neighbours, nobody_is_asked_while_there_is_something_of_our_own)
{
    start_on(16 * MIB);
    CUdeviceptr block = allocate(12 * MIB);
    release(block);
    fake.look = give_four;
    cr_assert_eq(try_to_allocate(14 * MIB), CUDA_SUCCESS);
    cr_assert_eq(fake.asked, 0);
}

Test(neighbours, a_process_that_is_on_no_board_asks_nobody)
{
    start_on(16 * MIB);
    device()->board = NULL;
    they_take(12 * MIB);
    fake.look = give_four;
    fake_trace();
    cr_assert_eq(try_to_allocate(8 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(fake.asked, 0);
    cr_assert_null(strstr(fake_trace(), "info info info"), "nor the driver for what is free");
}

Test(neighbours, past_the_own_limit_nobody_can_help)
{
    settings.limits.device_bytes = (struct byte_size){.bytes = 4 * MIB};
    start_on(16 * MIB);
    fake.look = give_four;
    cr_assert_eq(try_to_allocate(8 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CUdeviceptr block = allocate(3 * MIB);
    cr_assert_eq(try_to_allocate(2 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(fake.asked, 0);
    cr_assert_eq(counted().failures.limit, 2);
    release(block);
}

Test(neighbours, those_who_cannot_help_enough_are_left_alone)
{
    start_on(16 * GIB);
    they_take(8 * GIB);
    cr_assert_eq(try_to_allocate(12 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(fake.bytes, 4 * GIB);
    cr_assert_leq(fake.at_least, 4 * GIB);
    cr_assert_geq(fake.at_least, 4 * GIB - 512 * MIB, "but for what drivers keep");
    they_free();
}

/* That of which they had not said yet that they have it. */
static struct board_progress tell_then_give(unsigned number)
{
    fake.look = give_four;
    return (struct board_progress){.asked = number};
}

Test(neighbours, before_a_refusal_they_are_asked_what_they_have)
{
    start_on(16 * MIB);
    they_take(8 * MIB);
    they_take(4 * MIB);
    fake.when_told = tell_then_give;
    cr_assert_eq(try_to_allocate(8 * MIB), CUDA_SUCCESS);
    cr_assert_eq(fake.asked_to_tell, 1);
    they_free();
}

static struct board_progress have_it_pending_in_order(unsigned number)
{
    (void)number;
    return (struct board_progress){.pending = 8 * MIB, .in_order = 8 * MIB, .asked = 1};
}

static struct board_progress tell_of_cached_memory(unsigned number)
{
    fake.others.cached = 4 * MIB;
    return tell_then_give(number);
}

Test(neighbours, what_some_have_pending_in_order_hides_nobody)
{
    start_on(16 * MIB);
    they_take(8 * MIB);
    they_take(4 * MIB);
    fake.look = have_it_pending_in_order;
    fake.when_told = tell_of_cached_memory;
    /* A look at such memory has been in vain just now. */
    device()->look_again_at = UINT64_MAX;
    cr_assert_eq(try_to_allocate(8 * MIB), CUDA_SUCCESS);
    cr_assert_eq(fake.asked_to_tell, 1);
    they_free();
}

static struct board_progress have_nothing(unsigned number)
{
    (void)number;
    return (struct board_progress){.asked = 3, .asked_all = true};
}

Test(neighbours, where_all_were_asked_nobody_is_told_as_well)
{
    start_on(16 * MIB);
    they_take(12 * MIB);
    fake.look = fake.when_told = have_nothing;
    cr_assert_eq(try_to_allocate(8 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_geq(fake.asked, 1);
    cr_assert_eq(fake.asked_to_tell, 0);
    they_free();
}

/* A block that is freed behind work which goes on, and for which there is no fence yet. */
static void leave_block_pending(size_t bytes)
{
    CUdeviceptr block = allocate(bytes);
    fake_launch(context);
    fake_fail(FAKE_RECORD, CUDA_ERROR_OUT_OF_MEMORY, 1);
    /* The free does not wait for what is pending. */
    atomic_store(&device()->could_hold, TIB);
    atomic_store(&device()->could_hold_at, monotonic_now());
    release(block);
    cr_assert_eq(pending_bytes(), bytes);
}

static void end_our_work(void)
{
    fake_finish(context);
}

Test(neighbours, what_this_process_has_pending_need_not_come_from_them)
{
    start_on(16 * GIB);
    they_take(8 * GIB);
    leave_block_pending(3 * GIB);
    fake.when_asked = end_our_work;
    cr_assert_eq(try_to_allocate(12 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_leq(fake.first_at_least, 4 * GIB);
    they_free();
}

static struct board_progress give_to_a_rival_first(unsigned number)
{
    (void)number;
    if (fake.asked == 2)
        they_free();
    return (struct board_progress){.given = 4 * MIB, .asked = 1};
}

Test(neighbours, what_a_rival_has_taken_is_asked_for_again)
{
    start_on(16 * MIB);
    they_take(8 * MIB), they_take(4 * MIB);
    fake.look = give_to_a_rival_first;
    cr_assert_eq(try_to_allocate(8 * MIB), CUDA_SUCCESS);
    cr_assert_eq(fake.asked, 2);
    cr_assert_eq(fake.ended, 2);
}

/* The kernel gives its memory back within a moment. */
static void they_free_one(void *unused)
{
    (void)unused;
    fake_during(FAKE_MEM_GET_INFO, NULL, NULL);
    they_free();
}

/* Between the driver's answer and the look at what is missing, be it for another's demand. */
Test(neighbours, what_has_come_meanwhile_is_tried_for_without_a_question)
{
    start_on(16 * MIB);
    they_take(12 * MIB), they_take(4 * MIB);
    fake_during(FAKE_MEM_GET_INFO, they_free_one, NULL);
    cr_assert_eq(try_to_allocate(4 * MIB), CUDA_SUCCESS);
    cr_assert_eq(fake.asked, 0);
    they_free();
}

Test(neighbours, what_one_had_that_has_just_ended_is_waited_for)
{
    start_on(16 * MIB);
    they_take(12 * MIB);
    fake.ended_at = monotonic_now();
    cr_assert_eq(try_to_allocate(8 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_geq(monotonic_now() - fake.ended_at, SECOND / 2);
    fake.ended_at = 0;
    they_free();
    cr_assert_eq(try_to_allocate(8 * MIB), CUDA_SUCCESS);
}

/* Whose clock is another: the file may be shared by containers. */
Test(neighbours, an_end_that_is_still_to_come_is_not_waited_for)
{
    start_on(16 * MIB);
    they_take(12 * MIB);
    uint64_t before = monotonic_now();
    fake.ended_at = before + SECOND;
    cr_assert_eq(try_to_allocate(8 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_leq(monotonic_now() - before, SECOND / 4);
    fake.ended_at = 0;
    they_free();
}

/* Memory in pieces: as much is free as is wanted, and the driver has none. */
Test(neighbours, more_is_asked_for_each_time_that_it_was_not_enough)
{
    start_on(GIB);
    they_take(4 * MIB);
    fake.look = give_four_once;
    fake_fail(FAKE_MEM_ALLOC, CUDA_ERROR_OUT_OF_MEMORY, 100);
    cr_assert_eq(try_to_allocate(64 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(fake.at_least, 0);
    cr_assert_geq(fake.bytes, 128 * MIB);
}

static void another_is_done_soon(void)
{
    if (fake.asked == 3)
        fake.look = give_four;
}

/* As many demands are under way as there can be. */
Test(neighbours, threads_take_turns)
{
    start_on(16 * MIB);
    they_take(8 * MIB), they_take(4 * MIB);
    fake.is_full = true;
    fake.when_asked = another_is_done_soon;
    cr_assert_eq(try_to_allocate(8 * MIB), CUDA_SUCCESS);
    cr_assert_eq(fake.asked, 3);
}

/* What another thread waits for, seconds perhaps, is nothing to a request that nobody can help. */
Test(neighbours, threads_do_not_wait_for_each_other_where_nobody_has_anything)
{
    start_on(16 * MIB);
    they_take(12 * MIB);
    uint64_t began = monotonic_now();
    cr_assert_eq(try_to_allocate(8 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_leq(monotonic_now() - began, SECOND);
    cr_assert_eq(fake.asked, 1);
    they_free();
}

Test(neighbours, what_they_held_as_a_call_failed_is_noted)
{
    start_on(16 * MIB);
    CUdeviceptr block = allocate(2 * MIB);
    they_take(8 * MIB);
    cr_assert_eq(try_to_allocate(8 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(get(&counters()->others_held), 8 * MIB);
    release(block);
    they_free();
}

/* ---- waiting ---- */

static uint64_t over_at; /* the monotonic clock */
static unsigned looks;

static struct board_progress give_when_over(unsigned number)
{
    (void)number;
    looks++;
    if (monotonic_now() < over_at)
        return (struct board_progress){.pending = 4 * MIB, .asked = 1};
    return give_four(1);
}

Test(neighbours, what_they_have_pending_is_waited_for)
{
    start_on(16 * MIB);
    they_take(12 * MIB);
    they_take(4 * MIB);
    fake.look = give_when_over;
    over_at = monotonic_now() + SECOND;
    cr_assert_eq(try_to_allocate(4 * MIB), CUDA_SUCCESS);
    cr_assert_eq(fake.asked, 1);
    cr_assert_geq(looks, 3, "the first looks are soon after each other");
    cr_assert_leq(looks, 20000, "but it sleeps in between");
}

static struct board_progress pend_for_ever(unsigned number)
{
    (void)number;
    return (struct board_progress){.pending = 4 * MIB, .asked = 1};
}

Test(neighbours, but_not_for_ever)
{
    start_on(16 * MIB);
    they_take(12 * MIB);
    fake.look = pend_for_ever;
    uint64_t now = monotonic_now();
    struct reclaim progress = {
        .step = RECLAIM_NEIGHBOURS,
        .wanted = 8 * MIB,
        .rounded = 8 * MIB,
        .started = now - LAST_RESORT_NANOSECONDS + 200 * MILLISECOND,
    };
    cr_assert_not(reclaim_for_retry(pool, device(), &progress));
    cr_assert_geq(monotonic_now() - now, 190 * MILLISECOND);
    cr_assert_leq(monotonic_now() - now, 3 * SECOND);
    cr_assert_eq(fake.asked, 1);
    cr_assert_eq(fake.ended, 1);
    they_free();
}

/* The first of them waits, and what its clock says tells the others. */
Test(neighbours, what_they_had_pending_is_waited_for_once)
{
    start_on(16 * MIB);
    they_take(12 * MIB);
    fake.look = fake.when_told = pend_for_ever;
    fake.others.pending = 4 * MIB;
    for (int i = 0; i < 5; i++) {
        uint64_t now = monotonic_now();
        struct reclaim progress = {
            .step = RECLAIM_NEIGHBOURS,
            .wanted = 8 * MIB,
            .rounded = 8 * MIB,
            .started = now - LAST_RESORT_NANOSECONDS + SECOND,
        };
        cr_assert_not(reclaim_for_retry(pool, device(), &progress));
        if (i == 0)
            cr_assert_geq(monotonic_now() - now, 900 * MILLISECOND);
    }
    cr_assert_eq(device()->waited_for_others[0], 4 * MIB);
    cr_assert_eq(fake.looks_of_last, 1, "%u", fake.looks_of_last);
    they_free();
}

/* Who has most is asked first, and that is the one that was waited for. */
Test(neighbours, what_another_caches_behind_one_that_was_waited_for_is_had)
{
    start_on(16 * MIB);
    they_take(8 * MIB);
    they_take(4 * MIB);
    fake.others.pending = 4 * MIB;
    note_waited_bytes(&device()->waited_for_others[0], 4 * MIB);
    fake.others.cached = 4 * MIB;
    fake.look = give_four;
    cr_assert_eq(try_to_allocate(8 * MIB), CUDA_SUCCESS);
    cr_assert_eq(fake.bytes, 8 * MIB, "%lu: what is missing, and what is passed over", fake.bytes);
    they_free();
}

/* What they have freed in a stream's order is not. */
static struct board_progress pend_in_order_for_ever(unsigned number)
{
    struct board_progress pending = pend_for_ever(number);
    pending.in_order = pending.pending;
    return pending;
}

Test(neighbours, what_they_have_freed_in_order_is_not_waited_for)
{
    start_on(16 * MIB);
    they_take(12 * MIB);
    fake.look = pend_in_order_for_ever;
    fake.others = (struct board_bytes){.pending = 4 * MIB, .in_order = 4 * MIB};
    uint64_t started = monotonic_now();
    for (int i = 0; i < 20; i++)
        cr_assert_eq(try_to_allocate(8 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_leq(monotonic_now() - started, 5 * SECOND);
    they_free();
}

static struct board_progress pend_until_ours_is_over(unsigned number)
{
    (void)number;
    end_our_work();
    return (struct board_progress){.pending = 4 * MIB, .asked = 1};
}

Test(neighbours, nor_before_what_this_process_has_pending_is_over)
{
    start_on(16 * MIB);
    they_take(8 * MIB);
    leave_block_pending(4 * MIB);
    fake.look = pend_until_ours_is_over;
    uint64_t started = monotonic_now();
    cr_assert_eq(try_to_allocate(8 * MIB), CUDA_SUCCESS);
    cr_assert_leq(monotonic_now() - started, 5 * SECOND);
    cr_assert_eq(fake.asked, 1);
    they_free();
}

static void they_are_over_soon(void)
{
    end_our_work();
    /* Not before they are asked again, however slow the machine is. */
    over_at = fake.asked == 1 ? UINT64_MAX : monotonic_now() + 300 * MILLISECOND;
}

Test(neighbours, but_after_that)
{
    start_on(16 * MIB);
    they_take(4 * MIB), they_take(4 * MIB);
    leave_block_pending(4 * MIB);
    fake.when_asked = they_are_over_soon;
    fake.look = give_when_over;
    fake.others.pending = 4 * MIB;
    cr_assert_eq(try_to_allocate(12 * MIB), CUDA_SUCCESS);
    cr_assert_eq(fake.asked, 2);
    they_free();
}

static void they_give_soon(void)
{
    over_at = monotonic_now() + 20 * MILLISECOND;
}

/* They say that it is on its way before the driver has it; nor may a lock that this process's own
 * work needs be what the request waits for. */
Test(neighbours, what_is_on_its_way_is_had_before_this_process_waits_for_its_own)
{
    start_on(16 * MIB);
    they_take(4 * MIB), they_take(4 * MIB);
    leave_block_pending(4 * MIB);
    fake.when_asked = they_give_soon;
    fake.look = give_when_over;
    uint64_t started = monotonic_now();
    cr_assert_eq(try_to_allocate(8 * MIB), CUDA_SUCCESS);
    cr_assert_leq(monotonic_now() - started, 5 * SECOND);
    cr_assert_eq(fake.asked, 1);
    end_our_work();
    they_free();
}

static struct board_progress lie(unsigned number)
{
    (void)number;
    if (fake.asked >= 500)
        fake.look = NULL;
    return (struct board_progress){.given = 4 * MIB, .asked = 1};
}

Test(neighbours, what_is_given_and_never_comes_is_not_believed_for_long)
{
    start_on(16 * MIB);
    they_take(12 * MIB);
    fake.look = lie;
    cr_assert_eq(try_to_allocate(8 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_lt(fake.asked, 100);
    they_free();
}

static struct board_progress stay_silent(unsigned number)
{
    (void)number;
    return (struct board_progress){.asked = 2, .silent = 2};
}

Test(neighbours, who_is_silent_is_counted)
{
    start_on(16 * MIB);
    they_take(12 * MIB);
    fake.look = stay_silent;
    cr_assert_eq(try_to_allocate(8 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(fake.asked, 1);
    cr_assert_eq(get(&counters()->silent_times), 2);
    cr_assert_eq(get(&counters()->got_times), 0);
    they_free();
}

/* ---- other calls ---- */

Test(neighbours, other_calls_have_it_asked_for_on_every_device)
{
    start_on(GIB);
    they_take(4 * MIB), they_take(4 * MIB);
    fake.look = give_four_once;
    struct reclaim progress = {0};
    unsigned rounds = 0;
    while (pool_make_room(pool, &progress) && rounds < 100)
        rounds++;
    cr_assert_geq(rounds, 2, "one for the driver's own pools, one for what was given");
    cr_assert_leq(rounds, 10);
    cr_assert_eq(fake.at_least, 0);
    cr_assert_geq(fake.bytes, 64 * MIB, "twice as much the second time");
    they_free();
}

/* What the driver's own pool kept for them is in nobody's count. */
static struct board_progress free_uncounted(unsigned number)
{
    (void)number;
    if (their_count)
        they_free();
    return (struct board_progress){.asked = 1};
}

Test(neighbours, another_call_is_tried_again_where_more_is_free_after_the_question)
{
    start_on(GIB);
    they_take(4 * MIB), they_take(4 * MIB);
    fake.look = free_uncounted;
    struct reclaim progress = {0};
    bool tried = false;
    for (unsigned rounds = 0; pool_make_room(pool, &progress); rounds++) {
        tried |= fake.asked != 0;
        cr_assert_lt(rounds, 100);
    }
    cr_assert(tried);
}

Test(neighbours, a_lie_to_another_call_ends)
{
    start_on(GIB);
    fake.look = lie;
    struct reclaim progress = {0};
    unsigned rounds = 0;
    uint64_t started = monotonic_now();
    while (pool_make_room(pool, &progress) && rounds < 10000)
        rounds++;
    cr_assert_lt(rounds, 200);
    cr_assert_leq(monotonic_now() - started, 2 * SECOND);
}

Test(neighbours, allocations_in_a_streams_order_get_it_too)
{
    start_on(16 * MIB);
    they_take(4 * MIB), they_take(8 * MIB);
    theirs[2] = theirs[0], theirs[0] = theirs[1], theirs[1] = theirs[2];
    fake.look = give_four;
    CUdeviceptr block = take_on(one, 8 * MIB);
    cr_assert_eq(fake.asked, 1);
    cr_assert_eq(fake.bytes, 4 * MIB);
    cr_assert_eq(get(&counters()->got_bytes), 4 * MIB);
    cr_assert_eq(try_to_free_on(one, block), CUDA_SUCCESS);
}

/* ---- what they are told ---- */

static void cache_three_blocks(size_t bytes)
{
    CUdeviceptr blocks[3];
    start_on(4 * bytes);
    atomic_store(&pool->board, &fake.board);
    for (int i = 0; i < 3; i++)
        blocks[i] = allocate(bytes);
    for (int i = 0; i < 3; i++)
        release(blocks[i]);
    synchronise();
}

/* Whoever asks has the first portion while the next is on its way. */
Test(neighbours, what_they_want_is_given_in_portions)
{
    cache_three_blocks(16 * GIB);
    fake.wish = 40 * GIB;
    cr_assert(neighbours_answer(pool), "more is to come");
    cr_assert_eq(fake.wish, 24 * GIB);
    cr_assert_eq(fake.cached, 32 * GIB);
    cr_assert_eq(fake.pending, 24 * GIB, "until it has come");
    cr_assert(neighbours_answer(pool));
    cr_assert_eq(fake.wish, 8 * GIB);
    cr_assert_eq(fake.pending, 8 * GIB);
    cr_assert_not(neighbours_answer(pool));
    cr_assert_eq(fake.wish, 0);
    cr_assert_eq(fake.pending, 0);
    cr_assert_eq(get(&counters()->given_bytes), 48 * GIB);
    atomic_store(&pool->board, NULL);
}

/* Before the driver is asked to take it, which may be slow. */
Test(neighbours, they_are_told_first_that_it_is_on_its_way)
{
    cache_three_blocks(16 * GIB);
    fake.wish = GIB;
    neighbours_answer(pool);
    cr_assert_eq(fake.answered, 2);
    atomic_store(&pool->board, NULL);
}

Test(neighbours, who_has_what_it_wanted_is_given_no_more)
{
    cache_three_blocks(16 * GIB);
    fake.wish = 40 * GIB;
    cr_assert(neighbours_answer(pool));
    fake.wish = 0;
    cr_assert_not(neighbours_answer(pool));
    cr_assert_eq(fake.cached, 32 * GIB);
    cr_assert_eq(fake.pending, 0);
    atomic_store(&pool->board, NULL);
}

Test(neighbours, who_wants_to_know_is_told_and_given_nothing)
{
    start_to_answer();
    release(allocate(4 * MIB));
    synchronise();
    fake.cached = 0;
    fake.tell = true;
    cr_assert_not(neighbours_answer(pool));
    cr_assert_eq(fake.cached, 4 * MIB);
    cr_assert_eq(fake.answered, 1);
    atomic_store(&pool->board, NULL);
}

/* Neither a heap nor the driver has it meanwhile. */
Test(neighbours, what_a_thread_is_giving_back_is_told_as_pending)
{
    start_to_answer();
    atomic_store(&device()->returning, 4 * MIB);
    fake.tell = true;
    neighbours_answer(pool);
    cr_assert_eq(fake.pending, 4 * MIB);
    fake.wish = 4 * MIB;
    cr_assert(neighbours_answer(pool), "until the driver has it");
    atomic_store(&device()->returning, 0);
    cr_assert_not(neighbours_answer(pool));
    cr_assert_eq(fake.pending, 0);
    atomic_store(&pool->board, NULL);
}

/* A device is told to have all that it caches on its way, while much of another's is given. */
Test(neighbours, what_was_promised_while_another_device_gave_is_taken_back)
{
    start_to_answer();
    release(allocate(4 * MIB));
    synchronise();
    atomic_store(&device()->promised, 4 * MIB);
    cr_assert_not(neighbours_answer(pool));
    cr_assert_eq(fake.cached, 4 * MIB);
    cr_assert_eq(fake.pending, 0, "%llu", (unsigned long long)fake.pending);
    unsigned published = fake.published;
    cr_assert_not(neighbours_answer(pool));
    cr_assert_eq(fake.published, published, "and nothing is told where nothing was asked");
    atomic_store(&pool->board, NULL);
}

/* ---- the housekeeper's end, and the process's ---- */

static CUdeviceptr last_block;

static void free_before_the_look(enum board_listens listens)
{
    if (listens == BOARD_LEAVES)
        release(last_block);
    else
        atomic_store(&pool->housekeeping.stopped, true);
}

/* The free has returned, so that others may ask for this memory from now on. */
Test(neighbours, they_can_ask_while_the_housekeeper_looks_whether_it_may_end)
{
    start_to_answer();
    last_block = allocate(4 * MIB);
    synchronise();
    atomic_store(&pool->housekeeping.phase, HOUSEKEEPING_MADE);
    fake.when_listening = free_before_the_look;
    house_keep(pool);
    cr_assert_eq(fake.listened, 2);
    cr_assert_eq(fake.listens[0], BOARD_LEAVES);
    cr_assert_eq(fake.listens[1], BOARD_LISTENS);
    atomic_store(&pool->board, NULL);
}

Test(neighbours, they_ask_no_more_once_nothing_was_free)
{
    start_to_answer();
    allocate(4 * MIB);
    atomic_store(&pool->housekeeping.phase, HOUSEKEEPING_MADE);
    house_keep(pool);
    cr_assert_eq(fake.listened, 2);
    cr_assert_eq(fake.listens[0], BOARD_LEAVES);
    cr_assert_eq(fake.listens[1], BOARD_DEAF);
    atomic_store(&pool->board, NULL);
}

static uint32_t phase_when_listening;

static void note_phase(enum board_listens listens)
{
    if (listens == BOARD_LISTENS)
        phase_when_listening = atomic_load(&pool->housekeeping.phase);
}

/* A thread whose free finds that the housekeeper is made leaves it to that one to be asked. */
Test(neighbours, they_can_ask_before_the_housekeeper_counts_as_made)
{
    settings.neighbours.enabled = true;
    start_on(128 * MIB);
    atomic_store(&pool->board, &fake.board);
    phase_when_listening = HOUSEKEEPING_OFF;
    fake.when_listening = note_phase;
    release(allocate(64 * MIB));
    cr_assert_eq(phase_when_listening, HOUSEKEEPING_NONE);
    atomic_store(&pool->board, NULL);
}

/* A free on the fast path is published by nobody any more. */
Test(neighbours, they_are_told_what_the_end_of_the_process_leaves)
{
    start_to_answer();
    CUdeviceptr block = allocate(4 * MIB);
    allocate(2 * MIB);
    release(block);
    fake.cached = fake.pending = 0;
    housekeeper_stop(pool);
    cr_assert_eq(fake.at_end_of_ending, device_reserved(device()));
    cr_assert_geq(fake.at_end_of_ending, 6 * MIB);
    atomic_store(&pool->board, NULL);
}

/* ---- a group ---- */

static void limit_the_group(uint64_t bytes)
{
    strcpy(settings.limits.group, "training");
    settings.limits.group_bytes = (struct byte_size){.bytes = bytes};
}

Test(neighbours, a_group_holds_no_more_than_its_limit)
{
    limit_the_group(8 * MIB);
    start_on(64 * MIB);
    fake.held_by_others = 4 * MIB;
    CUdeviceptr block = allocate(4 * MIB);
    cr_assert_eq(fake.held, 4 * MIB);
    cr_assert_eq(try_to_allocate(MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(counted().failures.group, 1);
    cr_assert_eq(counted().failures.limit, 0);
    cr_assert(fake.of_group);
    cr_assert_eq(fake.bytes, MIB);
    fake.held_by_others = 0;
    CUdeviceptr more = allocate(4 * MIB);
    release(block), release(more);
    synchronise();
    pool_trim(pool);
    cr_assert_eq(fake.held, 0);
}

Test(neighbours, what_the_process_caches_goes_before_the_group_is_asked)
{
    limit_the_group(8 * MIB);
    start_on(64 * MIB);
    fake.held_by_others = 3 * MIB;
    CUdeviceptr block = allocate(4 * MIB);
    release(block);
    fake.look = give_four;
    cr_assert_eq(try_to_allocate(5 * MIB), CUDA_SUCCESS);
    cr_assert_eq(fake.asked, 0);
    cr_assert_eq(fake.held, 5 * MIB);
}

static struct board_progress give_of_group(unsigned number)
{
    (void)number;
    fake.held_by_others -= 4 * MIB;
    fake.look = NULL;
    return (struct board_progress){.given = 4 * MIB, .asked = 1};
}

Test(neighbours, then_what_the_others_of_the_group_cache)
{
    limit_the_group(8 * MIB);
    start_on(64 * MIB);
    fake.held_by_others = 8 * MIB;
    fake.look = give_of_group;
    cr_assert_eq(try_to_allocate(3 * MIB), CUDA_SUCCESS);
    cr_assert_eq(fake.asked, 1);
    cr_assert(fake.of_group);
    cr_assert_eq(fake.bytes, 3 * MIB);
    cr_assert_eq(get(&counters()->got_bytes), 4 * MIB);
}

Test(neighbours, a_group_without_a_board_is_the_process_alone)
{
    limit_the_group(8 * MIB);
    start_on(64 * MIB);
    device()->board = NULL;
    fake.held_by_others = 8 * MIB;
    CUdeviceptr block = allocate(7 * MIB);
    cr_assert_eq(try_to_allocate(2 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(counted().failures.group, 1);
    release(block);
    cr_assert_eq(fake.held, 0);
    cr_assert_eq(fake.asked, 0);
}

Test(neighbours, the_process_keeps_to_the_lower_of_two_limits)
{
    limit_the_group(8 * MIB);
    settings.limits.device_bytes = (struct byte_size){.bytes = 4 * MIB};
    start_on(64 * MIB);
    CUdeviceptr block = allocate(3 * MIB);
    cr_assert_eq(try_to_allocate(2 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(counted().failures.limit, 1);
    cr_assert_eq(counted().failures.group, 0);
    cr_assert_eq(fake.held, 3 * MIB, "nothing of the group's is taken in vain");
    cr_assert_eq(fake.asked, 0);
    release(block);
}

Test(neighbours, stream_ordered_memory_counts_for_the_group)
{
    limit_the_group(8 * MIB);
    start_on(64 * MIB);
    fake.held_by_others = 2 * MIB;
    CUdeviceptr block = take_on(one, 4 * MIB), more = 0;
    CUresult result = CUDA_SUCCESS;
    cr_assert_eq(fake.held, 4 * MIB);
    cr_assert(pool_allocate_async(pool, &more, 4 * MIB, NULL, one, &result));
    cr_assert_eq(result, CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert(fake.of_group);
    cr_assert_eq(try_to_free_on(one, block), CUDA_SUCCESS);
}

Test(neighbours, pitched_memory_counts_for_the_group)
{
    limit_the_group(8 * MIB);
    start_on(64 * MIB);
    CUdeviceptr block;
    size_t pitch;
    cr_assert_eq(pool_allocate_pitch(pool, fake_allocate_pitch, &block, &pitch, 1000, 1024, 4),
                 CUDA_SUCCESS);
    cr_assert_eq(fake.held, MIB);
    cr_assert_eq(pool_allocate_pitch(pool, fake_allocate_pitch, &block, &pitch, 2000, 8 * 1024, 4),
                 CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(fake.held, MIB);
}

/* ---- what is free ---- */

static size_t free_bytes(void)
{
    size_t free = 0, total = 0;
    cr_assert_eq(pool_memory_info(pool, &free, &total), CUDA_SUCCESS);
    return free;
}

Test(neighbours, what_they_cache_counts_as_free)
{
    start_on(64 * MIB);
    they_take(32 * MIB);
    fake.others = (struct board_bytes){.cached = 16 * MIB, .pending = 8 * MIB};
    cr_assert_eq(free_bytes(), 48 * MIB);
    fake.others.cached = 4 * GIB;
    cr_assert_eq(free_bytes(), 64 * MIB, "never more than the device has");
    device()->board = NULL;
    cr_assert_eq(free_bytes(), 32 * MIB);
    they_free();
}

/* What they have just given back is free already, and they have not said so yet. */
Test(neighbours, but_not_what_this_process_has)
{
    start_on(64 * MIB);
    CUdeviceptr block = allocate(24 * MIB), cached = allocate(8 * MIB);
    release(cached);
    fake.others = (struct board_bytes){.cached = 16 * MIB};
    cr_assert_eq(free_bytes(), 40 * MIB);
    they_take(12 * MIB);
    cr_assert_eq(free_bytes(), 40 * MIB);
    fake.others.cached = 4 * MIB;
    cr_assert_eq(free_bytes(), 32 * MIB);
    they_free();
    release(block);
}

Test(neighbours, as_far_as_the_limit_of_the_process_leaves_it)
{
    settings.limits.device_bytes = (struct byte_size){.bytes = 40 * MIB};
    start_on(64 * MIB);
    they_take(32 * MIB);
    fake.others = (struct board_bytes){.cached = 16 * MIB};
    CUdeviceptr block = allocate(2 * MIB);
    cr_assert_eq(free_bytes(), 38 * MIB);
    release(block);
    they_free();
}

Test(neighbours, and_that_of_its_group)
{
    limit_the_group(40 * MIB);
    start_on(64 * MIB);
    fake.held_by_others = 20 * MIB;
    fake.others = (struct board_bytes){.cached = 16 * MIB};
    CUdeviceptr block = allocate(2 * MIB), cached = allocate(4 * MIB);
    release(cached);
    cr_assert_eq(free_bytes(), 18 * MIB, "what is cached here goes back first");
    fake.others_of_group.cached = 12 * MIB;
    cr_assert_eq(free_bytes(), 30 * MIB, "and what others of the group cache");
    release(block);
}

/* ---- limits that a tool sets ---- */

Test(neighbours, a_tools_limit_holds_for_new_requests)
{
    start_on(64 * MIB);
    CUdeviceptr block = allocate(8 * MIB);
    tool_sets_limit(BOARD_LIMIT_OF_PROCESS, 8 * MIB);
    cr_assert_eq(try_to_allocate(MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(counted().failures.limit, 1);
    tool_sets_limit(BOARD_LIMIT_OF_PROCESS, 4 * MIB);
    cr_assert_eq(free_bytes(), 0);
    release(block);
    synchronise();
    cr_assert_eq(try_to_allocate(5 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    release(allocate(4 * MIB));
    tool_sets_limit(BOARD_LIMIT_OF_PROCESS, BOARD_LIMIT_AT_START);
    allocate(32 * MIB);
}

Test(neighbours, a_tools_limit_replaces_what_the_settings_say)
{
    settings.limits.device_bytes = (struct byte_size){.bytes = 4 * MIB};
    start_on(64 * MIB);
    cr_assert_eq(try_to_allocate(8 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    tool_sets_limit(BOARD_LIMIT_OF_PROCESS, 16 * MIB);
    allocate(8 * MIB);
    tool_sets_limit(BOARD_LIMIT_OF_PROCESS, BOARD_LIMIT_AT_START);
    cr_assert_eq(try_to_allocate(MIB), CUDA_ERROR_OUT_OF_MEMORY);
}

Test(neighbours, a_tools_limit_of_the_group_counts_the_others)
{
    strcpy(settings.limits.group, "training");
    start_on(64 * MIB);
    fake.held_by_others = 4 * MIB;
    allocate(4 * MIB);
    tool_sets_limit(BOARD_LIMIT_OF_GROUP, 8 * MIB);
    cr_assert_eq(try_to_allocate(MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(counted().failures.group, 1);
    fake.held_by_others = 0;
    allocate(4 * MIB);
}

Test(neighbours, a_tools_limit_is_in_the_report_with_its_time)
{
    static struct report report;
    start_on(64 * MIB);
    tool_sets_limit(BOARD_LIMIT_OF_PROCESS, 8 * MIB);
    allocate(MIB);
    cr_assert_eq(pool_report(pool, &report), 0);
    cr_assert_eq(report.devices[0].limits.device_bytes, 8 * MIB);
    unsigned seconds, milliseconds;
    cr_assert_eq(sscanf(report.devices[0].limits.device_from, "cudapool limit, after %u.%u s",
                        &seconds, &milliseconds),
                 2);
    report_free(&report);
}

/* The housekeeper does so: no request of the program's need come. */
Test(neighbours, beyond_a_tools_limit_nothing_stays_cached)
{
    start_to_answer();
    release(allocate(8 * MIB));
    synchronise();
    allocate(2 * MIB);
    tool_sets_limit(BOARD_LIMIT_OF_PROCESS, 4 * MIB);
    neighbours_answer(pool);
    cr_assert_eq(device_reserved(device()), 2 * MIB);
    atomic_store(&pool->board, NULL);
}

/* The group holds what the others of it do. */
Test(neighbours, beyond_a_tools_limit_of_the_group_nothing_stays_cached)
{
    strcpy(settings.limits.group, "training");
    start_to_answer();
    release(allocate(8 * MIB));
    synchronise();
    fake.held_by_others = 60 * MIB;
    tool_sets_limit(BOARD_LIMIT_OF_GROUP, 64 * MIB);
    neighbours_answer(pool);
    cr_assert_eq(device_reserved(device()), 0);
    atomic_store(&pool->board, NULL);
}
