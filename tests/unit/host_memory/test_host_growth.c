/*
 * Pinned host memory: when an allocation that could have a pending block takes a new one, and what
 * goes back to make room.
 */
#include "core/host_memory/host_release.h"

#include "host_fixture.h"

#define SECOND (UINT64_C(1) * 1000 * 1000 * 1000)

TestSuite(host_growth, .init = host_set_up, .fini = host_tear_down, .timeout = 60);

static void start_with(double ratio, uint64_t budget)
{
    settings.host.caps.reserve_ratio = ratio;
    settings.host.evict = EVICT_LARGEST_FIRST;
    host_start_with_budget(budget);
}

static struct block *record_of(const void *memory)
{
    return block_table_find(&host_memory_of(pool)->blocks, (CUdeviceptr)(uintptr_t)memory);
}

/* A free block has been so for a second, and all others were freed just now. */
static void let_it_lie(const void *memory, const void *in_use)
{
    uint64_t now = monotonic_now();
    host_tell_time(host_heap(), now);
    record_of(in_use)->freed_at = now;
    record_of(memory)->freed_at = now - SECOND;
}

/* Of two blocks the first is clean, and no fence covers the second, which was freed last. */
static void release_two(void *blocks[2], size_t bytes)
{
    for (unsigned i = 0; i < 2; i++)
        blocks[i] = allocate_host(bytes);
    for (unsigned i = 0; i < 2; i++)
        release_host(blocks[i]);
    cr_assert_eq(allocate_host(bytes), blocks[0]);
    fake_trace();
}

static void make_a_shard(void *unused)
{
    (void)unused;
    allocate_and_release_host(1, KIB);
}

/* ---- where there is no room ---- */

static void sleep_for_long(void *unused)
{
    struct timespec nap = {0, 300 * 1000 * 1000};
    (void)unused;
    nanosleep(&nap, NULL);
}

Test(host_growth, past_the_ratio_what_no_fence_covers_is_asked_about)
{
    void *blocks[2];
    start_with(1, 4 * MIB);
    allocate_host(4 * MIB);
    release_two(blocks, MIB / 2);
    host_heap()->pieces.taken += 64 * MIB;
    void *block = allocate_host(MIB / 2);
    host_heap()->pieces.taken -= 64 * MIB;
    cr_assert_eq(block, blocks[1]);
    cr_assert_eq(host_counted().hits.waited, 1);
}

Test(host_growth, past_the_ratio_work_that_goes_on_is_not_waited_for_without_a_free)
{
    void *blocks[2];
    start_with(1, 4 * MIB);
    release_two(blocks, MIB / 2);
    fake_launch(context);
    host_heap()->pieces.taken += 64 * MIB;
    uint64_t started = monotonic_now();
    void *block = allocate_host(MIB / 2);
    host_heap()->pieces.taken -= 64 * MIB;
    cr_assert_neq(block, blocks[1]);
    cr_assert_lt(monotonic_now() - started, VAIN_WAIT_NANOSECONDS / 2);
    fake_finish(context);
}

Test(host_growth, past_the_ratio_nothing_is_recorded_beside_work_that_the_host_ends)
{
    void *blocks[2];
    start_with(1, 4 * MIB);
    release_two(blocks, MIB / 2);
    struct host_submission submission = host_work_begin(pool, NULL);
    fake_launch(context);
    host_work_end(&submission);
    pool_note_launch(pool);
    unsigned records = fake_calls(FAKE_RECORD);
    host_heap()->pieces.taken += 64 * MIB;
    allocate_host(MIB / 2);
    host_heap()->pieces.taken -= 64 * MIB;
    cr_assert_eq(fake_calls(FAKE_RECORD), records);
    fake_finish(context);
}

static void release_it(void *memory)
{
    release_host(memory);
}

Test(host_growth, where_a_bucket_is_full_what_no_fence_covers_is_asked_about)
{
    void *blocks[2], *third;
    settings.host.caps.blocks_per_bucket = 2;
    host_start();
    third = allocate_host(MIB);
    release_two(blocks, MIB);
    in_another_thread(release_it, third);
    cr_assert_eq(allocate_host(MIB), blocks[1]);
    cr_assert_eq(host_counted().misses, 3);
}

/* ---- in turns ---- */

static atomic_bool is_making, go_on;

static void stay_in_the_driver(void *unused)
{
    (void)unused;
    fake_during(FAKE_HOST_ALLOC, NULL, NULL);
    atomic_store(&is_making, true);
    while (!atomic_load(&go_on))
        let_time_pass();
}

static void make_a_large_block(void *unused)
{
    (void)unused;
    release_host(allocate_host(8 * MIB));
}

Test(host_growth, while_another_thread_makes_a_block_none_is_made_that_could_be_done_without)
{
    void *blocks[2];
    struct errand other;
    host_start();
    in_another_thread(make_a_shard, NULL);
    release_two(blocks, KIB / 2);
    fake_during(FAKE_HOST_ALLOC, stay_in_the_driver, NULL);
    send(&other, make_a_large_block, NULL);
    while (!atomic_load(&is_making))
        let_time_pass();
    void *block = allocate_host(KIB / 2);
    atomic_store(&go_on, true);
    wait_for(&other);
    cr_assert_eq(block, blocks[1]);
}

Test(host_growth, new_blocks_take_a_small_part_of_the_time)
{
    void *blocks[2];
    host_start();
    in_another_thread(make_a_shard, NULL);
    fake_during(FAKE_HOST_ALLOC, sleep_for_long, NULL);
    release_two(blocks, KIB / 2);
    cr_assert_eq(allocate_host(KIB / 2), blocks[1]);
}

Test(host_growth, a_lone_thread_takes_a_new_block_rather_than_ask)
{
    void *blocks[2];
    host_start();
    fake_during(FAKE_HOST_ALLOC, sleep_for_long, NULL);
    release_two(blocks, KIB / 2);
    void *block = allocate_host(KIB / 2);
    cr_assert_neq(block, blocks[1]);
    cr_assert_str_eq(fake_trace(), "host-alloc");
}

Test(host_growth, who_has_waited_for_as_long_as_a_new_block_takes_gets_one)
{
    host_start();
    fake_during(FAKE_HOST_ALLOC, sleep_for_long, NULL);
    void *block = release_host_under_work(2 * MIB);
    counter_set(&host_shards(host_heap())->waited, SECOND);
    finish_at_query(4);
    cr_assert_neq(allocate_host(2 * MIB), block);
    cr_assert_eq(counter_get(&host_shards(host_heap())->waited), 0, "it is paid for");
    fake_finish(context);
}

Test(host_growth, waits_are_added_up)
{
    host_start();
    fake_during(FAKE_HOST_ALLOC, sleep_for_long, NULL);
    void *block = release_host_under_work(2 * MIB);
    finish_at_query(4);
    cr_assert_eq(allocate_host(2 * MIB), block);
    cr_assert_gt(counter_get(&host_shards(host_heap())->waited), 0);
}

Test(host_growth, the_blocks_of_a_bucket_are_shared_by_all_threads_that_free)
{
    void *blocks[3];
    settings.host.caps.blocks_per_bucket = 4;
    host_start();
    in_another_thread(make_a_shard, NULL);
    for (unsigned i = 0; i < 3; i++)
        blocks[i] = allocate_host(MIB);
    release_host(blocks[0]);
    unsigned before = fake_calls(FAKE_RECORD);
    release_host(blocks[1]);
    release_host(blocks[2]);
    cr_assert_eq(fake_calls(FAKE_RECORD), before + 1, "two of four are one thread's share");
}

/* ---- what goes back first ---- */

Test(host_growth, what_lies_idle_goes_before_what_is_larger)
{
    start_with(1.5, 0);
    void *idle = allocate_host(4 * MIB), *in_use = allocate_host(6 * MIB);
    release_host(idle);
    release_host(in_use);
    synchronise();
    let_it_lie(idle, in_use);
    allocate_host(14 * MIB);
    cr_assert_not(fake_is_host_allocated(idle));
    cr_assert(fake_is_host_allocated(in_use));
}

Test(host_growth, of_small_blocks_that_lie_idle_only_whole_pieces_go_first)
{
    start_with(1.5, 0);
    void *idle = allocate_host(KIB), *neighbour = allocate_host(KIB),
         *in_use = allocate_host(6 * MIB);
    release_host(idle);
    release_host(in_use);
    synchronise();
    let_it_lie(idle, in_use);
    allocate_host(14 * MIB);
    cr_assert(fake_is_host_allocated(idle), "its neighbour lives");
    cr_assert_not(fake_is_host_allocated(in_use));
    release_host(neighbour);
}

Test(host_growth, a_piece_is_idle_where_all_of_it_is)
{
    start_with(1.5, 0);
    void *idle = allocate_host(KIB), *neighbour = allocate_host(KIB),
         *in_use = allocate_host(6 * MIB);
    release_host(idle);
    release_host(neighbour);
    release_host(in_use);
    synchronise();
    let_it_lie(idle, in_use);
    record_of(neighbour)->freed_at = record_of(in_use)->freed_at;
    allocate_host(14 * MIB);
    cr_assert(fake_is_host_allocated(idle));
    cr_assert_not(fake_is_host_allocated(in_use));
}

/* In the order of age, too, a small block whose piece cannot go keeps no larger one. */
Test(host_growth, what_lies_idle_goes_whatever_the_order_is)
{
    start_with(1.5, 0);
    settings.host.evict = EVICT_LEAST_RECENTLY_USED;
    pool->settings.host.evict = EVICT_LEAST_RECENTLY_USED;
    void *small = allocate_host(KIB), *neighbour = allocate_host(KIB),
         *idle = allocate_host(4 * MIB), *in_use = allocate_host(6 * MIB);
    release_host(small);
    release_host(in_use);
    release_host(idle);
    synchronise();
    let_it_lie(idle, in_use);
    let_it_lie(small, in_use);
    allocate_host(16 * MIB);
    cr_assert_not(fake_is_host_allocated(idle));
    cr_assert(fake_is_host_allocated(in_use));
    cr_assert(fake_is_host_allocated(small));
    release_host(neighbour);
}

/* While frees before it have something to be waited for, nothing goes back inside the ratio: the
 * program may hold a lock that this work needs. */
Test(host_growth, for_what_did_not_fit_no_free_waits)
{
    start_with(1, 4 * MIB);
    void *idle = allocate_host(4 * MIB), *block = allocate_host(2 * MIB);
    release_host(idle);
    synchronise();
    let_it_lie(idle, block);
    counter_set(&host_heap()->denied, 64 * MIB);
    fake_launch(context);
    uint64_t started = monotonic_now();
    release_host(block);
    cr_assert_lt(monotonic_now() - started, VAIN_WAIT_NANOSECONDS / 2);
    cr_assert(fake_is_host_allocated(idle));
    fake_finish(context);
}

/* Inside the ratio, but without room for another block: the next free makes some. */
Test(host_growth, what_lies_idle_makes_room_for_what_did_not_fit)
{
    start_with(1, 4 * MIB);
    void *idle = allocate_host(4 * MIB), *blocks[2];
    for (unsigned i = 0; i < 2; i++)
        blocks[i] = allocate_host(2 * MIB);
    pool_note_launch(pool);
    release_host(idle);
    synchronise();
    let_it_lie(idle, blocks[0]);
    fake_launch(context);
    release_host(blocks[0]);
    finish_at_query(8);
    host_heap()->pieces.taken += 4 * MIB;
    cr_assert_eq(allocate_host(2 * MIB), blocks[0]);
    cr_assert_eq(counter_get(&host_heap()->denied), 2 * MIB);
    cr_assert(fake_is_host_allocated(idle));
    release_host(blocks[1]);
    host_heap()->pieces.taken -= 4 * MIB;
    cr_assert_not(fake_is_host_allocated(idle));
    cr_assert_eq(counter_get(&host_heap()->denied), 0);
}
