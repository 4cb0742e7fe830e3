/*
 * Heaps: the ladder that an allocation climbs, what a free does, and what is counted.
 */
#include "pool_fixture.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(heap, .init = set_up, .fini = tear_down, .timeout = 20);

/* A block of these bytes whose fence is recorded, and running. */
static CUdeviceptr release_under_work(size_t bytes)
{
    CUdeviceptr block = allocate(bytes);
    fake_launch(context);
    release(block);
    cr_assert_neq(epochs()->outstanding, 0);
    let_time_pass();
    fake_trace();
    return block;
}

/* ---- rung 1: a clean block ---- */

Test(heap, a_clean_block_is_taken_without_a_driver_call)
{
    start();
    CUdeviceptr block = allocate(MIB);
    release(block);
    synchronise();
    fake_trace();
    cr_assert_eq(allocate(MIB), block);
    cr_assert_str_eq(fake_trace(), "");
    cr_assert_eq(counted().hits.clean, 1);
}

Test(heap, a_clean_block_serves_every_request_of_its_bucket_and_no_other)
{
    start();
    CUdeviceptr block = allocate(MIB);
    release(block);
    synchronise();
    cr_assert_neq(allocate(MIB + 1), block);
    cr_assert_neq(allocate(512 * KIB), block);
    cr_assert_eq(allocate(MIB - 1), block);
}

Test(heap, of_the_clean_blocks_the_newest_is_taken)
{
    start();
    CUdeviceptr first = allocate(MIB), second = allocate(MIB);
    release(first);
    release(second);
    synchronise();
    cr_assert_eq(allocate(MIB), second);
    cr_assert_eq(allocate(MIB), first);
}

/* ---- rung 2: a block whose fence is over ---- */

Test(heap, a_block_is_taken_once_its_fence_is_over)
{
    start_with_budget(0);
    CUdeviceptr block = release_under_work(MIB);
    fake_finish(context);
    cr_assert_eq(allocate(MIB), block);
    cr_assert_str_eq(fake_trace(), "query");
    cr_assert_eq(counted().hits.queried, 1);
}

Test(heap, what_a_query_has_cleaned_needs_no_other)
{
    start();
    allocate_and_release(FREES_TO_A_FENCE, MIB);
    allocate(MIB);
    allocate(MIB);
    cr_assert_eq(counted().hits.queried, 1);
    cr_assert_eq(counted().hits.clean, 1);
    cr_assert_eq(fake_calls(FAKE_EVENT_QUERY), 1);
}

Test(heap, of_several_fences_the_oldest_that_frees_a_block_is_asked)
{
    start_with_budget(0);
    CUdeviceptr first = allocate(MIB), second = allocate(MIB);
    fake_launch(context);
    release(first);
    fake_launch(context);
    release(second);
    fake_finish_some(context, 1);
    let_time_pass();
    cr_assert_eq(allocate(MIB), first);
    cr_assert_eq(counted().hits.queried, 1);
}

/* ---- rung 3: a new block inside the growth budget ---- */

Test(heap, inside_the_growth_budget_a_new_block_is_made)
{
    start_with_budget(8 * MIB);
    CUdeviceptr block = release_under_work(2 * MIB);
    cr_assert_neq(allocate(2 * MIB), block);
    cr_assert_str_eq(fake_trace(), "query alloc");
    cr_assert_eq(counted().misses, 2);
}

Test(heap, a_block_that_no_fence_covers_yet_is_not_taken)
{
    start();
    CUdeviceptr block = allocate(KIB);
    release(block);
    fake_trace();
    cr_assert_neq(allocate(KIB), block);
    cr_assert_str_eq(fake_trace(), "alloc");
}

/* One thread that frees what the GPU still uses: how many blocks there are in the end. */
static uint64_t ring_of(uint64_t budget)
{
    settings.device.caps.reserve_ratio = 100;
    start_with_budget(budget);
    for (int i = 0; i < 100; i++) {
        CUdeviceptr block = allocate(2 * MIB);
        fake_launch(context);
        release(block);
        let_time_pass();
    }
    return counted().misses;
}

Test(heap, the_growth_budget_bounds_what_is_in_flight)
{
    cr_assert_leq(ring_of(16 * MIB), 10);
    cr_assert_geq(ring_of(16 * MIB), 9);
}

Test(heap, without_a_growth_budget_one_block_is_in_flight)
{
    cr_assert_eq(ring_of(0), 1);
}

/* ---- rung 4: a barrier ---- */

Test(heap, over_the_budget_a_block_is_taken_from_behind_a_barrier)
{
    start_with_budget(0);
    CUdeviceptr block = release_under_work(MIB);
    cr_assert_eq(allocate(MIB), block);
    cr_assert_str_eq(fake_trace(), "query wait");
    cr_assert_eq(counted().hits.barrier, 1);
    cr_assert_eq(fake_ordered(context), 1);
}

Test(heap, one_barrier_serves_every_block_freed_before_its_fence)
{
    start_with_budget(64 * MIB);
    CUdeviceptr blocks[8];
    for (int i = 0; i < 8; i++)
        blocks[i] = allocate(8 * MIB);
    fake_launch(context);
    for (int i = 0; i < 8; i++)
        release(blocks[i]);
    CUdeviceptr more = allocate(8 * MIB);
    release(more);
    fake_trace();
    for (int i = 0; i < 8; i++)
        allocate(8 * MIB);
    cr_assert_lt(fake_calls(FAKE_WAIT), 8);
    cr_assert_geq(counted().hits.barrier, 1);
}

Test(heap, a_barrier_is_for_the_oldest_fence_that_frees_a_block)
{
    start_with_budget(0);
    CUdeviceptr first = allocate(MIB), second = allocate(MIB);
    fake_launch(context);
    release(first);
    fake_launch(context);
    release(second);
    let_time_pass();
    cr_assert_eq(allocate(MIB), first);
    cr_assert_eq(fake_ordered(context), 1, "the second piece of work is not waited for");
}

Test(heap, a_block_from_behind_a_barrier_that_is_freed_has_a_new_fence)
{
    start_with_budget(0);
    CUdeviceptr block = release_under_work(MIB);
    cr_assert_eq(allocate(MIB), block);
    fake_launch(context);
    release(block);
    fake_finish_some(context, 1);
    let_time_pass();
    fake_trace();
    cr_assert_eq(allocate(MIB), block);
    cr_assert_eq(counted().hits.barrier, 2);
    cr_assert_eq(fake_ordered(context), 2);
}

Test(heap, a_barrier_that_fails_hands_nothing_out)
{
    settings.device.caps.reserve_ratio = 100;
    start_with_budget(0);
    CUdeviceptr block = release_under_work(MIB);
    fake_fail(FAKE_WAIT, CUDA_ERROR_ILLEGAL_ADDRESS, 1);
    cr_assert_neq(allocate(MIB), block);
    cr_assert_eq(counted().hits.barrier, 0);
    fake_trace();
    allocate(MIB);
    cr_assert_str_eq(fake_trace(), "alloc", "from now on the driver answers");
}

/* ---- rung 4: a wait on the host ---- */

static void finish_at_the_third_query(void *queries)
{
    if (++*(unsigned *)queries == 3)
        fake_finish_some(context, 1);
}

/* Over the budget, with work that ends while the host waits: true if it did wait. */
static bool waits_on_the_host(void)
{
    unsigned queries = 0;
    CUdeviceptr block = release_under_work(MIB);
    fake_launch(context);
    fake_during(FAKE_EVENT_QUERY, finish_at_the_third_query, &queries);
    CUdeviceptr taken = allocate(MIB);
    fake_during(FAKE_EVENT_QUERY, NULL, NULL);
    return taken == block && queries >= 3 && counted().hits.waited == 1;
}

Test(heap, where_the_settings_want_no_barriers_one_thread_waits_itself)
{
    settings.device.barriers = false;
    start_with_budget(0);
    cr_assert(waits_on_the_host());
    cr_assert_eq(fake_calls(FAKE_WAIT), 0);
}

Test(heap, with_several_threads_the_host_waits)
{
    start_with_budget(0);
    let_another_thread_use_the_pool();
    cr_assert(waits_on_the_host());
    cr_assert_eq(fake_calls(FAKE_WAIT), 0);
    cr_assert_eq(fake_launched(context), 2);
    cr_assert_eq(fake_ordered(context), 1, "later work is not waited for");
}

Test(heap, a_thread_that_is_alone_for_long_enough_has_barriers_again)
{
    start_with_budget(0);
    let_another_thread_use_the_pool();
    for (unsigned i = 0; i < HEAP_USES_ALONE; i++) {
        release(allocate(KIB));
        synchronise();
    }
    release_under_work(MIB);
    allocate(MIB);
    cr_assert_eq(counted().hits.barrier, 1);
}

Test(heap, without_the_function_there_are_no_barriers)
{
    driver->cuCtxWaitEvent = NULL;
    start_with_budget(0);
    cr_assert(waits_on_the_host());
}

Test(heap, with_several_contexts_there_are_no_barriers)
{
    start_with_budget(0);
    another_context(0);
    fake_set_current(context);
    cr_assert(waits_on_the_host());
    cr_assert_eq(fake_calls(FAKE_WAIT), 0);
}

Test(heap, barriers_stay_closed_after_the_second_context_has_gone)
{
    start_with_budget(0);
    end_context(another_context(0));
    fake_set_current(context);
    cr_assert(waits_on_the_host());
    cr_assert_eq(fake_calls(FAKE_WAIT), 0);
}

/* A copy of a library that is everywhere, under another name. */
static void load_library_as(const char *name)
{
    char directory[] = "/tmp/cudapool-test-XXXXXX", path[4096], buffer[65536];
    struct link_map *map = NULL;
    void *original = dlopen("libdl.so.2", RTLD_NOW);
    cr_assert_not_null(original);
    cr_assert_eq(dlinfo(original, RTLD_DI_LINKMAP, &map), 0);
    cr_assert_not_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *from = fopen(map->l_name, "rb"), *to = fopen(path, "wb");
    cr_assert(from && to);
    for (size_t bytes; (bytes = fread(buffer, 1, sizeof buffer, from)) > 0;)
        cr_assert_eq(fwrite(buffer, 1, bytes, to), bytes);
    fclose(from);
    fclose(to);
    void *copy = dlopen(path, RTLD_NOW);
    unlink(path);
    rmdir(directory);
    cr_assert_not_null(copy, "%s", dlerror());
}

static void check_that_library_closes_barriers(const char *name)
{
    start_with_budget(0);
    release_under_work(MIB);
    allocate(MIB);
    cr_assert_eq(fake_calls(FAKE_WAIT), 1);
    fake_finish(context);
    load_library_as(name);
    cr_assert(waits_on_the_host());
    cr_assert_eq(fake_calls(FAKE_WAIT), 1);
}

Test(heap, libibverbs_closes_barriers)
{
    check_that_library_closes_barriers("libibverbs.so.1");
}

Test(heap, libgdrapi_closes_barriers)
{
    check_that_library_closes_barriers("libgdrapi.so.2");
}

Test(heap, libcufile_closes_barriers)
{
    check_that_library_closes_barriers("libcufile.so.0");
}

Test(heap, other_libraries_close_no_barriers)
{
    start_with_budget(0);
    load_library_as("notlibibverbs.so.1");
    release_under_work(MIB);
    allocate(MIB);
    cr_assert_eq(fake_calls(FAKE_WAIT), 1);
}

/* ---- rung 4: threads that run ahead ---- */

static void release_some_under_work(void *unused)
{
    (void)unused;
    allocate_and_release(1, 2 * MIB);
}

Test(heap, a_thread_with_more_than_its_share_in_flight_waits)
{
    unsigned queries = 0;
    start_with_budget(32 * MIB);
    fake_launch(context);
    in_another_thread(release_some_under_work, NULL);
    allocate_and_release(10, 2 * MIB);
    let_time_pass();
    fake_launch(context);
    fake_during(FAKE_EVENT_QUERY, finish_at_the_third_query, &queries);
    fake_trace();
    allocate(2 * MIB);
    fake_during(FAKE_EVENT_QUERY, NULL, NULL);
    cr_assert_geq(queries, 3);
    cr_assert_eq(fake_calls(FAKE_WAIT), 0);
}

Test(heap, a_thread_inside_its_share_does_not_wait)
{
    start_with_budget(32 * MIB);
    fake_launch(context);
    in_another_thread(release_some_under_work, NULL);
    allocate_and_release(4, 2 * MIB);
    let_time_pass();
    fake_trace();
    allocate(2 * MIB);
    cr_assert_str_eq(fake_trace(), "query alloc");
}

/* ---- blocks that are not kept ---- */

Test(heap, a_block_above_the_largest_size_is_not_kept)
{
    settings.device.buckets.largest.percent = 0;
    settings.device.buckets.largest.bytes = MIB;
    start();
    CUdeviceptr block = allocate(MIB + 1);
    cr_assert_eq(live_bytes(), MIB + 1, "and not rounded");
    fake_launch(context);
    release(block);
    cr_assert_eq(fake_calls(FAKE_RECORD), 1, "it has a fence at once");
    cr_assert(fake_is_allocated(block), "it is still in use");
    CUdeviceptr second = allocate(MIB + 1);
    cr_assert_neq(second, block);
    fake_finish(context);
    let_time_pass();
    fake_trace();
    release(second);
    cr_assert_not(fake_is_allocated(block), "given back in the next free");
    cr_assert_eq(fake_calls(FAKE_MEM_FREE), 0, "without a wait");
    cr_assert_eq(clean_bytes(), 0);
}

Test(heap, a_block_that_is_not_kept_is_given_back_by_a_synchronise)
{
    settings.device.buckets.largest.percent = 0;
    settings.device.buckets.largest.bytes = MIB;
    start();
    CUdeviceptr block = allocate(2 * MIB);
    fake_launch(context);
    release(block);
    fake_finish(context);
    synchronise();
    cr_assert_not(fake_is_allocated(block));
    cr_assert_eq(reserved_bytes(), 0);
}

/* ---- the driver's turn ---- */

Test(heap, an_error_of_the_driver_is_handed_on)
{
    start();
    fake_fail(FAKE_MEM_ALLOC, CUDA_ERROR_LAUNCH_FAILED, 1);
    cr_assert_eq(try_to_allocate(MIB), CUDA_ERROR_LAUNCH_FAILED);
    cr_assert_eq(reserved_bytes(), 0);
    struct report_counters c = counted();
    cr_assert_eq(c.requests, 1);
    cr_assert_eq(c.misses, 0);
    cr_assert_eq(c.failures.other, 1);
    cr_assert_eq(c.live_bytes, 0);
}

static CUresult return_null(CUdeviceptr *address, size_t bytes)
{
    (void)bytes;
    *address = 0;
    return CUDA_SUCCESS;
}

Test(heap, a_null_pointer_from_the_driver_is_no_block)
{
    driver->cuMemAlloc_v2 = return_null;
    start();
    cr_assert_eq(allocate(MIB), 0);
    cr_assert_eq(reserved_bytes(), 0);
    cr_assert_eq(pool_free(pool, 0), CUDA_SUCCESS);
    cr_assert_eq(pool_free(pool, 0), CUDA_SUCCESS, "as often as the program likes");
}

Test(heap, an_address_that_the_driver_gives_again_is_a_new_block)
{
    start();
    CUdeviceptr block = allocate(MIB);
    fake_vanish(block);
    fake_next_address(block);
    cr_assert_eq(allocate(4 * MIB), block);
    cr_assert_eq(live_bytes(), 4 * MIB);
    cr_assert_eq(reserved_bytes(), 4 * MIB);
    release(block);
    cr_assert_eq(pending_bytes(), 4 * MIB);
}

Test(heap, a_free_block_whose_address_the_driver_gives_again_is_not_handed_out)
{
    start();
    CUdeviceptr block = allocate(MIB);
    release(block);
    synchronise();
    fake_vanish(block);
    fake_next_address(block);
    cr_assert_eq(allocate(4 * MIB), block);
    cr_assert_eq(clean_bytes(), 0);
    cr_assert_neq(allocate(MIB), block);
}

Test(heap, an_address_that_another_call_gave_out_is_forgotten)
{
    start();
    CUdeviceptr block = allocate(MIB);
    release(block);
    pool_forget_address(pool, block);
    cr_assert_eq(pending_bytes(), 0);
    cr_assert_eq(reserved_bytes(), 0);
    pool_forget_address(pool, block);
    pool_forget_address(pool, 12345);
}

/* ---- freeing ---- */

Test(heap, a_block_is_freed_once)
{
    start();
    CUdeviceptr block = allocate(MIB);
    release(block);
    cr_assert_eq(pool_free(pool, block), CUDA_ERROR_INVALID_VALUE);
    synchronise();
    cr_assert_eq(pool_free(pool, block), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(clean_bytes(), MIB);
    cr_assert_eq(counted().frees, 1);
}

Test(heap, an_interior_pointer_is_the_drivers_to_refuse)
{
    start();
    CUdeviceptr block = allocate(MIB);
    cr_assert_eq(pool_free(pool, block + 256), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(pool_free(pool, block + 1), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(live_bytes(), MIB);
}

Test(heap, freeing_nothing_succeeds_as_it_does_without_the_pool)
{
    start();
    cr_assert_eq(pool_free(pool, 0), CUDA_SUCCESS);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE), 1);
}

Test(heap, an_unknown_pointer_is_the_drivers)
{
    start();
    CUdeviceptr foreign;
    cr_assert_eq(driver->cuMemAlloc_v2(&foreign, MIB), CUDA_SUCCESS);
    release(foreign);
    cr_assert_not(fake_is_allocated(foreign));
    cr_assert_eq(counted().frees, 0);
}

Test(heap, a_free_calls_nothing_when_no_fence_is_due)
{
    start();
    CUdeviceptr block = allocate(KIB);
    fake_trace();
    release(block);
    cr_assert_str_eq(fake_trace(), "");
}

/* ---- free_synchronizes ---- */

Test(heap, free_synchronizes_gives_the_wait_back)
{
    settings.device.free_synchronizes = true;
    start();
    CUdeviceptr block = allocate(KIB);
    fake_launch(context);
    fake_trace();
    release(block);
    cr_assert_str_eq(fake_trace(), "synchronize");
    cr_assert_eq(clean_bytes(), KIB);
    cr_assert_eq(fake_ordered(context), 1);
}

Test(heap, free_synchronizes_says_what_the_wait_has_found)
{
    settings.device.free_synchronizes = true;
    start();
    CUdeviceptr block = allocate(KIB);
    fake_fail(FAKE_CTX_SYNCHRONIZE, CUDA_ERROR_ILLEGAL_ADDRESS, 1);
    cr_assert_eq(pool_free(pool, block), CUDA_ERROR_ILLEGAL_ADDRESS);
    cr_assert_eq(clean_bytes(), 0);
}

Test(heap, a_wait_that_fails_frees_nothing)
{
    settings.device.free_synchronizes = true;
    start();
    CUdeviceptr block = allocate(MIB);
    fake_fail(FAKE_CTX_SYNCHRONIZE, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    cr_assert_eq(pool_free(pool, block), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    cr_assert_eq(counted().frees, 0);
    cr_assert_eq(counted().live_bytes, MIB);
    synchronise();
    cr_assert_neq(allocate(MIB), block);
    release(block);
    cr_assert_eq(counted().frees, 1);
}

Test(heap, free_synchronizes_is_not_for_frees_on_a_stream)
{
    settings.device.free_synchronizes = true;
    start();
    CUstream stream = fake_stream();
    CUdeviceptr block = allocate(KIB);
    cr_assert_eq(pool_free_async(pool, driver->cuMemFreeAsync, block, stream), CUDA_SUCCESS);
    cr_assert_eq(fake_calls(FAKE_CTX_SYNCHRONIZE), 0);
}

/* ---- counters ---- */

Test(heap, the_counters_add_up)
{
    start();
    for (unsigned i = 0; i < 200; i++) {
        CUdeviceptr one = allocate(1000 + 700 * (i % 7)), other = allocate(3 * KIB);
        fake_launch(context);
        release(one);
        if (i % 3 == 0)
            fake_finish(context);
        if (i % 5 == 0)
            synchronise();
        release(other);
    }
    CUdeviceptr kept = allocate(5000);
    struct report_counters c = counted();
    cr_assert_eq(c.requests, 401);
    cr_assert_eq(c.hits.clean + c.hits.queried + c.hits.barrier + c.hits.waited + c.misses, 401);
    cr_assert_eq(c.frees, 400);
    cr_assert_eq(c.live_bytes, 5 * KIB);
    cr_assert_eq(c.live_bytes + c.cached_bytes + c.pending_bytes, fake_bytes_used(0));
    cr_assert_eq(reserved_bytes(), fake_bytes_used(0));
    cr_assert_geq(c.rounded_bytes, c.requested_bytes);
    cr_assert_geq(c.peak.reserved_bytes, c.live_bytes + c.cached_bytes + c.pending_bytes);
    cr_assert_eq(c.driver.calls, fake_calls(FAKE_MEM_ALLOC) + fake_calls(FAKE_MEM_FREE_ASYNC));
    release(kept);
}

Test(heap, fences_queries_and_barriers_are_counted)
{
    static struct report report;
    start_with_budget(0);
    release_under_work(MIB);
    allocate(MIB);
    cr_assert_eq(pool_report(pool, &report), 0);
    cr_assert_eq(report.devices[0].fences, fake_calls(FAKE_RECORD));
    cr_assert_eq(report.devices[0].fence_queries, fake_calls(FAKE_EVENT_QUERY));
    cr_assert_eq(report.devices[0].barriers, fake_calls(FAKE_WAIT));
    cr_assert_eq(report.devices[0].barriers, 1);
    report_free(&report);
}

Test(heap, a_bucket_has_a_row_of_its_own)
{
    static struct report report;
    start();
    allocate(600);
    allocate(700);
    allocate(5000);
    settings.device.buckets.largest.percent = 0;
    cr_assert_eq(pool_report(pool, &report), 0);
    const struct report_kind *kind = &report.devices[0].kinds[0];
    cr_assert_str_eq(kind->kind, "device");
    cr_assert_eq(kind->bucket_count, 2);
    cr_assert_eq(kind->buckets[0].bytes, 1024);
    cr_assert_eq(kind->buckets[0].counters.requests, 2);
    cr_assert_eq(kind->buckets[0].counters.requested_bytes, 1300);
    cr_assert_eq(kind->buckets[0].counters.rounded_bytes, 2048);
    cr_assert_eq(kind->buckets[0].counters.peak.live_bytes, 2048);
    cr_assert_eq(kind->buckets[1].bytes, 5 * KIB);
    cr_assert_str_eq(report.devices[0].name, "Fake 0");
    cr_assert_eq(report.devices[0].total_bytes, DEVICE_BYTES);
    report_free(&report);
}

Test(heap, the_peak_of_all_buckets_is_that_of_one_moment)
{
    start_with_budget(0);
    for (size_t mib = 1; mib <= 4; mib++) {
        release(allocate(mib * MIB - 5));
        synchronise();
        pool_trim(pool);
    }
    struct report_counters c = counted();
    cr_assert_eq(c.peak.live_bytes, 4 * MIB - 5);
    cr_assert_eq(c.peak.reserved_bytes, 4 * MIB);
}

Test(heap, the_peaks_of_contexts_of_different_times_are_not_added_up)
{
    start();
    for (size_t mib = 1; mib <= 4; mib++) {
        allocate(mib * MIB);
        end_context(context);
        context = another_context(0);
    }
    struct report_counters c = counted();
    cr_assert_eq(c.peak.live_bytes, 4 * MIB);
    cr_assert_eq(c.peak.reserved_bytes, 4 * MIB);
}

/* Slow under ThreadSanitizer. */
Test(heap, there_may_be_more_sizes_than_buckets, .timeout = 120)
{
    settings.device.buckets.policy = BUCKETS_EXACT;
    start();
    stop_looking_at_locks();
    for (size_t i = 0; i < BUCKETS_MAX + 100; i++)
        release(allocate(1000 + i));
    struct report_counters c = counted();
    cr_assert_eq(c.requests, BUCKETS_MAX + 100);
    cr_assert_eq(c.live_bytes + c.cached_bytes + c.pending_bytes, fake_bytes_used(0));
}

/* ---- waste ---- */

Test(heap, a_program_that_fills_the_device_is_not_rounded_out_of_it)
{
    size_t asked = 34 * MIB, in_all = 0;
    start();
    /* Each alone is rounded up to 36 MiB, which would leave an eleventh of the device unused. */
    while (in_all + asked <= DEVICE_BYTES / 100 * 98) {
        allocate(asked);
        in_all += asked;
    }
    cr_assert_leq(heap_of(context_find(pool, context))->reserved_bytes, in_all + DEVICE_BYTES / 32);
}
