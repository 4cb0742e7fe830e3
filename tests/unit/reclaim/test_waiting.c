/*
 * What a call that is out of memory waits for: what plain frees have left pending, if it may be
 * enough, and once. The clock goes on by itself, so that a wait takes no time of the test's.
 */
#include "host_fixture.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/reclaim/waiting.h"

/* Milliseconds that the clock which the pool reads is ahead of the real one. */
static atomic_ullong ahead;

int clock_gettime(clockid_t clock, struct timespec *now)
{
    long result = syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_MONOTONIC) {
        unsigned long long ms = atomic_load(&ahead);
        now->tv_sec += (time_t)(ms / 1000);
        now->tv_nsec += (long)(ms % 1000) * 1000000;
        now->tv_sec += now->tv_nsec / 1000000000;
        now->tv_nsec %= 1000000000;
    }
    return (int)result;
}

/* Each question to the driver takes a fifth of a second. */
static void time_passes(void *unused)
{
    (void)unused;
    atomic_fetch_add(&ahead, 200);
}

static CUresult nothing_in_pools(CUmemoryPool pool_of_driver, CUmemPool_attribute attribute,
                                 void *value)
{
    (void)pool_of_driver, (void)attribute;
    *(cuuint64_t *)value = 0;
    return CUDA_SUCCESS;
}

static void set_up_to_wait(void)
{
    set_up_on(64 * MIB);
    settings.device.buckets.largest.percent = 100;
    settings.device.caps.cached.percent = 100;
    settings.device.caps.reserve_ratio = 100;
    driver->cuMemPoolGetAttribute = nothing_in_pools;
}

TestSuite(waiting, .init = set_up_to_wait, .fini = tear_down, .timeout = 60);

/* Freed behind work that goes on, for which the free does not wait. */
static void leave_pending(CUdeviceptr block)
{
    fake_launch(context);
    atomic_store(&device()->could_hold, TIB);
    atomic_store(&device()->could_hold_at, monotonic_now());
    release(block);
}

/* 48 MiB are live, and so many pending. */
static void start_with_pending(size_t bytes)
{
    start();
    allocate(48 * MIB);
    leave_pending(allocate(bytes));
    cr_assert_eq(pending_bytes(), bytes);
    fake_during(FAKE_EVENT_QUERY, time_passes, NULL);
}

static uint64_t seconds_of(CUresult expected, size_t bytes)
{
    uint64_t started = monotonic_now();
    cr_assert_eq(try_to_allocate(bytes), expected, "%zu bytes", bytes);
    return (monotonic_now() - started) / UINT64_C(1000000000);
}

Test(waiting, what_was_waited_for_without_success_is_not_waited_for_again)
{
    start_with_pending(8 * MIB);
    cr_assert_geq(seconds_of(CUDA_ERROR_OUT_OF_MEMORY, 14 * MIB), 9);
    for (int i = 0; i < 10; i++)
        cr_assert_leq(seconds_of(CUDA_ERROR_OUT_OF_MEMORY, 14 * MIB), 4);
    cr_assert_geq(epochs()->waited.stamp, 1);
    fake_finish(context);
    let_time_pass();
    cr_assert_eq(try_to_allocate(14 * MIB), CUDA_SUCCESS);
}

/* 40 MiB are live, and 8 and 4 pending, each behind work of its own, and the first one behind a
 * fence. */
static void start_with_two_pending(void)
{
    start();
    struct context *here = context_find(pool, context);
    allocate(40 * MIB);
    CUdeviceptr older = allocate(8 * MIB), newer = allocate(4 * MIB);
    leave_pending(older);
    epoch_fence_the_rest(pool, here);
    leave_pending(newer);
    cr_assert_eq(pending_bytes(), 12 * MIB, "%lu", pending_bytes());
}

/* As a free records it. */
static void record_waitable_fence(void)
{
    struct context *here = context_find(pool, context);
    context_lock(here);
    struct fence *fence = epoch_begin_close(here, true);
    context_unlock(here);
    cr_assert(fence);
    cr_assert_eq(epoch_record(pool, here, fence), CUDA_SUCCESS);
}

/* The newest fence is the one that is waited for. */
Test(waiting, what_is_over_is_had_before_anything_is_waited_for)
{
    start_with_two_pending();
    record_waitable_fence();
    fake_finish_some(context, 1);
    let_time_pass();
    fake_during(FAKE_EVENT_QUERY, time_passes, NULL);
    cr_assert_leq(seconds_of(CUDA_SUCCESS, 18 * MIB), 4);
    cr_assert_eq(pending_bytes(), 4 * MIB, "%lu", pending_bytes());
}

/* Some of it is over meanwhile, and the newest is not. */
static void all_but_the_newest_is_over(void *unused)
{
    time_passes(unused);
    if (atomic_load(&ahead) == 5000)
        fake_finish_some(context, 1);
}

Test(waiting, or_after_that)
{
    start_with_two_pending();
    fake_during(FAKE_EVENT_QUERY, all_but_the_newest_is_over, NULL);
    cr_assert_eq(try_to_allocate(18 * MIB), CUDA_SUCCESS);
    cr_assert_eq(pending_bytes(), 4 * MIB, "%lu", pending_bytes());
}

Test(waiting, in_its_next_life_a_context_has_waited_for_nothing)
{
    start_with_pending(8 * MIB);
    cr_assert_geq(seconds_of(CUDA_ERROR_OUT_OF_MEMORY, 14 * MIB), 9);
    cr_assert_geq(epochs()->waited.stamp, 1);
    end_context(context);
    context = fake_context(0);
    pool_context_created(pool, context);
    struct context *again = context_find(pool, context);
    context_lock(again);
    cr_assert_eq(epoch_waited_for(&again->epochs), 0);
    context_unlock(again);
}

/* What is pinned is the machine's: its frees, and nobody's on a device. */
Test(waiting, pinned_memory_is_waited_for_once_and_can_be_had_later)
{
    host_machine = (struct machine){.memory_bytes = 64 * GIB, .nodes = 1};
    host_start();
    fake_host_limit(8 * MIB);
    release_host_under_work(6 * MIB);
    fake_during(FAKE_EVENT_QUERY, time_passes, NULL);
    for (int i = 0; i < 5; i++) {
        uint64_t started = monotonic_now();
        cr_assert_eq(try_to_allocate_host(8 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
        uint64_t seconds = (monotonic_now() - started) / UINT64_C(1000000000);
        cr_assert(i == 0 ? seconds >= 9 : seconds <= 4, "request %d: %lu s", i, seconds);
    }
    fake_finish(context);
    let_time_pass();
    allocate_host(8 * MIB);
}

Test(waiting, what_could_not_be_enough_is_not_waited_for)
{
    start_with_pending(4 * MIB);
    cr_assert_leq(seconds_of(CUDA_ERROR_OUT_OF_MEMORY, 20 * MIB), 4);
    cr_assert_eq(epochs()->waited.stamp, 0);
    cr_assert_geq(seconds_of(CUDA_ERROR_OUT_OF_MEMORY, 14 * MIB), 9);
}

/* Who knows no size waits, too, and once. */
Test(waiting, where_nobody_knows_the_size_anything_may_be_enough)
{
    start_with_pending(MIB);
    for (int i = 0; i < 5; i++) {
        struct reclaim progress = {0};
        uint64_t started = monotonic_now();
        while (pool_make_room(pool, &progress))
            continue;
        uint64_t took = (monotonic_now() - started) / UINT64_C(1000000000);
        if (i == 0)
            cr_assert_geq(took, 9);
        else
            cr_assert_leq(took, 4);
    }
}

Test(waiting, the_size_of_a_call_that_is_not_served_counts)
{
    start_with_pending(4 * MIB);
    struct reclaim progress = {0};
    uint64_t started = monotonic_now();
    while (pool_make_room_on(pool, -1, 32 * MIB, false, &progress))
        continue;
    cr_assert_leq((monotonic_now() - started) / UINT64_C(1000000000), 4);
    cr_assert_eq(epochs()->waited.stamp, 0);
}

Test(waiting, fresh_bytes_are_those_that_have_joined)
{
    _Atomic uint64_t waited = 0;
    cr_assert_eq(fresh_bytes(&waited, 5), 5);
    note_waited_bytes(&waited, 5);
    cr_assert_eq(fresh_bytes(&waited, 5), 0);
    cr_assert_eq(fresh_bytes(&waited, 8), 3);
    cr_assert_eq(fresh_bytes(&waited, 4), 4, "some of it is over");
    cr_assert_eq(fresh_bytes(&waited, 5), 5);
}
