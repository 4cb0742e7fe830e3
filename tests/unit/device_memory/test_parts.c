/*
 * Blocks that are cut out of larger ones: the policy split.
 */
#include "pool_fixture.h"

#include "core/base/clock.h"
#include "core/device_memory/driver_free.h"
#include "core/device_memory/parts.h"
#include "core/device_memory/release.h"
#include "core/device_memory/release_sums.h"

static void set_up_to_split(void)
{
    set_up();
    settings.device.buckets.policy = BUCKETS_SPLIT;
    settings.device.caps.cached.percent = 100;
}

TestSuite(parts, .init = set_up_to_split, .fini = tear_down, .timeout = 60);

static struct heap *the_heap(void)
{
    return heap_of(context_find(pool, context));
}

static uint64_t spare_bytes(void)
{
    return counter_get(&the_heap()->counters->segments.spare_bytes);
}

static uint64_t segments(void)
{
    return counter_get(&the_heap()->counters->segments.count);
}

/* What threads' caches hold goes to the lists, and what is over there to its segments. */
static void merge_all(void)
{
    fake_finish(context);
    cr_assert_eq(synchronise(), CUDA_SUCCESS);
    struct heap *heap = the_heap();
    heap_lock(heap);
    thread_caches_collect(heap);
    heap_unlock(heap);
}

Test(parts, a_block_that_the_driver_refuses_to_free_stays_behind_what_was_freed_before_it)
{
    start();
    struct context *c = context_find(pool, context);
    CUdeviceptr part = allocate(MIB), whole = allocate(100 * MIB);
    fake_launch(context);
    release(part);
    epoch_close(c);
    release(whole);
    fake_fail(FAKE_MEM_FREE, CUDA_ERROR_UNKNOWN, 1);
    heap_free_pending(pool, c);
    cr_assert_eq(block_address(the_heap()->pending.first), part);
    cr_assert_eq(block_address(the_heap()->pending.last), whole);
}

/* ---- cutting ---- */

Test(parts, one_call_of_the_driver_serves_many)
{
    start();
    CUdeviceptr blocks[19];
    for (int i = 0; i < 19; i++)
        blocks[i] = allocate(MIB);
    cr_assert_eq(fake_calls(FAKE_MEM_ALLOC), 1);
    cr_assert_eq(reserved_bytes(), 20 * MIB);
    cr_assert_eq(fake_bytes_used(0), 20 * MIB);
    cr_assert_eq(live_bytes(), 19 * MIB);
    cr_assert_eq(spare_bytes(), MIB);
    for (int i = 0; i < 19; i++)
        release(blocks[i]);
}

Test(parts, what_is_clean_is_cut_for_other_sizes)
{
    start();
    CUdeviceptr large = allocate(40 * MIB);
    release(large);
    merge_all();
    CUdeviceptr parts[3];
    for (int i = 0; i < 3; i++)
        parts[i] = allocate(11 * MIB);
    cr_assert_eq(fake_calls(FAKE_MEM_ALLOC), 1);
    cr_assert_eq(parts[0], large + SEGMENT_HEAD);
    cr_assert_eq(segments(), 1);
    for (int i = 0; i < 3; i++)
        release(parts[i]);
    merge_all();
    cr_assert_eq(segments(), 0);
    cr_assert_eq(spare_bytes(), 0);
    cr_assert_eq(allocate(40 * MIB), large);
    cr_assert_eq(fake_calls(FAKE_MEM_ALLOC), 1);
    release(large);
}

Test(parts, a_part_that_may_be_in_use_is_not_merged)
{
    start();
    CUdeviceptr first = allocate(3 * MIB), second = allocate(3 * MIB);
    fake_launch(context);
    release(first);
    struct heap *heap = the_heap();
    heap_lock(heap);
    thread_caches_collect(heap);
    heap_unlock(heap);
    cr_assert_eq(pending_bytes(), 3 * MIB);
    /* It is not to be had for another size. */
    CUdeviceptr other = allocate(2 * MIB);
    cr_assert_neq(other, first);
    merge_all();
    cr_assert_eq(allocate(2 * MIB), first);
    release(second);
}

/* Sizes that were asked for once leave nothing that others could not have. */
Test(parts, sizes_that_do_not_come_back_leave_no_blocks)
{
    start();
    for (size_t i = 1; i < 200; i++) {
        release(allocate(i * 9 * KIB));
        fake_finish(context);
    }
    merge_all();
    cr_assert_leq(fake_calls(FAKE_MEM_ALLOC), 2);
    cr_assert_eq(spare_bytes(), 0);
    cr_assert_eq(segments(), 0);
    cr_assert_eq(clean_bytes(), reserved_bytes());
    cr_assert_eq(the_heap()->segments.spare[0], 0);
    cr_assert_eq(the_heap()->segments.spare[1], 0);
}

/* ---- what the driver gets back ---- */

Test(parts, only_what_is_whole_goes_back)
{
    start();
    CUdeviceptr kept = allocate(MIB), other = allocate(MIB);
    release(other);
    merge_all();
    cr_assert_eq(pool_trim(pool), 0);
    cr_assert_eq(fake_bytes_used(0), 20 * MIB);
    release(kept);
    merge_all();
    cr_assert_eq(pool_trim(pool), 20 * MIB);
    cr_assert_eq(fake_bytes_used(0), 0);
    cr_assert_eq(reserved_bytes(), 0);
}

Test(parts, caps_are_for_whole_blocks)
{
    settings.device.caps.cached = (struct byte_size){.bytes = 44 * MIB};
    start();
    CUdeviceptr kept = allocate(3 * MIB), whole = allocate(40 * MIB);
    release(whole);
    merge_all();
    release(allocate(3 * MIB));
    merge_all();
    cr_assert(fake_is_allocated(whole));
    cr_assert_eq(spare_bytes(), 17 * MIB);
    CUdeviceptr other = allocate(44 * MIB);
    release(other);
    merge_all();
    cr_assert_not(fake_is_allocated(whole) && fake_is_allocated(other));
    release(kept);
}

/* Nobody waits for it who is out of memory. */
Test(parts, spare_memory_has_no_floor)
{
    settings.device.reserve_floor = (struct byte_size){.bytes = 512 * MIB};
    settings.device.caps.reserve_ratio = 1;
    start_with_budget(0);
    release(allocate(64 * MIB));
    synchronise();
    allocate(80 * MIB);
    cr_assert_eq(reserved_bytes(), 80 * MIB);
}

Test(parts, what_lies_around_what_is_in_use_is_not_returnable)
{
    start();
    struct device *device = NULL;
    CUdeviceptr blocks[6];
    for (int i = 0; i < 6; i++)
        blocks[i] = allocate(3 * MIB);
    device = context_find(pool, context)->device;
    release(blocks[1]);
    release(blocks[3]);
    release(blocks[4]);
    merge_all();
    cr_assert_eq(release_returnable(pool, device), 6 * MIB);
    release(blocks[0]);
    release(blocks[2]);
    /* Also as long as it is in a cache, or may be in use. */
    cr_assert_eq(release_returnable(pool, device), 15 * MIB + SEGMENT_HEAD);
    release(blocks[5]);
    cr_assert_eq(release_returnable(pool, device), 20 * MIB);
    merge_all();
    cr_assert_eq(release_returnable(pool, device), 20 * MIB);
}

Test(parts, the_driver_is_never_asked_to_free_one)
{
    start();
    CUdeviceptr block = allocate(MIB), second = allocate(MIB);
    fake_fail(FAKE_RECORD, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    release(block);
    block = second;
    for (int i = 0; i < 200; i++)
        if (!atomic_load(&context_find(pool, context)->unusable))
            allocate_and_release(1, 33 * MIB);
    cr_assert(atomic_load(&context_find(pool, context)->unusable));
    fake_trace();
    release(block);
    /* It waits as the driver's free would, and stays where it is. */
    cr_assert_str_eq(fake_trace(), "synchronize");
    cr_assert_eq(pool_free(pool, block), CUDA_ERROR_INVALID_VALUE);
}

/* A block of the driver's own would be the driver's to free. */
Test(parts, one_that_others_were_told_of_is_freed_like_any_other)
{
    start();
    CUdeviceptr block = allocate(MIB);
    fake_launch(context);
    pool_share(pool, block);
    fake_trace();
    release(block);
    cr_assert_str_eq(fake_trace(), "");
    cr_assert_eq(live_bytes(), 0);
    fake_finish(context);
}

Test(parts, who_goes_past_the_pool_is_refused)
{
    start();
    CUdeviceptr block = allocate(MIB);
    cr_assert_not(pool_freed_outside(pool, block));
    release(block);
}

Test(parts, an_error_of_the_wait_in_the_frees_place_frees_nothing)
{
    start();
    CUdeviceptr block = allocate(MIB);
    context_disable(context_find(pool, context));
    fake_fail(FAKE_CTX_SYNCHRONIZE, CUDA_ERROR_ILLEGAL_ADDRESS, 1);
    cr_assert_eq(pool_free(pool, block), CUDA_ERROR_ILLEGAL_ADDRESS);
    cr_assert_eq(live_bytes(), MIB);
}

/* ---- memory is short ---- */

Test(parts, where_no_segment_fits_the_block_alone_may)
{
    start();
    fake_fail(FAKE_MEM_ALLOC, CUDA_ERROR_OUT_OF_MEMORY, 1);
    CUdeviceptr block = allocate(MIB);
    cr_assert_eq(reserved_bytes(), MIB);
    cr_assert_eq(fake_calls(FAKE_MEM_ALLOC), 2);
    /* It is the driver's own: the driver may free it. */
    pool_share(pool, block);
    release(block);
    cr_assert_not(fake_is_allocated(block));
}

Test(parts, a_limit_holds_for_whole_segments)
{
    settings.limits.device_bytes = (struct byte_size){.bytes = 8 * MIB};
    start();
    CUdeviceptr block = allocate(3 * MIB);
    cr_assert_eq(fake_bytes_used(0), 3 * MIB);
    CUdeviceptr small = allocate(KIB);
    cr_assert_eq(fake_bytes_used(0), 5 * MIB);
    cr_assert_eq(try_to_allocate(4 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    release(block);
    release(small);
}

/* Two of these leave a fifth of a segment, which none of them fits into. */
Test(parts, what_does_not_fit_into_what_is_spare_is_asked_for_alone)
{
    struct settings wanted = settings;
    set_up_on(GIB);
    settings = wanted;
    start();
    uint64_t blocks = 0;
    CUdeviceptr block;
    while (pool_allocate(pool, &block, 8 * MIB) == CUDA_SUCCESS)
        blocks++;
    cr_assert_geq(blocks * 8 * MIB, GIB - GIB / 64 - 20 * MIB);
    cr_assert_leq(spare_bytes(), GIB / 64 + 4 * MIB);
}

/* Of small ones, too, and of their own segments alone. */
Test(parts, a_small_one_shares_the_drivers_page_then)
{
    struct settings wanted = settings;
    set_up_on(512 * MIB);
    settings = wanted;
    start();
    for (int i = 0; i < 5; i++)
        allocate(8 * MIB);
    cr_assert_gt(spare_bytes(), 512 * MIB / 64);
    uint64_t before = reserved_bytes();
    allocate(MIB / 2);
    cr_assert_eq(reserved_bytes(), before + 2 * MIB);
    uint64_t blocks = 1;
    CUdeviceptr block;
    while (pool_allocate(pool, &block, MIB / 2) == CUDA_SUCCESS)
        blocks++;
    cr_assert_geq(blocks * (MIB / 2), 512 * MIB - before - 512 * MIB / 64 - 4 * MIB);
}

/* What is free in a segment, and pending, serves where the driver has nothing. */
Test(parts, what_becomes_clean_serves_where_the_driver_has_nothing)
{
    start();
    CUdeviceptr first = allocate(9 * MIB), second = allocate(9 * MIB);
    fake_launch(context);
    release(first);
    fake_fail(FAKE_MEM_ALLOC, CUDA_ERROR_OUT_OF_MEMORY, UINT32_MAX);
    fake_finish(context);
    CUdeviceptr block = allocate(5 * MIB);
    cr_assert_eq(block, first);
    release(block);
    release(second);
}

/* Apart they are only as long as there is memory for both. */
Test(parts, where_the_driver_has_nothing_small_ones_lie_among_large_ones)
{
    start();
    CUdeviceptr large[] = {allocate(3 * MIB), allocate(3 * MIB)}, small = allocate(MIB / 4);
    cr_assert_eq(fake_bytes_used(0), 22 * MIB);
    release(large[0]);
    merge_all();
    fake_fail(FAKE_MEM_ALLOC, CUDA_ERROR_OUT_OF_MEMORY, UINT32_MAX);
    CUdeviceptr rest = allocate(MIB), among = allocate(960 * KIB);
    cr_assert_eq(rest, large[0]);
    cr_assert_eq(among, small + MIB / 4);
    among = allocate(960 * KIB);
    cr_assert_eq(among, large[0] + MIB);
    release(large[1]);
    release(small);
    release(among);
    release(rest);
}

Test(parts, where_the_driver_has_nothing_a_whole_large_block_goes_back)
{
    start();
    CUdeviceptr whole = allocate(40 * MIB);
    release(whole);
    merge_all();
    fake_fail(FAKE_MEM_ALLOC, CUDA_ERROR_OUT_OF_MEMORY, 2);
    CUdeviceptr small = allocate(KIB);
    cr_assert_not(fake_is_allocated(whole));
    cr_assert_leq(reserved_bytes(), 2 * MIB);
    release(small);
}

Test(parts, where_a_limit_has_no_room_small_ones_lie_among_large_ones)
{
    settings.limits.device_bytes = (struct byte_size){.bytes = 20 * MIB};
    start();
    CUdeviceptr large = allocate(3 * MIB), small = allocate(KIB);
    cr_assert_eq(small, large + 3 * MIB);
    cr_assert_eq(fake_bytes_used(0), 20 * MIB);
    release(large);
    release(small);
}

/* ---- threads that begin at the same moment ---- */

static _Atomic unsigned inside;

static void take_long(void *unused)
{
    (void)unused;
    atomic_fetch_add(&inside, 1);
    struct timespec nap = {0, 1000000};
    nanosleep(&nap, NULL);
}

static void allocate_one(void *address)
{
    CUdeviceptr *block = address;
    cr_assert_eq(pool_allocate(pool, block, MIB), CUDA_SUCCESS);
}

static unsigned askers_of_eight(uint64_t *took)
{
    struct errand errands[8];
    CUdeviceptr blocks[8];
    atomic_store(&inside, 0);
    fake_during(FAKE_MEM_ALLOC, take_long, NULL);
    uint64_t began = monotonic_now();
    for (int i = 0; i < 8; i++)
        send(&errands[i], allocate_one, &blocks[i]);
    for (int i = 0; i < 8; i++)
        wait_for(&errands[i]);
    *took = monotonic_now() - began;
    fake_during(FAKE_MEM_ALLOC, NULL, NULL);
    for (int i = 0; i < 8; i++)
        release(blocks[i]);
    synchronise();
    pool_trim(pool);
    return atomic_load(&inside);
}

Test(parts, threads_that_begin_together_share_a_segment)
{
    unsigned tries = 0, askers;
    uint64_t took;
    start();
    stop_looking_at_locks();
    do
        askers = askers_of_eight(&took);
    while (is_tried_again(askers <= 2, took, &tries));
    /* One asks; on a busy machine another may have waited enough before it is done. */
    cr_assert_geq(askers, 1);
    cr_assert_leq(askers, 2);
}

/* ---- captures, and the end ---- */

Test(parts, a_free_beside_a_capture_is_what_the_drivers_would_be)
{
    start();
    CUdeviceptr block = allocate(MIB);
    CUstream stream = fake_stream();
    begin_capture(stream);
    fake_fail(FAKE_MEM_ALLOC, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    cr_assert_eq(pool_free(pool, block), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    cr_assert_eq(live_bytes(), MIB);
    end_capture(stream);
    release(block);
}

Test(parts, beside_a_capture_what_is_spare_serves_where_the_driver_has_nothing)
{
    start();
    CUdeviceptr block = allocate(3 * MIB), freed = allocate(3 * MIB), after = allocate(MIB);
    release(freed);
    merge_all();
    CUstream stream = fake_stream();
    begin_capture(stream);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver->cuThreadExchangeStreamCaptureMode(&mode);
    CUdeviceptr drivers_own = allocate(3 * MIB);
    cr_assert_eq(reserved_bytes(), 23 * MIB);
    fake_fail(FAKE_MEM_ALLOC, CUDA_ERROR_OUT_OF_MEMORY, UINT32_MAX);
    cr_assert_eq(allocate(3 * MIB), freed);
    cr_assert_eq(reserved_bytes(), 23 * MIB);
    cr_assert_eq(live_bytes(), 10 * MIB);
    driver->cuThreadExchangeStreamCaptureMode(&mode);
    end_capture(stream);
    release(freed);
    release(drivers_own);
    release(block);
    release(after);
}

Test(parts, a_context_takes_its_segments_with_it)
{
    start();
    CUdeviceptr blocks[3] = {allocate(KIB), allocate(MIB), allocate(12 * MIB)};
    release(blocks[0]);
    CUcontext dying = context;
    end_context(dying);
    context = another_context(0);
    cr_assert_eq(segments(), 0);
    cr_assert_eq(spare_bytes(), 0);
    cr_assert_eq(reserved_bytes(), 0);
    cr_assert_eq(device_reserved(context_find(pool, context)->device), 0);
    release(allocate(MIB));
    cr_assert_eq(segments(), 1);
}

Test(parts, without_a_current_context_none_is_freed_in_a_streams_order)
{
    start();
    CUdeviceptr block = allocate(MIB);
    CUstream stream = fake_stream();
    fake_set_current(NULL);
    cr_assert_eq(pool_free_async(pool, driver->cuMemFreeAsync, block, stream),
                 CUDA_ERROR_INVALID_CONTEXT);
    fake_set_current(context);
    cr_assert_eq(live_bytes(), MIB);
    cr_assert_eq(pool_free_async(pool, driver->cuMemFreeAsync, block, stream), CUDA_SUCCESS);
    cr_assert_eq(live_bytes(), 0);
}
