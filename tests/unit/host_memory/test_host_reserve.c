/*
 * Pinned host memory: what the driver has taken from the machine, the ratio of that to what the
 * program holds, and pieces.
 */
#include "host_fixture.h"

TestSuite(host_reserve, .init = host_set_up, .fini = host_tear_down, .timeout = 60);

static uint64_t taken(void)
{
    return counter_get(&host_heap()->pieces.taken);
}

/* ---- the reserve ratio ---- */

static void start_with_ratio(double ratio)
{
    settings.host.caps.reserve_ratio = ratio;
    host_start_with_budget(0);
}

Test(host_reserve, a_reserve_inside_its_ratio_stays)
{
    start_with_ratio(2);
    allocate_and_release_host(4, MIB);
    synchronise();
    allocate_and_release_host(1, 4 * MIB);
    cr_assert_eq(host_kept().cached + host_kept().pending, 8 * MIB);
}

Test(host_reserve, nothing_goes_back_in_an_allocation)
{
    start_with_ratio(1);
    allocate_and_release_host(4, MIB);
    synchronise();
    allocate_host(6 * MIB);
    cr_assert_eq(fake_calls(FAKE_FREE_HOST), 0);
    cr_assert_eq(host_kept().cached, 4 * MIB);
}

Test(host_reserve, a_free_brings_the_reserve_inside_its_ratio)
{
    start_with_ratio(1);
    allocate_and_release_host(4, MIB);
    synchronise();
    fake_launch(context);
    void *block = allocate_host(6 * MIB);
    fake_finish(context);
    release_host(block);
    cr_assert_leq(host_kept().cached + host_kept().pending, 8 * MIB, "and a piece not filled");
}

/* ---- pieces ---- */

Test(host_reserve, what_the_driver_has_taken_is_pieces_and_larger_blocks)
{
    host_start();
    void *first = allocate_host(KIB), *second = allocate_host(KIB);
    cr_assert_eq(taken(), 2 * MIB, "both lie in one");
    void *larger = allocate_host(3 * MIB);
    cr_assert_eq(taken(), 5 * MIB);
    release_host(first);
    release_host(larger);
    synchronise();
    pool_trim(pool);
    cr_assert_eq(taken(), 2 * MIB, "one of its blocks lives");
    release_host(second);
    synchronise();
    pool_trim(pool);
    cr_assert_eq(taken(), 0);
}

/* As with strict.json. */
Test(host_reserve, what_is_no_whole_piece_stays_at_a_ratio_of_one)
{
    settings.host.free_synchronizes = true;
    start_with_ratio(1);
    for (uint64_t bytes = 64 * KIB; bytes <= 12 * MIB; bytes = 3 * bytes + 64 * KIB) {
        uint64_t before = host_counted().misses;
        for (unsigned i = 0; i < 5; i++)
            release_host(allocate_host(bytes));
        cr_assert_eq(host_counted().misses, before + 1, "%" PRIu64, bytes);
    }
}

/* What goes back where a single byte is wanted. */
static uint64_t give_back_a_byte(void)
{
    synchronise();
    return host_memory.release(pool, NULL, 1, RELEASE_OUT_OF_MEMORY);
}

Test(host_reserve, a_piece_goes_back_as_a_whole)
{
    host_start();
    allocate_and_release_host(4, MIB / 4);
    allocate_and_release_host(2, MIB / 2);
    cr_assert_eq(give_back_a_byte(), 2 * MIB);
    cr_assert_eq(taken(), 0);
}

Test(host_reserve, a_piece_with_a_live_block_does_not_go_back_as_a_whole)
{
    host_start();
    void *first = allocate_host(MIB / 4), *second = allocate_host(MIB / 4);
    allocate_host(MIB / 4);
    release_host(first);
    release_host(second);
    cr_assert_eq(give_back_a_byte(), MIB / 4);
    cr_assert_eq(taken(), 2 * MIB);
}

Test(host_reserve, in_the_order_of_sizes_an_unused_piece_goes_first)
{
    settings.host.evict = EVICT_LARGEST_FIRST;
    host_start();
    void *largest = allocate_host(MIB);
    allocate_host(MIB);
    allocate_and_release_host(4, MIB / 2);
    release_host(largest);
    cr_assert_eq(give_back_a_byte(), 2 * MIB);
    cr_assert(fake_is_host_allocated(largest), "its neighbour lives");
}
