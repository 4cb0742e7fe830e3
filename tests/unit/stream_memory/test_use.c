/*
 * Uses that the program tells: who waits for whom.
 */
#include "streams_fixture.h"

TestSuite(use, .init = set_up_streams, .fini = tear_down, .timeout = 20);

static CUdeviceptr block;
static uint64_t generation;

static void start_with_block(void)
{
    start_streams();
    block = take_on(one, MIB);
    generation = pool_generation(pool, block);
    fake_stream_works(one);
}

static CUresult tell(CUstream stream, bool write)
{
    return pool_record_use(pool, block, generation, stream, write);
}

Test(use, a_read_waits_for_the_allocation)
{
    start_with_block();
    cr_assert_eq(tell(other, false), CUDA_SUCCESS);
    cr_assert_eq(fake_stream_after(other, one), 1);
}

Test(use, the_same_stream_waits_for_nothing)
{
    start_with_block();
    cr_assert_eq(tell(one, true), CUDA_SUCCESS);
    cr_assert_eq(tell(one, false), CUDA_SUCCESS);
    free_on(one, block);
    cr_assert_eq(fake_stream_calls().waits, 0);
}

Test(use, reads_do_not_wait_for_each_other)
{
    start_with_block();
    CUstream third = fake_stream();
    tell(other, false);
    fake_stream_works(other);
    tell(third, false);
    cr_assert_eq(fake_stream_after(third, other), 0);
    cr_assert_eq(fake_stream_after(third, one), 1);
}

Test(use, a_write_waits_for_all_reads)
{
    start_with_block();
    CUstream third = fake_stream();
    tell(other, false);
    tell(third, false);
    fake_stream_works(other);
    fake_stream_works(third);
    cr_assert_eq(tell(one, true), CUDA_SUCCESS);
    cr_assert_eq(fake_stream_after(one, other), 1);
    cr_assert_eq(fake_stream_after(one, third), 1);
}

Test(use, the_free_waits_for_everything)
{
    start_with_block();
    CUstream third = fake_stream();
    tell(other, true);
    fake_stream_works(other);
    tell(third, false);
    fake_stream_works(third);
    free_on(one, block);
    cr_assert_eq(fake_stream_after(one, other), 1);
    cr_assert_eq(fake_stream_after(one, third), 1);
}

Test(use, stale_generations_are_refused)
{
    start_with_block();
    free_on(one, block);
    cr_assert_eq(tell(other, false), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(take_on(one, MIB), block);
    cr_assert_eq(tell(other, false), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(fake_stream_calls().waits, 0);
}

Test(use, unknown_pointers_are_refused)
{
    start_with_block();
    cr_assert_eq(pool_record_use(pool, block + 512, generation, other, false),
                 CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(pool_record_use(pool, allocate(MIB), generation, other, false),
                 CUDA_ERROR_INVALID_VALUE);
}

Test(use, another_devices_stream_is_refused)
{
    start_with_block();
    another_context(1);
    cr_assert_eq(tell(NULL, false), CUDA_ERROR_INVALID_HANDLE);
}

Test(use, a_destroyed_streams_use_is_the_contexts)
{
    start_with_block();
    tell(other, true);
    fake_stream_works(other);
    destroy_stream(other);
    fake_trace();
    free_on(one, block);
    cr_assert_not_null(strstr(fake_trace(), "record"));
}

Test(use, what_was_told_ends_with_the_free)
{
    start_with_block();
    tell(other, true);
    free_on(one, block);
    unsigned waits = fake_stream_calls().waits;
    cr_assert_eq(take_on(one, MIB), block);
    free_on(one, block);
    cr_assert_eq(fake_stream_calls().waits, waits);
}

Test(use, a_stream_that_reads_twice_is_waited_for_once)
{
    start_with_block();
    tell(other, false);
    tell(other, false);
    unsigned waits = fake_stream_calls().waits;
    cr_assert_eq(tell(one, true), CUDA_SUCCESS);
    cr_assert_eq(fake_stream_calls().waits, waits + 1);
}

Test(use, a_use_whose_wait_fails_is_none)
{
    start_with_block();
    fake_stream_fail_waits(1);
    cr_assert_eq(tell(other, true), CUDA_ERROR_UNKNOWN);
    fake_fail(FAKE_EVENT_CREATE, CUDA_ERROR_OUT_OF_MEMORY, 1);
    cr_assert_eq(tell(other, true), CUDA_ERROR_OUT_OF_MEMORY);
    unsigned waits = fake_stream_calls().waits;
    free_on(one, block);
    cr_assert_eq(fake_stream_calls().waits, waits);
}

/* The program may try again. */
Test(use, a_free_whose_wait_fails_forgets_nothing)
{
    start_with_block();
    tell(other, true);
    fake_stream_works(other);
    fake_stream_fail_waits(1);
    cr_assert_eq(try_to_free_on(one, block), CUDA_ERROR_UNKNOWN);
    cr_assert_eq(pool_generation(pool, block), generation);
    free_on(one, block);
    cr_assert_eq(fake_stream_after(one, other), 1);
}

/* Its work has ended with it. */
Test(use, a_use_in_a_context_that_is_gone_is_not_waited_for)
{
    start_with_block();
    CUcontext neighbour = another_context(0);
    CUstream theirs = fake_stream();
    cr_assert_eq(tell(theirs, true), CUDA_SUCCESS);
    end_context(neighbour);
    fake_set_current(context);
    unsigned waits = fake_stream_calls().waits;
    free_on(one, block);
    cr_assert_eq(fake_stream_calls().waits, waits);
}

Test(use, where_nothing_was_told_nothing_is_waited_for)
{
    start_with_block();
    cr_assert_eq(use_end(pool, stream_block_find(&streams_of(pool)->blocks, block), other),
                 CUDA_SUCCESS);
    cr_assert_eq(fake_stream_calls().waits, 0);
}

Test(use, switched_off_there_are_none)
{
    struct kept_bytes bytes;
    settings.stream_ordered.enabled = false;
    start_streams();
    CUdeviceptr plain = allocate(MIB);
    cr_assert_eq(pool_generation(pool, plain), 0);
    cr_assert_eq(pool_record_use(pool, plain, 1, one, true), CUDA_ERROR_NOT_SUPPORTED);
    cr_assert_not(pool_stream_bytes(pool, one, &bytes));
    release(plain);
}
