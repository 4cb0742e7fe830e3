/*
 * The pool as the hooks see it: what a program may notice of it, which is nothing but speed.
 */
#include "pool_fixture.h"

#include <string.h>

TestSuite(pool, .init = set_up, .fini = tear_down, .timeout = 20);

/* ---- starting ---- */

Test(pool, starting_a_pool_calls_no_driver)
{
    fake_trace();
    start_without_context();
    cr_assert_str_eq(fake_trace(), "");
}

Test(pool, settings_are_copied)
{
    settings.device.growth_budget.bytes = MIB;
    start();
    settings.device.growth_budget.bytes = 0;
    cr_assert_eq(pool->settings.device.growth_budget.bytes, MIB);
}

Test(pool, with_device_disabled_the_driver_allocates_and_frees)
{
    settings.device.enabled = false;
    start();
    fake_trace();
    CUdeviceptr block = allocate(1000);
    cr_assert_eq(live_bytes(), 1000);
    release(block);
    cr_assert_str_eq(fake_trace(), "alloc info free");
    cr_assert_eq(reserved_bytes(), 0);
}

Test(pool, with_device_disabled_the_hard_limit_holds)
{
    settings.device.enabled = false;
    settings.limits.device_bytes = (struct byte_size){.bytes = MIB};
    start();
    allocate(MIB);
    cr_assert_eq(try_to_allocate(1), CUDA_ERROR_OUT_OF_MEMORY);
}

/* ---- arguments ---- */

Test(pool, bad_arguments_get_the_drivers_answer)
{
    CUdeviceptr address;
    start();
    cr_assert_eq(pool_allocate(pool, &address, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(pool_allocate(pool, NULL, MIB), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(counted().requests, 0);
}

static void note_the_depth(void *inside)
{
    *(bool *)inside = is_inside_driver();
}

Test(pool, calls_of_our_own_are_marked_as_such)
{
    bool inside[4] = {false, false, false, false};
    settings.device.growth_budget.bytes = 0;
    start();
    fake_during(FAKE_MEM_ALLOC, note_the_depth, &inside[0]);
    fake_during(FAKE_RECORD, note_the_depth, &inside[1]);
    fake_during(FAKE_EVENT_QUERY, note_the_depth, &inside[2]);
    fake_during(FAKE_MEM_FREE_ASYNC, note_the_depth, &inside[3]);
    release(allocate(MIB));
    allocate(MIB);
    release(allocate(2 * MIB));
    synchronise();
    pool_trim(pool);
    for (int i = 0; i < 4; i++)
        cr_assert(inside[i], "%d", i);
    cr_assert_not(is_inside_driver());
}

/* ---- cuMemGetInfo ---- */

Test(pool, free_memory_counts_what_is_cached_and_pending)
{
    size_t left, total;
    start();
    CUdeviceptr live = allocate(4 * MIB), clean = allocate(2 * MIB), pending = allocate(2 * MIB);
    release(clean);
    synchronise();
    release(pending);
    cr_assert_eq(pool_memory_info(pool, &left, &total), CUDA_SUCCESS);
    cr_assert_eq(left, DEVICE_BYTES - 4 * MIB);
    cr_assert_eq(total, DEVICE_BYTES);
    left = 0;
    cr_assert_eq(pool_memory_info(pool, &left, NULL), CUDA_SUCCESS);
    cr_assert_eq(left, DEVICE_BYTES - 4 * MIB);
    cr_assert_eq(pool_memory_info(pool, NULL, &total), CUDA_SUCCESS);
    release(live);
}

Test(pool, free_memory_is_what_the_device_has_where_that_is_less_than_the_hard_limit)
{
    size_t left, total;
    CUdeviceptr foreign;
    settings.limits.device_bytes = (struct byte_size){.bytes = DEVICE_BYTES / 2};
    start();
    cr_assert_eq(driver->cuMemAlloc_v2(&foreign, DEVICE_BYTES - GIB), CUDA_SUCCESS);
    allocate(MIB);
    cr_assert_eq(pool_memory_info(pool, &left, &total), CUDA_SUCCESS);
    cr_assert_eq(left, GIB - MIB);
}

static size_t free_memory(void)
{
    size_t left, total;
    cr_assert_eq(pool_memory_info(pool, &left, &total), CUDA_SUCCESS);
    return left;
}

static CUdeviceptr allocate_at(CUdeviceptr address, size_t bytes)
{
    fake_next_address(address);
    CUdeviceptr block = allocate(bytes);
    cr_assert_eq(block, address);
    return block;
}

#define PAGE        (2 * MIB)
#define NTH_PAGE(n) ((UINT64_C(0x200) + (n)) * PAGE)

Test(pool, free_memory_counts_the_pages_that_cached_blocks_take)
{
    start();
    CUdeviceptr large = allocate_at(NTH_PAGE(0), 3 * MIB);
    CUdeviceptr small = allocate_at(NTH_PAGE(2), MIB);
    allocate_at(NTH_PAGE(3), 16 * MIB);
    size_t before = free_memory();
    release(large);
    release(small);
    cr_assert_eq(free_memory() - before, (4 + 2) * MIB, "3 MiB take two pages, 1 MiB one");
}

Test(pool, a_page_is_free_once_all_blocks_in_it_are)
{
    start();
    CUdeviceptr first = allocate_at(NTH_PAGE(0), 4096);
    CUdeviceptr second = allocate_at(NTH_PAGE(0) + PAGE / 2, MIB);
    CUdeviceptr third = allocate_at(NTH_PAGE(1), 4096);
    allocate_at(NTH_PAGE(2), 16 * MIB);
    size_t before = free_memory();
    release(second);
    cr_assert_eq(free_memory(), before, "the first block of the page is live");
    release(third);
    cr_assert_eq(free_memory(), before + PAGE);
    synchronise();
    cr_assert_eq(free_memory(), before + PAGE, "clean or pending");
    release(first);
    cr_assert_eq(free_memory(), before + 2 * PAGE);
    cr_assert_eq(allocate(MIB), second);
    cr_assert_eq(free_memory(), before + PAGE, "the second one is");
}

Test(pool, asking_for_free_memory_may_fail)
{
    size_t left, total;
    start();
    fake_fail(FAKE_MEM_GET_INFO, CUDA_ERROR_LAUNCH_FAILED, 1);
    cr_assert_eq(pool_memory_info(pool, &left, &total), CUDA_ERROR_LAUNCH_FAILED);
}

/* ---- pointers ---- */

Test(pool, a_live_pointer_has_the_requested_size)
{
    start();
    CUdeviceptr block = allocate(1000);
    struct pointer_answer first = pool_ask_pointer(pool, block);
    struct pointer_answer inside = pool_ask_pointer(pool, block + 999);
    cr_assert_eq(first.kind, POINTER_LIVE);
    cr_assert_eq(first.base, block);
    cr_assert_eq(first.bytes, 1000);
    cr_assert_eq(inside.kind, POINTER_LIVE);
    cr_assert_eq(inside.base, block);
    cr_assert_eq(pool_ask_pointer(pool, block + 1000).kind, POINTER_HIDDEN);
}

Test(pool, the_requested_size_is_that_of_the_last_request)
{
    start();
    CUdeviceptr block = allocate(1000);
    release(block);
    synchronise();
    cr_assert_eq(allocate(600), block);
    cr_assert_eq(pool_ask_pointer(pool, block).bytes, 600);
    cr_assert_eq(pool_ask_pointer(pool, block + 700).kind, POINTER_HIDDEN);
}

Test(pool, a_freed_pointer_is_hidden)
{
    start();
    CUdeviceptr block = allocate(MIB);
    release(block);
    cr_assert_eq(pool_ask_pointer(pool, block).kind, POINTER_HIDDEN);
    cr_assert_eq(pool_ask_pointer(pool, block + 512).kind, POINTER_HIDDEN);
    synchronise();
    cr_assert_eq(pool_ask_pointer(pool, block + 512).kind, POINTER_HIDDEN);
    pool_trim(pool);
    cr_assert_eq(pool_ask_pointer(pool, block).kind, POINTER_FOREIGN);
}

Test(pool, other_pointers_are_foreign)
{
    CUdeviceptr foreign;
    start();
    cr_assert_eq(driver->cuMemAlloc_v2(&foreign, MIB), CUDA_SUCCESS);
    cr_assert_eq(pool_ask_pointer(pool, foreign).kind, POINTER_FOREIGN);
    cr_assert_eq(pool_ask_pointer(pool, 0).kind, POINTER_FOREIGN);
    cr_assert_eq(pool_ask_pointer(pool, 12345).kind, POINTER_FOREIGN);
    cr_assert_eq(pool_ask_pointer(pool, NOBODYS_POINTER).kind, POINTER_FOREIGN);
}

/* ---- sharing ---- */

Test(pool, a_shared_block_is_the_drivers_to_free)
{
    start();
    CUdeviceptr block = allocate(MIB);
    pool_share(pool, block + 512);
    fake_trace();
    release(block);
    cr_assert_str_eq(fake_trace(), "free");
    cr_assert_eq(reserved_bytes(), 0);
    cr_assert_neq(allocate(MIB), block);
    cr_assert_eq(counted().frees, 1);
}

/* Another thread of a program that frees twice, while the pool has no record of the block. */
static void free_it_first(void *address)
{
    fake_during(FAKE_MEM_FREE, NULL, NULL);
    fake_during(FAKE_MEM_FREE_ASYNC, NULL, NULL);
    cr_assert_eq(pool_free(pool, *(CUdeviceptr *)address), CUDA_SUCCESS);
}

Test(pool, a_block_that_another_thread_has_freed_first_does_not_come_back)
{
    start();
    CUdeviceptr block = allocate(MIB);
    pool_share(pool, block);
    fake_during(FAKE_MEM_FREE, free_it_first, &block);
    cr_assert_eq(pool_free(pool, block), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(reserved_bytes(), 0);
    cr_assert_eq(counted().frees, 1);
}

Test(pool, nor_does_one_that_was_on_its_way_back)
{
    start();
    CUdeviceptr block = allocate(MIB);
    release(block);
    synchronise();
    fake_during(FAKE_MEM_FREE_ASYNC, free_it_first, &block);
    pool_trim(pool);
    cr_assert_eq(reserved_bytes(), 0);
}

Test(pool, a_shared_block_that_is_freed_on_a_stream_is_not_waited_for)
{
    start();
    CUstream stream = fake_stream();
    CUdeviceptr block = allocate(MIB);
    pool_share(pool, block);
    fake_trace();
    cr_assert_eq(pool_free_async(pool, driver->cuMemFreeAsync, block, stream), CUDA_SUCCESS);
    cr_assert_str_eq(fake_trace(), "free-async");
}

Test(pool, sharing_waits_for_what_a_barrier_orders_before_the_block)
{
    unsigned queries = 0;
    CUdeviceptr block = take_behind_a_barrier();
    fake_during(FAKE_EVENT_QUERY, finish_at_the_fourth_query, &queries);
    pool_share(pool, block);
    cr_assert_geq(queries, 4);
    cr_assert_geq(epoch_clean(epochs()), 1);
}

Test(pool, sharing_a_block_that_no_barrier_is_before_waits_for_nothing)
{
    start_with_budget(0);
    CUdeviceptr pending = allocate(2 * MIB), block = allocate(MIB);
    fake_launch(context);
    release(pending);
    fake_trace();
    pool_share(pool, block);
    cr_assert_str_eq(fake_trace(), "");
}

Test(pool, only_live_blocks_are_shared)
{
    start();
    CUdeviceptr block = allocate(MIB);
    release(block);
    pool_share(pool, block);
    pool_share(pool, 0);
    synchronise();
    cr_assert_eq(allocate(MIB), block);
    release(block);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE), 0);
}

/* ---- cuMemFreeAsync ---- */

Test(pool, a_free_on_a_stream_makes_a_block_pending)
{
    start();
    CUstream stream = fake_stream();
    CUdeviceptr block = allocate(MIB), another = allocate(MIB);
    fake_trace();
    cr_assert_eq(pool_free_async(pool, driver->cuMemFreeAsync, another, stream), CUDA_SUCCESS);
    cr_assert_str_eq(fake_trace(), "info", "what is left of the device");
    cr_assert_eq(pool_free_async(pool, driver->cuMemFreeAsync, block, stream), CUDA_SUCCESS);
    cr_assert_str_eq(fake_trace(), "", "which is not asked for each time");
    cr_assert_eq(pending_bytes(), 2 * MIB);
    cr_assert_eq(pool_free_async(pool, driver->cuMemFreeAsync, block, stream),
                 CUDA_ERROR_INVALID_VALUE);
    synchronise();
    cr_assert_eq(allocate(MIB), block);
}

/* What the pool keeps is behind all of the context's work, and a request might have to wait for
 * that which needs this stream's alone without the pool. */
Test(pool, a_free_on_a_stream_is_the_drivers_where_the_device_is_nearly_full)
{
    driver = fake_driver(256 * MIB);
    start();
    CUstream stream = fake_stream();
    CUdeviceptr block = allocate(64 * MIB);
    fake_launch(context);
    cr_assert_eq(pool_free_async(pool, driver->cuMemFreeAsync, block, stream), CUDA_SUCCESS);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE_ASYNC), 1);
    cr_assert_eq(pending_bytes(), 0);
    cr_assert_eq(live_bytes(), 0);
}

Test(pool, a_free_on_a_stream_that_is_none_is_the_drivers_to_refuse)
{
    start();
    CUdeviceptr block = allocate(MIB);
    fake_fail(FAKE_MEM_FREE_ASYNC, CUDA_ERROR_INVALID_HANDLE, 1);
    cr_assert_eq(pool_free_async(pool, driver->cuMemFreeAsync, block, (CUstream)0x7777),
                 CUDA_ERROR_INVALID_HANDLE);
    cr_assert_eq(live_bytes(), MIB);
    cr_assert_eq(pool_ask_pointer(pool, block).kind, POINTER_LIVE);
    release(block);
}

Test(pool, other_pointers_are_freed_on_a_stream_by_the_driver)
{
    start();
    CUstream stream = fake_stream();
    fake_trace();
    cr_assert_eq(pool_free_async(pool, driver->cuMemFreeAsync, 0, stream), CUDA_SUCCESS);
    cr_assert_eq(pool_free_async(pool, driver->cuMemFreeAsync, 4096, stream),
                 CUDA_ERROR_INVALID_VALUE);
    cr_assert_str_eq(fake_trace(), "free-async free-async");
}

/* ---- cuMemAllocPitch ---- */

static CUdeviceptr pitched(size_t width, size_t height, size_t expected)
{
    CUdeviceptr address = 0;
    size_t pitch = 0;
    cr_assert_eq(pool_allocate_pitch(pool, fake_allocate_pitch, &address, &pitch, width, height, 4),
                 CUDA_SUCCESS);
    cr_assert_eq(pitch, expected);
    return address;
}

Test(pool, the_driver_knows_the_pitch_of_a_width)
{
    start();
    CUdeviceptr first = pitched(1000, 8, 1024);
    cr_assert_eq(fake_calls(FAKE_PITCH), 1);
    cr_assert_eq(live_bytes(), 8 * KIB);
    cr_assert_eq(reserved_bytes(), 8 * KIB);
    release(first);
    CUdeviceptr second = pitched(1000, 4, 1024);
    cr_assert_eq(fake_calls(FAKE_PITCH), 1, "and is asked once");
    cr_assert_eq(pool_ask_pointer(pool, second).bytes, 4 * KIB);
    release(second);
    synchronise();
    cr_assert_eq(pitched(1000, 4, 1024), second);
    pitched(1001, 4, 1024);
    cr_assert_eq(fake_calls(FAKE_PITCH), 2);
}

Test(pool, bad_pitched_requests_get_the_drivers_answer)
{
    CUdeviceptr address;
    size_t pitch;
    start();
    cr_assert_eq(pool_allocate_pitch(pool, fake_allocate_pitch, &address, &pitch, 0, 4, 4),
                 CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(pool_allocate_pitch(pool, fake_allocate_pitch, NULL, &pitch, 4, 4, 4),
                 CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(pool_allocate_pitch(pool, fake_allocate_pitch, &address, NULL, 4, 4, 4),
                 CUDA_ERROR_INVALID_VALUE);
}

Test(pool, a_pitched_request_that_can_never_fit_drains_nothing)
{
    CUdeviceptr address;
    size_t pitch;
    start();
    allocate_and_release(1, MIB);
    synchronise();
    cr_assert_eq(pool_allocate_pitch(pool, fake_allocate_pitch, &address, &pitch, GIB, 4096, 4),
                 CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(clean_bytes(), MIB);
    cr_assert_eq(reserved_bytes(), MIB);
}

/* ---- the report ---- */

Test(pool, a_report_sums_the_contexts_of_a_device)
{
    static struct report report;
    start();
    allocate(MIB);
    another_context(0);
    allocate(MIB);
    allocate(2 * MIB);
    another_context(1);
    allocate(4 * MIB);
    cr_assert_eq(pool_report(pool, &report), 0);
    cr_assert_eq(report.device_count, 2);
    for (size_t i = 0; i < 2; i++) {
        const struct report_device *d = &report.devices[i];
        const struct report_kind *kind = &d->kinds[0];
        bool first = d->ordinal == 0;
        cr_assert_eq(kind->totals.requests, first ? 3 : 1);
        cr_assert_eq(kind->totals.live_bytes, 4 * MIB);
        cr_assert_eq(kind->bucket_count, first ? 2 : 1);
        cr_assert_eq(kind->buckets[0].counters.requests, first ? 2 : 1);
    }
    report_free(&report);
    fake_set_current(context);
}

Test(pool, blocks_that_are_not_kept_are_the_last_row)
{
    static struct report report;
    settings.device.buckets.largest = (struct byte_size){.bytes = MIB};
    start();
    allocate(2 * MIB);
    allocate(KIB);
    cr_assert_eq(pool_report(pool, &report), 0);
    const struct report_kind *kind = &report.devices[0].kinds[0];
    cr_assert_eq(kind->bucket_count, 2);
    cr_assert_eq(kind->buckets[0].bytes, KIB);
    cr_assert_eq(kind->buckets[1].bytes, 0);
    cr_assert_eq(kind->buckets[1].counters.live_bytes, 2 * MIB);
    report_free(&report);
}

static void take_a_millisecond(void *unused)
{
    struct timespec nap = {0, 1000000};
    (void)unused;
    nanosleep(&nap, NULL);
}

static void hit_five_times(CUdeviceptr block)
{
    for (int i = 0; i < 5; i++) {
        release(block);
        synchronise();
        cr_assert_eq(allocate(MIB), block);
    }
}

Test(pool, time_saved_at_least_is_hits_times_what_a_miss_has_cost)
{
    start();
    fake_during(FAKE_MEM_ALLOC, take_a_millisecond, NULL);
    CUdeviceptr block = allocate(MIB);
    fake_during(FAKE_MEM_ALLOC, NULL, NULL);
    hit_five_times(block);
    struct report_counters c = counted();
    cr_assert_eq(c.driver.calls, 1);
    cr_assert_geq(c.driver.nanoseconds, 1000000);
    cr_assert_eq(c.saved_at_least_nanoseconds, 5 * c.driver.nanoseconds);
}

Test(pool, slower_misses_save_no_more)
{
    start();
    CUdeviceptr block = allocate(MIB);
    hit_five_times(block);
    uint64_t before = counted().saved_at_least_nanoseconds;
    cr_assert_gt(before, 0);
    fake_during(FAKE_MEM_ALLOC, take_a_millisecond, NULL);
    for (int i = 0; i < 5; i++)
        allocate(MIB);
    struct report_counters c = counted();
    cr_assert_geq(c.driver.nanoseconds, 5000000);
    cr_assert_leq(c.saved_at_least_nanoseconds, before);
}

/* One slow measurement of a size does no harm where a larger block came quicker. */
Test(pool, a_pair_costs_no_more_than_one_of_a_larger_size)
{
    start();
    fake_during(FAKE_MEM_ALLOC, take_a_millisecond, NULL);
    CUdeviceptr block = allocate(MIB);
    fake_during(FAKE_MEM_ALLOC, NULL, NULL);
    allocate(2 * MIB);
    hit_five_times(block);
    cr_assert_lt(counted().saved_at_least_nanoseconds, 5000000);
}

Test(pool, a_free_that_the_driver_answers_counts_with_its_time)
{
    start();
    CUdeviceptr block = allocate(MIB);
    pool_share(pool, block);
    fake_during(FAKE_MEM_FREE, take_a_millisecond, NULL);
    uint64_t before = counted().driver.nanoseconds;
    release(block);
    struct report_counters c = counted();
    cr_assert_eq(c.evictions.free, 1);
    cr_assert_eq(c.live_blocks, 0);
    cr_assert_eq(c.driver.calls, 2);
    cr_assert_geq(c.driver.nanoseconds, before + 1000000);
}

static void answer_slowly(void *queries)
{
    take_a_millisecond(NULL);
    finish_at_the_fourth_query(queries);
}

/* With a budget of nothing a second block of the size waits for the first one's fence. */
Test(pool, time_that_an_allocation_waited_is_known)
{
    unsigned queries = 0;
    settings.device.barriers = false;
    start_with_budget(0);
    CUdeviceptr block = allocate(MIB);
    fake_launch(context);
    release(block);
    fake_during(FAKE_EVENT_QUERY, answer_slowly, &queries);
    CUdeviceptr again = allocate(MIB);
    struct report_counters c = counted();
    cr_assert_eq(again, block);
    cr_assert_eq(c.hits.waited, 1);
    cr_assert_geq(c.waits.nanoseconds, 1000000);
    cr_assert_eq(c.waits.frees, 0);
}

Test(pool, so_is_that_of_a_free_that_synchronises)
{
    settings.device.free_synchronizes = true;
    start();
    CUdeviceptr block = allocate(MIB);
    fake_during(FAKE_CTX_SYNCHRONIZE, take_a_millisecond, NULL);
    release(block);
    struct report_counters c = counted();
    cr_assert_geq(c.waits.nanoseconds, 1000000);
    cr_assert_eq(c.waits.frees, 1);
}

Test(pool, allocations_in_captures_are_told)
{
    static struct report report;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    start();
    driver->cuThreadExchangeStreamCaptureMode(&mode);
    CUstream stream = fake_stream();
    begin_capture(stream);
    allocate(MIB);
    end_capture(stream);
    allocate(MIB);
    cr_assert_eq(pool_report(pool, &report), 0);
    cr_assert_eq(report.devices[0].captured, 1);
    report_free(&report);
}

Test(pool, a_report_waits_for_no_lock)
{
    static struct report report;
    start();
    allocate(MIB);
    stop_looking_at_locks();
    lock_take(&pool->fence_lock, LOCK_FENCE);
    lock_take(&pool->registry.lock, LOCK_REGISTRY);
    heap_lock(heap());
    cr_assert_eq(pool_report(pool, &report), 0);
    cr_assert_eq(report.devices[0].kinds[0].totals.requests, 1);
    report_free(&report);
    heap_unlock(heap());
    lock_give(&pool->registry.lock);
    lock_give(&pool->fence_lock);
}
