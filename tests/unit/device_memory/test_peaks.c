/*
 * Peaks that the program begins anew.
 */
#include "core/device_memory/sums.h"
#include "pool_fixture.h"

TestSuite(peaks, .init = set_up, .fini = tear_down, .timeout = 20);

static void expect_peaks(uint64_t live, uint64_t reserved)
{
    struct kept_peaks peaks = pool_device_peaks(pool, 0);
    cr_assert_eq(peaks.live, live, "%" PRIu64 " live, not %" PRIu64, peaks.live, live);
    cr_assert_eq(peaks.reserved, reserved, "%" PRIu64 " reserved, not %" PRIu64, peaks.reserved,
                 reserved);
}

/* As many blocks as this, all held at a time, and freed. */
static void rise_and_fall(unsigned blocks)
{
    CUdeviceptr held[16];
    for (unsigned i = 0; i < blocks; i++)
        held[i] = allocate(MIB);
    for (unsigned i = 0; i < blocks; i++)
        release(held[i]);
}

Test(peaks, they_stay_when_memory_is_freed)
{
    start();
    rise_and_fall(4);
    rise_and_fall(1); /* a new block, since the others are pending */
    expect_peaks(4 * MIB, 5 * MIB);
}

Test(peaks, what_is_asked_for_counts_as_live_and_its_block_as_reserved)
{
    start();
    CUdeviceptr block = allocate(MIB - 100);
    expect_peaks(MIB - 100, MIB);
    release(block);
}

Test(peaks, begun_anew_they_are_what_there_is_now)
{
    start();
    CUdeviceptr block = allocate(2 * MIB);
    rise_and_fall(4);
    pool_start_peaks_again(pool, 0);
    expect_peaks(2 * MIB, 6 * MIB);
    release(block);
    expect_peaks(2 * MIB, 6 * MIB);
    pool_start_peaks_again(pool, 0);
    expect_peaks(0, 6 * MIB);
}

Test(peaks, what_hits_hand_out_after_that_is_seen)
{
    start();
    rise_and_fall(8);
    synchronise();
    rise_and_fall(8);
    synchronise();
    pool_start_peaks_again(pool, 0);
    unsigned calls = fake_calls(FAKE_MEM_ALLOC);
    rise_and_fall(8);
    cr_assert_eq(fake_calls(FAKE_MEM_ALLOC), calls);
    struct kept_peaks peaks = pool_device_peaks(pool, 0);
    cr_assert_geq(peaks.live, 5 * MIB, "%" PRIu64, peaks.live);
    cr_assert_leq(peaks.live, 8 * MIB);
}

Test(peaks, the_reports_peaks_and_the_reserve_stay)
{
    start();
    rise_and_fall(8);
    pool_start_peaks_again(pool, 0);
    cr_assert_eq(heap_peak_requested(heap_of(context_find(pool, context))), 8 * MIB);
    struct report *report = calloc(1, sizeof *report);
    cr_assert_eq(pool_report(pool, report), 0);
    cr_assert_eq(report->devices[0].kinds[KIND_DEVICE].totals.peak.live_bytes, 8 * MIB);
    report_free(report);
    free(report);
}

Test(peaks, of_contexts_are_added_and_go_with_them)
{
    start();
    rise_and_fall(2);
    CUcontext second = fake_context(0);
    pool_context_created(pool, second);
    rise_and_fall(1);
    expect_peaks(3 * MIB, 3 * MIB);
    struct ending ending = pool_context_ending(pool, second);
    fake_end_context(second);
    pool_context_ended(pool, ending, CONTEXT_DIED);
    expect_peaks(2 * MIB, 2 * MIB);
    second = fake_context(0);
    pool_context_created(pool, second);
    expect_peaks(2 * MIB, 2 * MIB);
}

Test(peaks, an_allocation_that_fails_raises_none)
{
    set_up_on(4 * MIB);
    start();
    cr_assert_eq(try_to_allocate(8 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    expect_peaks(0, 0);
}

Test(peaks, a_device_that_was_never_used_has_none)
{
    start();
    struct kept_peaks peaks = pool_device_peaks(pool, 7);
    cr_assert_eq(peaks.live + peaks.reserved, 0);
    pool_start_peaks_again(pool, 7);
}
