/*
 * Hot memory: while all of the program's work is on one stream, what was just freed is handed out
 * again behind a barrier, before new blocks are made.
 */
#include "core/base/clock.h"
#include "core/contexts/surroundings.h"
#include "core/device_memory/thread_cache.h"
#include "pool_fixture.h"

TestSuite(hot_memory, .init = set_up, .fini = tear_down, .timeout = 20);

#define HOT (4 * MIB)

static CUstream one_stream = (CUstream)0x1000, other_stream = (CUstream)0x2000;

static void start_hot(void)
{
    settings.device.hot_bytes.bytes = HOT;
    settings.device.caps.reserve_ratio = 100;
    start();
}

/* The GPU never gets on. */
static CUdeviceptr use_on(CUstream stream, size_t bytes)
{
    CUdeviceptr block = allocate(bytes);
    pool_note_launch(pool, stream);
    fake_launch(context);
    release(block);
    return block;
}

static void use_often(CUstream stream, unsigned times, size_t bytes)
{
    for (unsigned i = 0; i < times; i++)
        use_on(stream, bytes);
}

/* An epoch was just closed, and nothing is pending. */
static void start_behind_a_fence(void)
{
    start_hot();
    while (fake_calls(FAKE_RECORD) == 0)
        use_on(one_stream, MIB);
    fake_finish(context);
    synchronise();
}

/* ---- what circulates ---- */

Test(hot_memory, blocks_of_one_fence_circulate_while_the_gpu_is_busy)
{
    start_hot();
    use_often(one_stream, 200, MIB);
    cr_assert_leq(counted().misses, HOT / MIB + 1);
    cr_assert_geq(counted().hits.barrier, 190);
}

Test(hot_memory, it_is_off_by_default)
{
    settings.device.caps.reserve_ratio = 100;
    start();
    use_often(one_stream, 200, MIB);
    cr_assert_gt(counted().misses, 128);
}

Test(hot_memory, one_barrier_serves_the_blocks_of_a_fence)
{
    start_hot();
    use_often(one_stream, 200, MIB);
    cr_assert_leq(fake_calls(FAKE_WAIT), fake_calls(FAKE_RECORD));
    cr_assert_leq(fake_calls(FAKE_RECORD), 200 * MIB / HOT);
    cr_assert_leq(fake_calls(FAKE_EVENT_QUERY), 2 * fake_calls(FAKE_RECORD));
}

Test(hot_memory, of_the_blocks_behind_a_barrier_the_newest_is_taken)
{
    CUdeviceptr blocks[8];
    start_behind_a_fence();
    for (int i = 0; i < 8; i++)
        blocks[i] = allocate(MIB);
    for (int i = 0; i < 8; i++) {
        pool_note_launch(pool, one_stream);
        fake_launch(context);
        release(blocks[i]);
    }
    cr_assert_eq(allocate(MIB), blocks[7]);
    cr_assert_eq(allocate(MIB), blocks[6]);
    cr_assert_eq(fake_calls(FAKE_WAIT), 1);
    cr_assert_eq(fake_ordered(context), fake_launched(context));
}

Test(hot_memory, what_no_fence_covers_yet_is_not_taken)
{
    start_hot();
    CUdeviceptr first = use_on(one_stream, MIB), second = use_on(one_stream, MIB);
    cr_assert_neq(first, second);
    cr_assert_eq(fake_calls(FAKE_WAIT), 0);
}

Test(hot_memory, blocks_that_are_freed_behind_a_barrier_wait_for_the_next_fence)
{
    start_hot();
    use_often(one_stream, 20, MIB);
    uint64_t barrier = epochs()->barrier;
    cr_assert_neq(barrier, 0);
    CUdeviceptr block = allocate(MIB);
    pool_note_launch(pool, one_stream);
    fake_launch(context);
    release(block);
    cr_assert_gt(epoch_current(epochs()), barrier);
    CUdeviceptr more[8];
    for (int i = 0; i < 8; i++) {
        more[i] = allocate(MIB);
        cr_assert(more[i] != block || fake_ordered(context) == fake_launched(context));
    }
}

/* ---- of which sizes ---- */

Test(hot_memory, blocks_that_the_cache_cannot_hold_are_not_meant)
{
    start_hot();
    use_often(one_stream, 6, 24 * MIB);
    cr_assert_eq(fake_calls(FAKE_WAIT), 0);
    cr_assert_geq(counted().misses, 5);
}

Test(hot_memory, blocks_that_it_can_hold_are)
{
    start_hot();
    use_often(one_stream, 100, 16 * MIB);
    cr_assert_leq(counted().misses, 5);
}

Test(hot_memory, by_default_an_eighth_of_the_gpus_cache_is_what_lies_without_a_fence)
{
    settings.device.hot_bytes = (struct byte_size){.unlimited = true};
    start();
    cr_assert_eq(device()->hot_bytes, FAKE_CACHE_BYTES / 8);
}

Test(hot_memory, where_the_driver_does_not_tell_of_its_cache_it_is_off)
{
    settings.device.hot_bytes = (struct byte_size){.unlimited = true};
    driver->cuDeviceGetAttribute = NULL;
    start();
    cr_assert_eq(device()->hot_bytes, 0);
}

/* ---- how often there is a fence ---- */

/* Frees so many blocks of 1 MiB, that were made before, with a launch before every one of them but
 * for the first few. */
static unsigned records_of(unsigned frees, unsigned without_launch)
{
    CUdeviceptr blocks[32];
    start_behind_a_fence();
    for (unsigned i = 0; i < frees; i++)
        blocks[i] = allocate(MIB);
    unsigned before = fake_calls(FAKE_RECORD);
    for (unsigned i = 0; i < frees; i++) {
        if (i >= without_launch)
            pool_note_launch(pool, one_stream);
        release(blocks[i]);
    }
    return fake_calls(FAKE_RECORD) - before;
}

Test(hot_memory, a_fence_comes_with_so_many_bytes)
{
    cr_assert_eq(records_of(3, 0), 0);
    cr_assert_eq(records_of(4, 0), 1);
    cr_assert_eq(records_of(16, 0), 4);
}

Test(hot_memory, but_not_before_so_many_launches)
{
    cr_assert_eq(records_of(4 + CACHE_HOT_LAUNCHES - 1, 4), 0);
    cr_assert_eq(records_of(8, 4), 1);
}

/* 8 MiB each, which the thread has a bin for. */
static unsigned frees_to_the_first_fence(bool launches)
{
    CUdeviceptr blocks[12];
    start_behind_a_fence();
    for (unsigned i = 0; i < 12; i++)
        blocks[i] = allocate(8 * MIB);
    unsigned before = fake_calls(FAKE_RECORD), frees = 0;
    while (fake_calls(FAKE_RECORD) == before && frees < 12) {
        if (launches)
            pool_note_launch(pool, one_stream);
        release(blocks[frees++]);
    }
    return frees;
}

Test(hot_memory, with_a_launch_a_fence_comes_no_later_than_without_hot_memory)
{
    cr_assert_eq(frees_to_the_first_fence(true), CACHE_HOT_LAUNCHES);
}

Test(hot_memory, without_a_launch_a_lone_thread_frees_twice_as_much_before_a_fence)
{
    cr_assert_eq(frees_to_the_first_fence(false), 8);
}

Test(hot_memory, while_memory_is_short_every_free_has_its_fence)
{
    CUdeviceptr blocks[4];
    start_hot();
    release(allocate(MIB));
    for (unsigned i = 0; i < 4; i++)
        blocks[i] = allocate(MIB);
    release(blocks[0]);
    device_set_short(device(), true);
    unsigned before = fake_calls(FAKE_RECORD);
    for (unsigned i = 1; i < 4; i++)
        release(blocks[i]);
    cr_assert_geq(fake_calls(FAKE_RECORD) - before, 2);
}

/* ---- where it is not done ---- */

/* Whether blocks are made up to the budget rather than taken behind a barrier. */
static bool grows(void)
{
    use_often(one_stream, 40, MIB);
    return fake_calls(FAKE_WAIT) == 0 && counted().misses >= 30;
}

Test(hot_memory, with_work_on_two_streams_new_blocks_are_made)
{
    start_hot();
    pool_note_launch(pool, one_stream);
    pool_note_launch(pool, other_stream);
    cr_assert(grows());
}

Test(hot_memory, an_event_shows_another_stream_as_well)
{
    start_hot();
    pool_note_launch(pool, one_stream);
    pool_note_stream(pool, other_stream);
    cr_assert(grows());
}

Test(hot_memory, the_two_names_of_the_legacy_stream_are_one)
{
    start_hot();
    pool_note_launch(pool, NULL);
    pool_note_stream(pool, CU_STREAM_LEGACY);
    cr_assert(one_stream_is_used(pool));
}

static void launch_on_its_own_stream(void *unused)
{
    (void)unused;
    pool_note_launch(pool, CU_STREAM_PER_THREAD);
}

Test(hot_memory, each_threads_own_stream_is_another_one)
{
    start_hot();
    launch_on_its_own_stream(NULL);
    launch_on_its_own_stream(NULL);
    cr_assert(one_stream_is_used(pool));
    in_another_thread(launch_on_its_own_stream, NULL);
    cr_assert_not(one_stream_is_used(pool));
}

Test(hot_memory, a_second_later_one_stream_is_enough_again)
{
    start_hot();
    pool_note_launch(pool, one_stream);
    pool_note_launch(pool, other_stream);
    cr_assert_not(one_stream_is_used(pool));
    pool_note_launch(pool, other_stream);
    cr_assert_not(one_stream_is_used(pool), "not at once");
    atomic_store(&pool->several_streams_at, monotonic_now() - UINT64_C(1100000000));
    cr_assert(one_stream_is_used(pool));
    pool_note_launch(pool, one_stream);
    cr_assert_not(one_stream_is_used(pool));
}

Test(hot_memory, where_the_settings_want_no_barriers_new_blocks_are_made)
{
    settings.device.barriers = false;
    start_hot();
    cr_assert(grows());
}

Test(hot_memory, with_several_contexts_new_blocks_are_made)
{
    start_hot();
    another_context(0);
    fake_set_current(context);
    cr_assert(grows());
}

/* ---- several threads on one stream ---- */

static void use_some(void *unused)
{
    (void)unused;
    use_often(one_stream, 40, MIB);
}

Test(hot_memory, threads_that_use_one_stream_raise_barriers_too)
{
    start_hot();
    use_some(NULL);
    for (int i = 0; i < 3; i++) {
        in_another_thread(use_some, NULL);
        use_some(NULL);
    }
    cr_assert_geq(fake_calls(FAKE_WAIT), 1);
    cr_assert_leq(counted().misses, 40);
}
