/*
 * The driver's memory pools: what the program reads back, and what becomes of blocks.
 */
#include "streams_fixture.h"

TestSuite(mempool, .init = set_up_streams, .fini = tear_down, .timeout = 20);

#define STANDARD ((CUmemoryPool)0x100)

static uint64_t read_back(CUmemoryPool memory_pool, CUmemPool_attribute attribute)
{
    cuuint64_t value = *fake_mempool_attribute(memory_pool, attribute);
    pool_mempool_got(pool, memory_pool, attribute, &value);
    return value;
}

static void set_threshold(CUmemoryPool memory_pool, cuuint64_t value)
{
    pool_mempool_setting(pool, memory_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
    *fake_mempool_attribute(memory_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) = value;
    pool_mempool_set(pool, memory_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value);
}

Test(mempool, the_default_pools_threshold_is_the_settings)
{
    start_streams();
    take_on(one, MIB);
    cr_assert_eq(*fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 512 * MIB);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
}

Test(mempool, unless_the_settings_leave_it_alone)
{
    settings.stream_ordered.driver_release_threshold.unlimited = true;
    start_streams();
    take_on(one, MIB);
    cr_assert_eq(*fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
}

Test(mempool, or_the_program_has_set_it)
{
    start_streams();
    set_threshold(STANDARD, 0);
    take_on(one, MIB);
    cr_assert_eq(*fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
    set_threshold(STANDARD, 77);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 77);
}

Test(mempool, other_pools_keep_theirs)
{
    start_streams();
    CUmemoryPool own = fake_mempool(0);
    pool_mempool_created(pool, own, 0);
    cr_assert_eq(*fake_mempool_attribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
}

Test(mempool, used_bytes_are_the_programs)
{
    start_streams();
    CUdeviceptr block = take_on(one, 5000);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 5120);
    free_on(one, block);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    take_on(one, 4700);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 5120);
    *fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) += 7 * MIB;
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 5120 + 7 * MIB);
}

Test(mempool, the_most_that_was_used_too)
{
    start_streams();
    *fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_HIGH) = 100 * MIB;
    CUdeviceptr a = take_on(one, MIB), b = take_on(one, MIB);
    free_on(one, a);
    free_on(one, b);
    take_on(one, MIB);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 2 * MIB);
    cuuint64_t zero = 0;
    pool_mempool_set(pool, STANDARD, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero);
    cr_assert_eq(read_back(STANDARD, CU_MEMPOOL_ATTR_USED_MEM_HIGH), MIB);
}

Test(mempool, a_trim_gives_back_what_is_over)
{
    start_streams();
    *fake_mempool_attribute(STANDARD, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) = 32 * MIB;
    free_on(one, take_on(one, MIB));
    synchronise_stream(one);
    pool_mempool_trimming(pool, STANDARD, 32 * MIB);
    cr_assert_eq(bytes_of(one).cached, MIB);
    pool_mempool_trimming(pool, STANDARD, 0);
    cr_assert_eq(bytes_of(one).cached, 0);
}

Test(mempool, a_destroyed_pool_gets_its_blocks_back)
{
    CUdeviceptr live = 0, free = 0;
    CUresult result;
    start_streams();
    CUmemoryPool own = fake_mempool(0);
    pool_mempool_created(pool, own, 0);
    pool_allocate_async(pool, &live, MIB, &own, one, &result);
    pool_allocate_async(pool, &free, MIB, &own, one, &result);
    fake_stream_works(one);
    free_on(one, free);
    pool_mempool_destroying(pool, own);
    cr_assert_not(fake_is_allocated(free));
    cr_assert(fake_is_allocated(live));
    pool_mempool_destroyed(pool, own, CUDA_SUCCESS);
    free_on(one, live);
    cr_assert_not(fake_is_allocated(live));
}

Test(mempool, one_that_could_not_be_destroyed_goes_on)
{
    CUdeviceptr block = 0, again = 0;
    CUresult result;
    start_streams();
    CUmemoryPool own = fake_mempool(0);
    pool_mempool_created(pool, own, 0);
    pool_mempool_destroying(pool, own);
    pool_mempool_destroyed(pool, own, CUDA_ERROR_INVALID_VALUE);
    cr_assert(pool_allocate_async(pool, &block, MIB, &own, one, &result));
    free_on(one, block);
    cr_assert(pool_allocate_async(pool, &again, MIB, &own, one, &result));
    cr_assert_eq(again, block);
}

Test(mempool, the_current_pool_is_followed)
{
    start_streams();
    CUmemoryPool own = fake_mempool(0);
    pool_mempool_created(pool, own, 0);
    CUdeviceptr block = take_on(one, MIB);
    free_on(one, block);
    fake_mempool_set_current(0, own);
    pool_mempool_chosen(pool);
    cr_assert_neq(take_on(one, MIB), block);
}

Test(mempool, unknown_pools_are_not_served)
{
    CUdeviceptr block = 0;
    CUresult result;
    start_streams();
    CUmemoryPool unknown = fake_mempool(0);
    cr_assert_not(pool_allocate_async(pool, &block, MIB, &unknown, one, &result));
}
