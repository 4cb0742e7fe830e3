/*
 * Pinned host memory of several threads: which blocks an allocation takes, and what it waits for,
 * before it has a new one made.
 */
#include "core/contexts/epoch.h"

#include "host_fixture.h"

TestSuite(host_growth, .init = host_set_up, .fini = host_tear_down, .timeout = 60);

static void sleep_for_long(void *unused)
{
    struct timespec nap = {0, 300 * 1000 * 1000};
    (void)unused;
    nanosleep(&nap, NULL);
}

/* A block that is worth waiting for, since the driver takes long to make one. */
static void *allocate_slowly(size_t bytes)
{
    fake_during(FAKE_HOST_ALLOC, sleep_for_long, NULL);
    void *block = allocate_host(bytes);
    fake_during(FAKE_HOST_ALLOC, NULL, NULL);
    return block;
}

/* So that the next free of this thread has no fence for that reason. */
static void have_the_fence_after_a_miss(void)
{
    release_host(allocate_host(KIB));
    fake_trace();
}

/* Frees what an allocation has given; nothing is cached any more. */
static void begin_anew(void *block)
{
    fake_during(FAKE_EVENT_QUERY, NULL, NULL);
    fake_finish(context);
    release_host(block);
    synchronise();
    pool_trim(pool);
}

/* ---- what other threads are about to know ---- */

/* The record goes on until a thread waits for the next one. */
static void let_go_when_one_is_owed(void *unused)
{
    bool owed = false;
    (void)unused;
    while (!owed && !atomic_load(&let_go_of_the_record)) {
        let_time_pass();
        context_lock(context_record());
        owed = context_record()->epochs.owed;
        context_unlock(context_record());
    }
    atomic_store(&let_go_of_the_record, true);
}

static bool has_the_block_after_the_record(uint64_t *took)
{
    struct errand recorder, letting_go;
    atomic_store(&is_recording, false);
    atomic_store(&let_go_of_the_record, false);
    void *block = allocate_slowly(MIB);
    have_the_fence_after_a_miss();
    hold_a_record(&recorder);
    release_host(block);
    send(&letting_go, let_go_when_one_is_owed, NULL);
    uint64_t began = monotonic_now();
    void *again = allocate_host(MIB);
    *took = monotonic_now() - began;
    atomic_store(&let_go_of_the_record, true);
    wait_for(&letting_go);
    wait_for(&recorder);
    begin_anew(again);
    return again == block;
}

Test(host_growth, the_fence_that_another_free_records_is_awaited)
{
    unsigned tries = 0;
    uint64_t took;
    bool had;
    host_start();
    do
        had = has_the_block_after_the_record(&took);
    while (is_tried_again(had, took, &tries));
    cr_assert(had);
}

Test(host_growth, but_not_for_longer_than_a_new_block_takes)
{
    struct errand recorder;
    host_start();
    void *block = allocate_host(MIB);
    have_the_fence_after_a_miss();
    release_host(block);
    hold_a_record(&recorder);
    cr_assert_neq(allocate_host(MIB), block);
    atomic_store(&let_go_of_the_record, true);
    wait_for(&recorder);
}

static void release_it(void *memory)
{
    release_host(memory);
}

Test(host_growth, who_records_a_fence_makes_another_one_for_frees_meanwhile)
{
    struct errand recorder;
    host_start_with_budget(4 * MIB);
    void *first = allocate_host(2 * MIB), *second = allocate_host(2 * MIB);
    have_the_fence_after_a_miss();
    unsigned before = fake_calls(FAKE_RECORD);
    fake_during(FAKE_RECORD, stay_in_the_record, NULL);
    send(&recorder, release_it, first);
    while (!atomic_load(&is_recording))
        let_time_pass();
    release_host(second);
    atomic_store(&let_go_of_the_record, true);
    wait_for(&recorder);
    cr_assert_eq(fake_calls(FAKE_RECORD), before + 2);
    cr_assert_eq(allocate_host(2 * MIB), second);
}

/* ---- what other threads have freed ---- */

static void release_under_work(void *memory)
{
    *(void **)memory = release_host_under_work(MIB);
}

Test(host_growth, where_no_fence_covers_its_own_blocks_a_thread_has_others)
{
    host_start();
    void *own = allocate_host(MIB), *others;
    have_the_fence_after_a_miss();
    in_another_thread(release_under_work, &others);
    release_host(own);
    fake_finish(context);
    cr_assert_eq(allocate_host(MIB), others);
}

static pthread_t waiting;
static unsigned steals;

static void take_and_release(void *unused)
{
    (void)unused;
    fake_finish(context);
    synchronise();
    void *block = allocate_host(2 * MIB);
    fake_launch(context);
    release_host(block);
}

/* Whenever the allocation asks, somebody else has had the block. */
static void steal(void *unused)
{
    (void)unused;
    if (!pthread_equal(pthread_self(), waiting))
        return;
    if (steals == 0)
        fake_finish(context);
    else if (steals--)
        in_another_thread(take_and_release, NULL);
}

static bool has_the_block_after_lost_races(uint64_t *took)
{
    uint64_t misses = host_counted().misses;
    void *block = allocate_slowly(2 * MIB);
    fake_launch(context);
    release_host(block);
    steals = 5;
    fake_during(FAKE_EVENT_QUERY, steal, NULL);
    uint64_t began = monotonic_now();
    void *again = allocate_host(2 * MIB);
    *took = monotonic_now() - began;
    begin_anew(again);
    return again == block && steals == 0 && host_counted().misses == misses + 1;
}

Test(host_growth, lost_races_are_no_reason_for_a_block_that_takes_longer)
{
    unsigned tries = 0;
    uint64_t took;
    bool had;
    host_start_with_budget(4 * MIB);
    waiting = pthread_self();
    do
        had = has_the_block_after_lost_races(&took);
    while (is_tried_again(had, took, &tries));
    cr_assert(had);
}

/* ---- the reserve ratio ---- */

static void take_a_while(void *queries)
{
    struct timespec nap = {0, 3000000};
    nanosleep(&nap, NULL);
    finish_soon(queries);
}

static bool has_the_block_without_room(uint64_t *took)
{
    uint64_t waited = host_counted().hits.waited;
    void *block = release_host_under_work(2 * MIB);
    queries_until_finish = 6;
    fake_during(FAKE_EVENT_QUERY, take_a_while, NULL);
    host_heap()->pieces.taken += 64 * MIB;
    uint64_t began = monotonic_now();
    void *again = allocate_host(2 * MIB);
    *took = monotonic_now() - began;
    host_heap()->pieces.taken -= 64 * MIB;
    begin_anew(again);
    return again == block && host_counted().hits.waited == waited + 1;
}

Test(host_growth, what_has_no_room_is_waited_for_longer_than_the_driver_takes)
{
    unsigned tries = 0;
    uint64_t took;
    bool had;
    settings.host.caps.reserve_ratio = 1;
    host_start_with_budget(4 * MIB);
    do
        had = has_the_block_without_room(&took);
    while (is_tried_again(had, took, &tries));
    cr_assert(had);
}

Test(host_growth, but_for_a_moment_only)
{
    settings.host.caps.reserve_ratio = 1;
    host_start_with_budget(4 * MIB);
    void *block = release_host_under_work(2 * MIB);
    uint64_t started = monotonic_now();
    host_heap()->pieces.taken += 64 * MIB;
    void *another = allocate_host(2 * MIB);
    host_heap()->pieces.taken -= 64 * MIB;
    cr_assert_neq(another, block);
    cr_assert_lt(monotonic_now() - started, STALLED_WAIT_NANOSECONDS / 2);
    fake_finish(context);
}
