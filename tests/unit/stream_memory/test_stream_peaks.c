/*
 * Peaks of stream-ordered memory that the program begins anew, beside those of memory pools.
 */
#include "streams_fixture.h"

TestSuite(stream_peaks, .init = set_up_streams, .fini = tear_down, .timeout = 20);

static void expect_peaks(uint64_t live, uint64_t reserved)
{
    struct kept_peaks peaks = pool_device_peaks(pool, 0);
    cr_assert_eq(peaks.live, live, "%" PRIu64 " live, not %" PRIu64, peaks.live, live);
    cr_assert_eq(peaks.reserved, reserved, "%" PRIu64 " reserved, not %" PRIu64, peaks.reserved,
                 reserved);
}

static void rise_and_fall(CUstream stream, unsigned blocks)
{
    CUdeviceptr held[16];
    for (unsigned i = 0; i < blocks; i++)
        held[i] = take_on(stream, MIB);
    for (unsigned i = 0; i < blocks; i++)
        free_on(stream, held[i]);
}

Test(stream_peaks, they_stay_when_memory_is_freed)
{
    start_streams();
    rise_and_fall(one, 4);
    rise_and_fall(one, 1);
    expect_peaks(4 * MIB, 4 * MIB);
}

Test(stream_peaks, hits_after_a_new_begin_are_seen)
{
    start_streams();
    rise_and_fall(one, 4);
    pool_start_peaks_again(pool, 0);
    expect_peaks(0, 4 * MIB);
    rise_and_fall(one, 3);
    expect_peaks(3 * MIB, 4 * MIB);
    rise_and_fall(one, 2);
    expect_peaks(3 * MIB, 4 * MIB);
}

static uint64_t used_high(CUmemoryPool of)
{
    cuuint64_t value = 0;
    driver->cuMemPoolGetAttribute(of, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value);
    pool_mempool_got(pool, of, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value);
    return value;
}

static CUmemoryPool default_mempool(void)
{
    CUmemoryPool of = NULL;
    cr_assert_eq(driver->cuDeviceGetDefaultMemPool(&of, 0), CUDA_SUCCESS);
    return of;
}

Test(stream_peaks, a_new_begin_leaves_the_high_water_mark_of_a_memory_pool)
{
    start_streams();
    rise_and_fall(one, 4);
    CUmemoryPool of = default_mempool();
    cuuint64_t zero = 0;
    *fake_mempool_attribute(of, CU_MEMPOOL_ATTR_USED_MEM_HIGH) = 4 * MIB;
    pool_mempool_set(pool, of, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero);
    rise_and_fall(one, 3);
    pool_start_peaks_again(pool, 0);
    cr_assert_eq(used_high(of), 3 * MIB);
}

Test(stream_peaks, a_mark_that_is_set_back_leaves_the_peaks)
{
    start_streams();
    rise_and_fall(one, 4);
    pool_start_peaks_again(pool, 0);
    rise_and_fall(one, 3);
    cuuint64_t zero = 0;
    pool_mempool_set(pool, default_mempool(), CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero);
    rise_and_fall(one, 1);
    expect_peaks(3 * MIB, 4 * MIB);
}

Test(stream_peaks, what_streams_hold_at_different_times_is_not_added)
{
    start_streams();
    CUdeviceptr held = take_on(one, 64 * MIB);
    free_on(one, held);
    held = take_on(other, 64 * MIB);
    cr_assert_eq(counted_streams().peak.live_bytes, 64 * MIB);
    take_on(one, 64 * MIB);
    cr_assert_eq(counted_streams().peak.live_bytes, 128 * MIB);
}

Test(stream_peaks, hits_raise_the_reports_peak)
{
    start_streams();
    CUdeviceptr small = take_on(one, 48 * MIB);
    free_on(one, small);
    CUdeviceptr large = take_on(one, 64 * MIB);
    free_on(one, large);
    take_on(one, 48 * MIB);
    take_on(one, 64 * MIB);
    cr_assert_eq(counted_streams().peak.live_bytes, 112 * MIB);
}

Test(stream_peaks, a_refused_request_raises_none)
{
    CUdeviceptr refused;
    CUresult result = CUDA_SUCCESS;
    start_streams();
    take_on(one, 64 * MIB);
    cr_assert(pool_allocate_async(pool, &refused, 79 * GIB, NULL, one, &result));
    cr_assert_eq(result, CUDA_ERROR_OUT_OF_MEMORY);
    expect_peaks(64 * MIB, 64 * MIB);
    cr_assert_eq(counted_streams().peak.live_bytes, 64 * MIB);
    cr_assert_eq(counted_streams().peak.reserved_bytes, 64 * MIB);
}
