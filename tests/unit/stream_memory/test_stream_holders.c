/*
 * Which streams looks for a block are led to.
 */
#include "core/stream_memory/streams.h"

#include "core/stream_memory/stream_shelf.h"
#include "streams_fixture.h"

TestSuite(stream_holders, .init = set_up_streams, .fini = tear_down, .timeout = 20);

static struct stream_holders *holders_of(CUstream stream, uint64_t bytes)
{
    return stream_holders_get(streams_of(pool), stream_called(stream)->recent_shelf->mempool,
                              bytes);
}

static bool is_listed(CUstream stream, uint64_t bytes)
{
    unsigned index = stream_called(stream)->index;
    return stream_holders_next(holders_of(stream, bytes), index) == index;
}

/* While it takes what it has freed nothing changes. */
Test(stream_holders, who_has_freed_one_is_listed)
{
    start_streams();
    CUdeviceptr block = take_on(one, MIB);
    cr_assert_not(is_listed(one, MIB));
    free_on(one, block);
    cr_assert(is_listed(one, MIB));
    cr_assert_not(is_listed(one, 2 * MIB));
    take_on(one, MIB);
    cr_assert(is_listed(one, MIB));
}

Test(stream_holders, who_has_none_is_so_until_a_look_finds_it)
{
    start_streams();
    leave_pending(one, MIB);
    take_on(one, MIB);
    take_on(other, MIB);
    cr_assert_not(is_listed(one, MIB));
}

Test(stream_holders, and_who_has_lost_the_last_one_to_another)
{
    CUdeviceptr blocks[2];
    start_streams();
    leave_many(one, 2, MIB, blocks);
    synchronise_stream(one);
    take_on(other, MIB);
    cr_assert(is_listed(one, MIB));
    take_on(other, MIB);
    cr_assert_not(is_listed(one, MIB));
}

/* By the free that does nothing else, too. */
Test(stream_holders, the_next_free_lists_it_again)
{
    start_streams();
    leave_pending(one, MIB);
    CUdeviceptr block = take_on(one, MIB);
    take_on(other, MIB);
    free_on(one, block);
    cr_assert(is_listed(one, MIB));
    synchronise_stream(one);
    cr_assert_eq(take_on(other, MIB), block);
}

static void look_for_one(void)
{
    take_on(other, MIB);
}

/* Between the free's operation, which is put there without a lock, and its end. */
Test(stream_holders, where_others_order_it_as_well)
{
    start_streams();
    pool_barrier_coming(pool, NULL);
    leave_pending(one, MIB);
    leave_pending(other, 2 * MIB);
    CUdeviceptr block = take_on(one, MIB);
    fake_stream_during_record(look_for_one);
    free_on(one, block);
    cr_assert(is_listed(one, MIB));
    synchronise_stream(one);
    cr_assert_eq(take_on(other, MIB), block);
}

static CUresult look_for_one_and_fail(CUstream stream, CUevent event, unsigned int flags)
{
    (void)stream, (void)event, (void)flags;
    take_on(fake_stream(), MIB);
    return CUDA_ERROR_UNKNOWN;
}

/* What comes back to its shelf, where another stream has found nothing meanwhile. */
Test(stream_holders, and_a_block_that_the_driver_refuses)
{
    start_streams();
    free_on(other, take_on(other, 4096));
    let_memory_be_short(true);
    leave_pending(one, MIB);
    driver->cuStreamWaitEvent = look_for_one_and_fail;
    fake_stream_refuse_memory(2);
    take_on(other, MIB);
    cr_assert(is_listed(one, MIB));
}

/* A block of 64 KiB, behind many of other streams that are not over. */
static CUdeviceptr leave_one_that_is_over(void)
{
    CUstream streams[100];
    CUdeviceptr blocks[100];
    take_on(other, KIB);
    for (unsigned i = 0; i < 100; i++) {
        streams[i] = fake_stream();
        blocks[i] = take_on(streams[i], 64 * KIB);
    }
    for (unsigned i = 0; i < 100; i++) {
        fake_stream_works(streams[i]);
        free_on(streams[i], blocks[i]);
    }
    synchronise_stream(streams[90]);
    return blocks[90];
}

/* Of many that have one pending some are looked at, and the next time others. */
Test(stream_holders, a_look_goes_on_where_the_last_one_left_off)
{
    start_streams();
    CUdeviceptr block = leave_one_that_is_over();
    cr_assert_neq(take_on(other, 64 * KIB), block);
    cr_assert_eq(take_on(other, 64 * KIB), block);
}

/* Where nothing else can be had. */
Test(stream_holders, or_looks_at_all_of_them)
{
    start_streams();
    CUdeviceptr block = leave_one_that_is_over();
    fake_stream_refuse_memory(1);
    cr_assert_eq(take_on(other, 64 * KIB), block);
}

Test(stream_holders, sets_are_one_for_each_pool_and_size)
{
    start_streams();
    take_on(one, MIB);
    struct stream_holders *set = holders_of(one, MIB);
    struct mempool elsewhere = {.users = 0};
    cr_assert_not_null(set);
    cr_assert_eq(holders_of(one, MIB), set);
    cr_assert_neq(holders_of(one, 2 * MIB), set);
    cr_assert_neq(stream_holders_get(streams_of(pool), &elsewhere, MIB), set);
}

Test(stream_holders, they_are_gone_through_in_a_circle)
{
    static const unsigned members[] = {0, 63, 64, 700, STREAMS_MAX - 1};
    enum { MEMBERS = sizeof members / sizeof members[0] };
    static struct stream_holders set;
    for (unsigned i = 0; i < MEMBERS; i++)
        atomic_fetch_or(&set.bits[members[i] / 64], UINT64_C(1) << members[i] % 64);
    for (unsigned place = 0; place < STREAMS_MAX; place++) {
        unsigned found = 0, last = 0, i = stream_holders_behind(&set, place, 0);
        for (; i < STREAMS_MAX; i = stream_holders_behind(&set, place, i + 1)) {
            cr_assert(found == 0 || i > last);
            unsigned m = 0;
            while (m < MEMBERS && members[m] != (place + i) % STREAMS_MAX)
                m++;
            cr_assert_lt(m, MEMBERS);
            last = i;
            found++;
        }
        cr_assert_eq(found, MEMBERS, "%u from %u", found, place);
    }
}
