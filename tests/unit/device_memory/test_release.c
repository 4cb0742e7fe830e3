/*
 * Giving memory back: caps, the reserve ratio, idle blocks, the hard limit, and running out.
 */
#include "pool_fixture.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/device_memory/release.h"

/* Everything is kept, so that a test on a small device is about what it says. */
static void set_up_to_keep(void)
{
    set_up();
    settings.device.buckets.largest.percent = 100;
    settings.device.caps.cached.percent = 100;
}

TestSuite(release, .init = set_up_to_keep, .fini = tear_down, .timeout = 60);

static void start_on(uint64_t device_bytes)
{
    struct settings kept = settings;
    set_up_on(device_bytes);
    settings = kept;
    start();
}

/* So much seems to be left of the device that no free waits for what is pending: as where another
 * process is about to take it. */
static void hide_the_shortage(void)
{
    struct device *device = context_find(pool, context)->device;
    fake_fail(FAKE_MEM_GET_INFO, CUDA_ERROR_UNKNOWN, UINT32_MAX);
    atomic_store(&device->could_hold, TIB);
}

static void ignore_the_reserve_ratio(void)
{
    settings.device.caps.reserve_ratio = 100;
}

/* ---- how a block is given back ---- */

Test(release, clean_blocks_go_back_on_a_stream_of_our_own)
{
    start();
    CUdeviceptr block = allocate(MIB);
    release(block);
    synchronise();
    fake_trace();
    cr_assert_eq(pool_trim(pool), MIB);
    cr_assert_str_eq(fake_trace(), "stream free-async stream-synchronize");
    cr_assert_not(fake_is_allocated(block));
    cr_assert_eq(clean_bytes(), 0);
    cr_assert_eq(reserved_bytes(), 0);
    cr_assert_eq(counted().evictions.memory, 1);
}

Test(release, blocks_that_are_given_back_together_share_a_synchronise)
{
    start();
    allocate_and_release(3, MIB);
    synchronise();
    pool_trim(pool);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE_ASYNC), 3);
    cr_assert_eq(fake_calls(FAKE_STREAM_SYNCHRONIZE), 1);
    cr_assert_eq(fake_calls(FAKE_STREAM_CREATE), 1);
}

Test(release, what_the_gpu_may_be_using_is_not_given_back)
{
    start_with_budget(0);
    CUdeviceptr block = allocate(MIB);
    fake_launch(context);
    release(block);
    cr_assert_eq(pool_trim(pool), 0);
    cr_assert(fake_is_allocated(block));
}

Test(release, a_block_that_the_driver_does_not_take_stays)
{
    start();
    CUdeviceptr block = allocate(MIB);
    release(block);
    synchronise();
    fake_fail(FAKE_MEM_FREE_ASYNC, CUDA_ERROR_UNKNOWN, 1);
    fake_fail(FAKE_MEM_FREE, CUDA_ERROR_UNKNOWN, 1);
    cr_assert_eq(pool_trim(pool), 0);
    cr_assert_eq(clean_bytes(), MIB);
    cr_assert_eq(reserved_bytes(), MIB);
    cr_assert_eq(counted().evictions.memory, 0);
    cr_assert_eq(allocate(MIB), block);
    release(block);
    cr_assert_eq(pool_free(pool, block), CUDA_ERROR_INVALID_VALUE);
}

Test(release, without_free_async_an_allocation_gives_nothing_back)
{
    driver->cuMemFreeAsync = NULL;
    settings.device.growth_budget.bytes = 0;
    start();
    allocate_and_release(1, MIB);
    synchronise();
    allocate(2 * MIB);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE), 0);
    cr_assert_eq(clean_bytes(), MIB);
}

Test(release, without_free_async_a_synchronise_gives_back_by_the_plain_free)
{
    driver->cuMemFreeAsync = NULL;
    settings.device.caps.blocks_per_bucket = 1;
    start();
    allocate_and_release(3, MIB);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE), 0);
    synchronise();
    cr_assert_eq(fake_calls(FAKE_MEM_FREE), 2);
    cr_assert_eq(fake_calls(FAKE_STREAM_CREATE), 0);
    cr_assert_eq(clean_bytes(), MIB);
}

Test(release, without_free_async_an_allocation_that_would_fail_gives_back)
{
    set_up_on(16 * MIB);
    settings.device.buckets.largest.percent = 100;
    driver->cuMemFreeAsync = NULL;
    start();
    allocate_and_release(1, 10 * MIB);
    synchronise();
    allocate(12 * MIB);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE), 1);
}

/* A device without memory pools has the function, which always fails. */
Test(release, where_free_async_always_fails_running_out_gives_back_by_the_plain_free)
{
    start_on(16 * MIB);
    allocate_and_release(1, 10 * MIB);
    synchronise();
    fake_fail(FAKE_MEM_FREE_ASYNC, CUDA_ERROR_NOT_SUPPORTED, 1000);
    allocate(12 * MIB);
    cr_assert_eq(clean_bytes(), 0);
}

Test(release, where_free_async_always_fails_a_mere_miss_keeps_the_blocks)
{
    settings.device.growth_budget.bytes = 0;
    start();
    allocate_and_release(1, MIB);
    synchronise();
    fake_fail(FAKE_MEM_FREE_ASYNC, CUDA_ERROR_NOT_SUPPORTED, 1000);
    allocate(2 * MIB);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE), 0);
    cr_assert_eq(clean_bytes(), MIB);
}

/* ---- caps ---- */

Test(release, cached_bytes_stay_under_their_cap)
{
    settings.device.caps.cached = (struct byte_size){.bytes = 5 * MIB};
    start();
    allocate_and_release(8, MIB);
    synchronise();
    cr_assert_eq(clean_bytes(), 5 * MIB);
    cr_assert_eq(counted().evictions.cap, 3);
    cr_assert_eq(fake_bytes_used(0), 5 * MIB);
}

Test(release, the_cap_may_be_a_share_of_the_device)
{
    settings.device.caps.cached = (struct byte_size){.percent = 50};
    start_on(16 * MIB);
    allocate_and_release(12, MIB);
    synchronise();
    cr_assert_eq(clean_bytes(), 8 * MIB);
}

Test(release, the_cap_is_one_for_all_contexts_of_a_device)
{
    settings.device.caps.cached = (struct byte_size){.bytes = 5 * MIB};
    start();
    another_context(0);
    allocate_and_release(4, MIB);
    synchronise();
    fake_set_current(context);
    allocate_and_release(4, MIB);
    synchronise();
    let_time_pass();
    synchronise();
    cr_assert_leq(pool_device_bytes(pool, 0).cached + pool_device_bytes(pool, 0).pending, 5 * MIB);
}

Test(release, a_context_that_has_nothing_to_give_has_another_give)
{
    settings.device.caps.cached = (struct byte_size){.bytes = 4 * MIB};
    start();
    allocate_and_release(4, MIB);
    synchronise();
    CUcontext other = another_context(0);
    CUdeviceptr block = allocate(2 * MIB);
    fake_launch(other);
    release(block);
    allocate(3 * MIB);
    cr_assert_leq(pool_device_bytes(pool, 0).cached + pool_device_bytes(pool, 0).pending, 4 * MIB);
}

Test(release, a_bucket_keeps_so_many_blocks_and_no_more)
{
    settings.device.caps.blocks_per_bucket = 3;
    start();
    allocate_and_release(7, MIB);
    synchronise();
    allocate_and_release(2, 2 * MIB);
    synchronise();
    cr_assert_eq(clean_bytes(), 7 * MIB, "three of 1 MiB and both of 2 MiB");
    cr_assert_eq(counted().evictions.cap, 4);
}

Test(release, a_crowded_bucket_is_thinned_once_its_blocks_are_clean)
{
    settings.device.caps.blocks_per_bucket = 3;
    start();
    fake_launch(context);
    allocate_and_release(FREES_TO_A_FENCE, MIB);
    cr_assert_eq(pending_bytes(), FREES_TO_A_FENCE * MIB, "nothing can go yet");
    /* A slow path that finds nothing to do. */
    allocate(8 * MIB);
    synchronise();
    cr_assert_eq(clean_bytes(), 3 * MIB);
}

/* ---- which blocks go first ---- */

static void keep_two_sizes(enum evict_policy policy)
{
    settings.device.evict = policy;
    settings.device.caps.cached = (struct byte_size){.bytes = 4 * MIB};
    start();
    CUdeviceptr old = allocate(MIB), large = allocate(4 * MIB);
    release(old);
    synchronise();
    release(large);
    synchronise();
}

Test(release, the_largest_goes_first)
{
    keep_two_sizes(EVICT_LARGEST_FIRST);
    cr_assert_eq(clean_bytes(), MIB);
}

Test(release, or_the_least_recently_used)
{
    keep_two_sizes(EVICT_LEAST_RECENTLY_USED);
    cr_assert_eq(clean_bytes(), 4 * MIB);
}

Test(release, of_one_size_the_oldest_goes_first)
{
    settings.device.caps.blocks_per_bucket = 1;
    start();
    CUdeviceptr first = allocate(MIB), second = allocate(MIB);
    release(first);
    release(second);
    synchronise();
    cr_assert_not(fake_is_allocated(first));
    cr_assert(fake_is_allocated(second));
}

/* ---- the reserve ratio ---- */

Test(release, the_reserve_stays_inside_its_ratio)
{
    settings.device.growth_budget.bytes = 0;
    settings.device.caps.reserve_ratio = 1.5;
    start();
    CUdeviceptr held = allocate(8 * MIB);
    release(held);
    synchronise();
    allocate(4 * MIB);
    cr_assert_eq(clean_bytes(), 8 * MIB, "12 MiB are 1.5 times the peak");
    allocate(MIB);
    cr_assert_eq(clean_bytes(), 0);
    cr_assert_eq(counted().evictions.cap, 1);
}

Test(release, without_free_async_the_reserve_is_held_to_its_ratio_in_the_frees)
{
    driver->cuMemFreeAsync = NULL;
    settings.device.growth_budget.bytes = 0;
    settings.device.caps.reserve_ratio = 1;
    start();
    for (size_t mib = 1; mib <= 16; mib++) {
        release(allocate(mib * MIB));
        synchronise();
    }
    cr_assert_leq(reserved_bytes(), 16 * MIB);
}

Test(release, the_growth_budget_comes_on_top_of_the_ratio)
{
    settings.device.growth_budget.bytes = 16 * MIB;
    settings.device.caps.reserve_ratio = 1;
    start();
    CUdeviceptr held = allocate(8 * MIB);
    release(held);
    synchronise();
    allocate(16 * MIB);
    cr_assert_eq(clean_bytes(), 8 * MIB);
    allocate(9 * MIB);
    cr_assert_eq(clean_bytes(), 8 * MIB, "25 + 8 MiB: the peak is 25 now");
}

Test(release, below_the_floor_the_ratio_sends_nothing_back)
{
    settings.device.caps.reserve_ratio = 1;
    settings.device.reserve_floor = (struct byte_size){.bytes = 32 * MIB};
    start_with_budget(0);
    release(allocate(8 * MIB));
    synchronise();
    CUdeviceptr held = allocate(16 * MIB);
    cr_assert_eq(clean_bytes(), 8 * MIB);
    release(held);
    synchronise();
    allocate(12 * MIB);
    cr_assert_leq(reserved_bytes(), 32 * MIB, "8 + 16 + 12 MiB are over the floor");
}

Test(release, where_memory_is_short_there_is_no_floor)
{
    settings.device.caps.reserve_ratio = 1;
    settings.device.reserve_floor = (struct byte_size){.bytes = 32 * MIB};
    start_with_budget(0);
    release(allocate(8 * MIB));
    synchronise();
    device_set_short(context_find(pool, context)->device, true);
    allocate(16 * MIB);
    cr_assert_eq(clean_bytes(), 0);
}

Test(release, the_ratio_is_of_what_the_program_asked_for)
{
    settings.device.growth_budget.bytes = 0;
    settings.device.caps.reserve_ratio = 1;
    settings.device.buckets.policy = BUCKETS_POW2;
    start();
    allocate_and_release(1, 5 * MIB);
    synchronise();
    allocate(MIB);
    cr_assert_eq(clean_bytes(), 0, "a block of 8 MiB and one of 1 MiB are more than 5 + 1");
}

static void finish_the_work(void *unused)
{
    (void)unused;
    fake_finish(context);
}

Test(release, what_is_pending_is_waited_for_before_the_reserve_grows)
{
    settings.device.growth_budget.bytes = 0;
    settings.device.caps.reserve_ratio = 1;
    start();
    CUdeviceptr block = allocate(MIB);
    fake_launch(context);
    release(block);
    let_time_pass();
    fake_during(FAKE_EVENT_QUERY, finish_the_work, NULL);
    allocate(2 * MIB);
    cr_assert_not(fake_is_allocated(block));
    cr_assert_eq(fake_bytes_used(0), 2 * MIB);
}

static CUresult never_ready(CUstream stream)
{
    (void)stream;
    return CUDA_ERROR_NOT_READY;
}

/* The stream on which memory goes back comes behind the barrier, too. */
Test(release, behind_a_barrier_of_the_pools_it_waits_for_a_second_and_then_no_more)
{
    driver->cuStreamQuery = never_ready;
    start_with_budget(0);
    CUdeviceptr clean = allocate(2 * MIB), other = allocate(4 * MIB), block = allocate(MIB);
    release(clean);
    release(other);
    synchronise();
    take_again_behind_a_barrier(block);
    uint64_t began = monotonic_now();
    release_clean(pool, context_find(pool, context), MIB, EVICTION_CAP, RELEASE_IN_ALLOCATION);
    cr_assert_geq(monotonic_now() - began, STALLED_WAIT_NANOSECONDS);
    cr_assert_eq(fake_calls(FAKE_STREAM_SYNCHRONIZE), 0);
    began = monotonic_now();
    release_clean(pool, context_find(pool, context), MIB, EVICTION_CAP, RELEASE_IN_ALLOCATION);
    cr_assert_lt(monotonic_now() - began, STALLED_WAIT_NANOSECONDS / 2);
    cr_assert_eq(fake_calls(FAKE_STREAM_SYNCHRONIZE), 0);
    fake_finish(context);
}

/* It hands over all the same. */
Test(release, a_trim_behind_a_barrier_of_the_pools_waits_for_nothing)
{
    driver->cuStreamQuery = never_ready;
    start_with_budget(0);
    CUdeviceptr clean = allocate(2 * MIB), block = allocate(MIB);
    release(clean);
    synchronise();
    take_again_behind_a_barrier(block);
    uint64_t began = monotonic_now();
    cr_expect_eq(pool_trim(pool), 2 * MIB);
    cr_expect_lt(monotonic_now() - began, STALLED_WAIT_NANOSECONDS / 2);
    cr_expect_eq(fake_calls(FAKE_MEM_FREE_ASYNC), 1);
    fake_finish(context);
}

static void give_back_some(void *unused)
{
    (void)unused;
    release_clean(pool, context_find(pool, context), MIB, EVICTION_CAP, RELEASE_IN_ALLOCATION);
}

static void give_back_meanwhile(void *unused)
{
    fake_during(FAKE_WAIT, NULL, NULL);
    in_another_thread(give_back_some, unused);
}

/* Its wait may be there, though nobody has said so. */
Test(release, beside_a_thread_that_raises_a_barrier_it_waits_no_longer_either)
{
    start_with_budget(0);
    stop_looking_at_locks();
    CUdeviceptr clean = allocate(2 * MIB), block = allocate(MIB);
    release(clean);
    synchronise();
    fake_launch(context);
    release(block);
    let_time_pass();
    fake_during(FAKE_WAIT, give_back_meanwhile, NULL);
    cr_assert_eq(allocate(MIB), block);
    cr_assert_not(fake_is_allocated(clean));
    cr_assert_eq(fake_calls(FAKE_STREAM_SYNCHRONIZE), 0);
    fake_finish(context);
}

/* ---- idle blocks ---- */

static void nap(unsigned milliseconds)
{
    struct timespec time = {0, (long)milliseconds * 1000000};
    nanosleep(&time, NULL);
}

Test(release, blocks_that_are_not_used_for_long_go_back)
{
    settings.device.release_after_idle_ns = 50000000;
    start();
    CUdeviceptr block = allocate(MIB);
    release(block);
    synchronise();
    cr_assert_eq(clean_bytes(), MIB);
    nap(60);
    synchronise();
    cr_assert_eq(clean_bytes(), 0);
    cr_assert_eq(counted().evictions.idle, 1);
    cr_assert_not(fake_is_allocated(block));
}

Test(release, blocks_that_are_used_do_not)
{
    settings.device.release_after_idle_ns = 1000000000;
    start();
    CUdeviceptr idle = allocate(MIB), used = allocate(2 * MIB);
    release(idle);
    release(used);
    synchronise();
    nap(600);
    synchronise();
    cr_assert_eq(allocate(2 * MIB), used);
    release(used);
    nap(600);
    synchronise();
    cr_assert_not(fake_is_allocated(idle));
    cr_assert(fake_is_allocated(used));
}

Test(release, with_idle_release_0_nothing_is_idle)
{
    settings.device.release_after_idle_ns = 0;
    start();
    allocate_and_release(1, MIB);
    synchronise();
    nap(20);
    synchronise();
    cr_assert_eq(clean_bytes(), MIB);
}

/* ---- the hard limit ---- */

Test(release, past_the_hard_limit_there_is_no_memory)
{
    settings.limits.device_bytes = (struct byte_size){.bytes = 8 * MIB};
    start();
    allocate(5 * MIB);
    fake_trace();
    cr_assert_eq(try_to_allocate(4 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_null(strstr(fake_trace(), "alloc"), "the driver is not asked");
    allocate(3 * MIB);
    cr_assert_eq(reserved_bytes(), 8 * MIB);
    cr_assert_eq(try_to_allocate(1), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(counted().requests, 4);
    cr_assert_eq(counted().misses, 2);
    cr_assert_eq(counted().failures.limit, 2);
}

Test(release, what_is_cached_makes_room_under_the_hard_limit)
{
    settings.limits.device_bytes = (struct byte_size){.bytes = 8 * MIB};
    start();
    allocate_and_release(2, 4 * MIB);
    synchronise();
    allocate(6 * MIB);
    cr_assert_leq(fake_bytes_used(0), 8 * MIB);
    cr_assert_geq(counted().evictions.memory, 1);
}

Test(release, what_was_freed_makes_room_under_the_hard_limit)
{
    settings.limits.device_bytes = (struct byte_size){.bytes = 8 * MIB};
    start();
    allocate_and_release(2, 4 * MIB);
    allocate(6 * MIB);
    cr_assert_leq(fake_bytes_used(0), 8 * MIB);
}

Test(release, under_the_hard_limit_a_request_may_have_its_exact_size)
{
    settings.limits.device_bytes = (struct byte_size){.bytes = 9 * MIB};
    settings.device.buckets.policy = BUCKETS_POW2;
    start();
    CUdeviceptr block = allocate(9 * MIB);
    cr_assert_eq(fake_bytes_used(0), 9 * MIB);
    release(block);
    cr_assert_eq(synchronise(), CUDA_SUCCESS);
    cr_assert_eq(fake_bytes_used(0), 0, "it serves no bucket and is not kept");
}

Test(release, a_request_above_the_hard_limit_drains_nothing)
{
    settings.limits.device_bytes = (struct byte_size){.bytes = 8 * MIB};
    start();
    allocate_and_release(1, MIB);
    synchronise();
    cr_assert_eq(try_to_allocate(9 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(clean_bytes(), MIB);
}

Test(release, free_memory_ends_at_the_hard_limit)
{
    settings.limits.device_bytes = (struct byte_size){.bytes = 8 * MIB};
    start();
    size_t left, total;
    allocate(5 * MIB);
    release(allocate(MIB));
    cr_assert_eq(pool_memory_info(pool, &left, &total), CUDA_SUCCESS);
    cr_assert_eq(left, 3 * MIB);
    cr_assert_eq(total, DEVICE_BYTES);
}

static CUdeviceptr pitched(size_t width, size_t height, CUresult expected)
{
    CUdeviceptr address = 0;
    size_t pitch = 0;
    cr_assert_eq(pool_allocate_pitch(pool, fake_allocate_pitch, &address, &pitch, width, height, 4),
                 expected);
    return address;
}

Test(release, pitched_memory_is_under_the_hard_limit_too)
{
    settings.limits.device_bytes = (struct byte_size){.bytes = 8 * MIB};
    start();
    pitched(MIB, 5, CUDA_SUCCESS);
    cr_assert_eq(reserved_bytes(), 5 * MIB);
    pitched(2 * MIB, 2, CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(reserved_bytes(), 5 * MIB);
    cr_assert_eq(fake_bytes_used(0), 5 * MIB);
    pitched(MIB, 4, CUDA_ERROR_OUT_OF_MEMORY);
    pitched(3 * MIB, 1, CUDA_SUCCESS);
    cr_assert_eq(fake_bytes_used(0), 8 * MIB);
}

static CUdeviceptr racing[4];

static void allocate_racing(void *slot)
{
    pool_allocate(pool, slot, 2 * MIB);
}

Test(release, threads_that_race_do_not_pass_the_hard_limit)
{
    settings.limits.device_bytes = (struct byte_size){.bytes = 4 * MIB};
    struct errand errands[4];
    start();
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 4; i++) {
            racing[i] = 0;
            send(&errands[i], allocate_racing, &racing[i]);
        }
        for (int i = 0; i < 4; i++)
            wait_for(&errands[i]);
        unsigned successes = 0;
        for (int i = 0; i < 4; i++)
            if (racing[i]) {
                successes++;
                release(racing[i]);
            }
        cr_assert_eq(successes, 2);
        cr_assert_leq(fake_bytes_used(0), 4 * MIB);
        cr_assert_eq(reserved_bytes(), fake_bytes_used(0));
    }
}

/* ---- out of memory ---- */

Test(release, running_out_gives_clean_blocks_back_first)
{
    ignore_the_reserve_ratio();
    start_on(64 * MIB);
    allocate(48 * MIB);
    CUdeviceptr clean = allocate(4 * MIB), pending = allocate(3 * MIB);
    release(clean);
    synchronise();
    fake_launch(context);
    release(pending);
    cr_assert_eq(pending_bytes(), 3 * MIB);
    fake_trace();
    allocate(12 * MIB);
    cr_assert_str_eq(fake_trace(), "alloc stream free-async stream-synchronize alloc");
    cr_assert_eq(counted().evictions.memory, 1);
}

/* Not over when it is asked about before the wait. */
static void finish_the_work_at_the_third(void *unused)
{
    static unsigned queries;
    if (++queries == 3)
        finish_the_work(unused);
}

Test(release, running_out_gives_clean_blocks_back_before_it_waits)
{
    ignore_the_reserve_ratio();
    start_on(64 * MIB);
    CUdeviceptr clean = allocate(16 * MIB), pending = allocate(32 * MIB);
    release(clean);
    synchronise();
    fake_launch(context);
    hide_the_shortage();
    release(pending);
    fake_during(FAKE_EVENT_QUERY, finish_the_work_at_the_third, NULL);
    fake_trace();
    allocate(30 * MIB);
    cr_assert_str_eq(fake_trace(), "alloc query free-async stream-synchronize alloc");
    cr_assert_eq(pending_bytes(), 32 * MIB);
}

Test(release, then_it_waits_for_fences_that_a_free_recorded)
{
    ignore_the_reserve_ratio();
    settings.device.growth_budget.bytes = 32 * MIB;
    start_on(16 * MIB);
    CUdeviceptr block = allocate(12 * MIB);
    fake_launch(context);
    hide_the_shortage();
    release(block);
    cr_assert_eq(epochs()->outstanding, 1);
    let_time_pass();
    fake_launch(context);
    unsigned long long launched = fake_launched(context);
    fake_during(FAKE_EVENT_QUERY, finish_the_work_at_the_third, NULL);
    fake_trace();
    allocate(14 * MIB);
    cr_assert_str_eq(fake_trace(), "alloc query query query free-async stream-synchronize alloc");
    cr_assert_eq(fake_launched(context), launched);
}

Test(release, then_it_trims_the_drivers_own_pools)
{
    start();
    fake_fail(FAKE_MEM_ALLOC, CUDA_ERROR_OUT_OF_MEMORY, 1);
    fake_trace();
    allocate(MIB);
    cr_assert_str_eq(fake_trace(), "alloc trim trim alloc info");
}

/* The plain free would have waited, and what was freed in a stream's order would be back. */
Test(release, it_waits_for_a_fence_that_frees_nothing_of_ours_before_it_trims)
{
    start_with_budget(0);
    CUdeviceptr block = allocate(32 * MIB);
    fake_launch(context);
    release(block);
    cr_assert_eq(allocate(32 * MIB), block, "behind a barrier");
    cr_assert_eq(pending_bytes(), 0);
    cr_assert_eq(epochs()->outstanding, 1);
    let_time_pass();
    fake_during(FAKE_EVENT_QUERY, finish_the_work, NULL);
    fake_fail(FAKE_MEM_ALLOC, CUDA_ERROR_OUT_OF_MEMORY, 1);
    fake_trace();
    allocate(MIB);
    cr_assert_str_eq(fake_trace(), "alloc query trim trim alloc");
}

Test(release, memory_that_waits_for_another_threads_record_is_not_out_of_memory)
{
    struct errand recorder, clock;
    ignore_the_reserve_ratio();
    start_on(128 * MIB);
    CUdeviceptr block = allocate(48 * MIB);
    hold_a_record(&recorder);
    release(block);
    send(&clock, let_go_soon, NULL);
    allocate(96 * MIB);
    wait_for(&clock);
    wait_for(&recorder);
}

Test(release, nor_is_what_lies_in_a_threads_cache_meanwhile)
{
    struct errand recorder, clock;
    CUdeviceptr blocks[12];
    ignore_the_reserve_ratio();
    start_on(128 * MIB);
    for (unsigned i = 0; i < 12; i++)
        blocks[i] = allocate(4 * MIB);
    hold_a_record(&recorder);
    for (unsigned i = 0; i < 12; i++)
        release(blocks[i]);
    cr_assert_eq(thread_caches_sum(heap()).pending_bytes, 48 * MIB);
    send(&clock, let_go_soon, NULL);
    allocate(96 * MIB);
    wait_for(&clock);
    wait_for(&recorder);
}

static CUdeviceptr held_by_another;

static void free_what_it_holds(void *unused)
{
    (void)unused;
    release(held_by_another);
}

static void another_frees(void *unused)
{
    (void)unused;
    fake_during(FAKE_MEM_GET_INFO, NULL, NULL);
    in_another_thread(free_what_it_holds, NULL);
}

static void allocate_a_little(void *unused)
{
    (void)unused;
    allocate(MIB);
}

static void another_allocates(void *unused)
{
    (void)unused;
    fake_during(FAKE_TRIM, NULL, NULL);
    in_another_thread(allocate_a_little, NULL);
    fake_during(FAKE_MEM_GET_INFO, another_frees, NULL);
}

Test(release, it_begins_again_while_other_threads_move_what_would_be_enough)
{
    ignore_the_reserve_ratio();
    start_on(128 * MIB);
    held_by_another = allocate(96 * MIB);
    fake_during(FAKE_TRIM, another_allocates, NULL);
    allocate(96 * MIB);
}

/* Nobody waits for what could not help. */
Test(release, it_does_not_begin_again_where_there_would_not_be_enough)
{
    CUdeviceptr address;
    ignore_the_reserve_ratio();
    start_on(128 * MIB);
    allocate(96 * MIB);
    fake_during(FAKE_TRIM, another_allocates, NULL);
    held_by_another = allocate(MIB);
    cr_assert_eq(pool_allocate(pool, &address, 96 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(fake_calls(FAKE_TRIM), 2);
}

Test(release, then_it_fences_what_no_fence_covers)
{
    ignore_the_reserve_ratio();
    start_on(64 * MIB);
    allocate(48 * MIB);
    CUdeviceptr block = allocate(3 * MIB);
    release(block);
    cr_assert_eq(epochs()->outstanding, 0);
    fake_trace();
    allocate(15 * MIB);
    cr_assert_str_eq(fake_trace(), "alloc trim trim alloc create record query stream free-async "
                                   "stream-synchronize trim trim alloc");
}

/* The clock that the pool reads is ahead of the real one by so many seconds. */
static time_t ahead;

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    now->tv_sec += ahead;
    return result;
}

static void let_a_second_pass(void *unused)
{
    if (++ahead == 60)
        finish_the_work(unused);
}

Test(release, for_which_it_waits_some_seconds_at_most)
{
    ignore_the_reserve_ratio();
    start_on(64 * MIB);
    allocate(48 * MIB);
    CUdeviceptr block = allocate(3 * MIB);
    release(block);
    fake_launch(context);
    fake_during(FAKE_EVENT_QUERY, let_a_second_pass, NULL);
    cr_assert_eq(try_to_allocate(15 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_lt(ahead, 20);
}

Test(release, and_so_does_it_for_what_frees_have_fences_for)
{
    ignore_the_reserve_ratio();
    start_on(64 * MIB);
    CUdeviceptr block = allocate(40 * MIB);
    fake_launch(context);
    hide_the_shortage();
    release(block);
    fake_during(FAKE_EVENT_QUERY, let_a_second_pass, NULL);
    cr_assert_eq(try_to_allocate(50 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_lt(ahead, 20);
}

Test(release, then_it_asks_for_the_exact_size)
{
    settings.device.buckets.policy = BUCKETS_POW2;
    start_on(12 * MIB);
    CUdeviceptr block = allocate(9 * MIB);
    cr_assert_eq(fake_bytes_used(0), 9 * MIB);
    cr_assert_eq(reserved_bytes(), 9 * MIB);
    release(block);
    synchronise();
    cr_assert_eq(fake_bytes_used(0), 0, "a block smaller than its bucket is not kept");
    cr_assert_eq(reserved_bytes(), 0);
}

Test(release, then_the_drivers_error_is_the_answer)
{
    start_on(16 * MIB);
    allocate_and_release(2, 4 * MIB);
    cr_assert_eq(try_to_allocate(16 * MIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(try_to_allocate(15 * MIB), CUDA_SUCCESS);
    cr_assert_eq(try_to_allocate(2 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(reserved_bytes(), 15 * MIB);
}

Test(release, another_error_is_not_running_out)
{
    start();
    allocate_and_release(1, MIB);
    synchronise();
    fake_fail(FAKE_MEM_ALLOC, CUDA_ERROR_ILLEGAL_ADDRESS, 1);
    cr_assert_eq(try_to_allocate(4 * MIB), CUDA_ERROR_ILLEGAL_ADDRESS);
    cr_assert_eq(clean_bytes(), MIB);
}

Test(release, what_can_never_fit_drains_nothing)
{
    start();
    allocate_and_release(4, MIB);
    synchronise();
    allocate_and_release(2, 2 * MIB);
    uint64_t clean = clean_bytes(), pending = pending_bytes();
    fake_trace();
    cr_assert_eq(try_to_allocate(TIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_str_eq(fake_trace(), "alloc");
    cr_assert_eq(clean_bytes(), clean);
    cr_assert_eq(pending_bytes(), pending);
    cr_assert_eq(reserved_bytes(), clean + pending);
}

Test(release, running_out_reaches_the_other_contexts_of_the_device)
{
    ignore_the_reserve_ratio();
    start_on(16 * MIB);
    CUcontext other = another_context(0);
    allocate_and_release(1, 12 * MIB);
    synchronise();
    fake_set_current(context);
    let_time_pass();
    allocate(14 * MIB);
    cr_assert_eq(fake_bytes_used(0), 14 * MIB);
    (void)other;
}

Test(release, running_out_leaves_other_devices_alone)
{
    ignore_the_reserve_ratio();
    start_on(16 * MIB);
    CUcontext other = another_context(1);
    allocate_and_release(1, 12 * MIB);
    fake_set_current(context);
    cr_assert_eq(try_to_allocate(16 * MIB), CUDA_SUCCESS);
    cr_assert_eq(try_to_allocate(16 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(fake_bytes_used(1), 12 * MIB);
    (void)other;
}

Test(release, other_calls_that_run_out_have_everything_given_back)
{
    start();
    allocate_and_release(4, MIB);
    synchronise();
    allocate_and_release(1, 2 * MIB);
    struct reclaim progress = {0};
    unsigned rounds = 0;
    while (pool_make_room(pool, &progress))
        rounds++;
    cr_assert_eq(fake_bytes_used(0), 0);
    cr_assert_leq(rounds, 6);
    cr_assert_not(pool_make_room(pool, &progress), "and no more");
}

Test(release, what_other_calls_had_given_back_may_go_to_another_thread)
{
    start_on(16 * MIB);
    struct reclaim progress = {0};
    for (unsigned round = 0; round < 20; round++) {
        allocate_and_release(8, 256 * KIB);
        synchronise();
        cr_assert(pool_make_room(pool, &progress), "round %u", round);
    }
    while (pool_make_room(pool, &progress))
        ;
    cr_assert_eq(fake_bytes_used(0), 0);
}

Test(release, other_calls_are_not_tried_again_for_long)
{
    start_on(16 * MIB);
    struct reclaim progress = {0};
    unsigned rounds = 0;
    do {
        allocate_and_release(8, 256 * KIB);
        synchronise();
        let_time_pass();
    } while (pool_make_room(pool, &progress) && ++rounds < 100000);
    cr_assert_lt(rounds, 100000);
}

static void end_giving_back_late(void *device)
{
    struct timespec nap = {.tv_sec = 1, .tv_nsec = 300000000};
    nanosleep(&nap, NULL);
    atomic_fetch_sub(&((struct device *)device)->returning, 1);
}

Test(release, but_once_more_when_another_thread_has_given_back_at_last)
{
    start();
    struct device *device = context_find(pool, context)->device;
    struct errand errand;
    struct reclaim progress = {0};
    bool again = true;
    atomic_fetch_add(&device->returning, 1);
    send(&errand, end_giving_back_late, device);
    while (atomic_load(&device->returning) && again)
        again = pool_make_room(pool, &progress);
    cr_assert(again);
    wait_for(&errand);
}

Test(release, where_the_pool_has_stepped_aside_its_cache_still_makes_room)
{
    settings.device.growth_budget.bytes = 0;
    ignore_the_reserve_ratio();
    start_on(16 * MIB);
    CUdeviceptr clean = allocate(8 * MIB), block = allocate(MIB);
    release(clean);
    synchronise();
    fake_fail(FAKE_RECORD, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    release(block);
    cr_assert_eq(clean_bytes(), 8 * MIB);
    allocate(12 * MIB);
    cr_assert_eq(clean_bytes(), 0);
}

/* No fence will ever tell of what is pending then. */
static void expect_room_where_records_fail(CUresult error)
{
    settings.device.growth_budget.bytes = 0;
    ignore_the_reserve_ratio();
    start_on(16 * MIB);
    CUdeviceptr block = allocate(8 * MIB);
    fake_fail(FAKE_RECORD, error, 1000);
    release(block);
    cr_assert_eq(pending_bytes(), 8 * MIB);
    allocate(12 * MIB);
    cr_assert_eq(pending_bytes(), 0);
}

Test(release, where_the_pool_has_stepped_aside_what_is_pending_still_makes_room)
{
    expect_room_where_records_fail(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

Test(release, where_a_fence_has_just_failed_as_well)
{
    expect_room_where_records_fail(CUDA_ERROR_NOT_SUPPORTED);
    cr_assert(context_is_usable(context_find(pool, context)));
}

Test(release, pitched_memory_has_the_whole_way_out)
{
    ignore_the_reserve_ratio();
    start_on(16 * MIB);
    allocate_and_release(1, 12 * MIB);
    synchronise();
    pitched(MIB, 14, CUDA_SUCCESS);
    cr_assert_eq(fake_bytes_used(0), 14 * MIB);
}

Test(release, the_fill_to_the_last_byte_succeeds)
{
    start_on(64 * MIB);
    static CUdeviceptr blocks[64];
    fake_during(FAKE_EVENT_QUERY, finish_the_work, NULL);
    for (unsigned round = 0; round < 20; round++) {
        size_t bytes = (1 + round % 5) * MIB - 3 * KIB * (round % 3);
        unsigned count = (unsigned)(63 * MIB / bytes);
        for (unsigned i = 0; i < count; i++)
            blocks[i] = allocate(bytes);
        fake_launch(context);
        for (unsigned i = 0; i < count; i++)
            release(blocks[i]);
        fake_finish(context);
    }
    cr_assert_leq(fake_bytes_used(0), 64 * MIB);
}

/* ---- out of memory in several threads at once ---- */

Test(release, memory_that_another_thread_has_taken_is_looked_for_again)
{
    ignore_the_reserve_ratio();
    start();
    release(allocate(8 * MIB));
    synchronise();
    /* The first attempt, the one after giving back, and the one after trimming. */
    fake_fail(FAKE_MEM_ALLOC, CUDA_ERROR_OUT_OF_MEMORY, 3);
    allocate(MIB);
}

Test(release, what_was_looked_for_in_vain_is_not_looked_for_again)
{
    start();
    fake_fail(FAKE_MEM_ALLOC, CUDA_ERROR_OUT_OF_MEMORY, 100);
    cr_assert_eq(try_to_allocate(MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(fake_calls(FAKE_MEM_ALLOC), 2);
}

static void *end_giving_back(void *device)
{
    struct timespec nap = {.tv_nsec = 20 * 1000 * 1000};
    nanosleep(&nap, NULL);
    atomic_fetch_sub(&((struct device *)device)->returning, 1);
    return NULL;
}

Test(release, memory_that_another_thread_is_giving_back_is_waited_for)
{
    start();
    struct device *device = context_find(pool, context)->device;
    unsigned tries = 0;
    uint64_t started;
    bool served;
    do {
        pthread_t other;
        CUdeviceptr block;
        started = monotonic_now();
        atomic_fetch_add(&device->returning, 1);
        fake_fail(FAKE_MEM_ALLOC, CUDA_ERROR_OUT_OF_MEMORY, 2);
        cr_assert_eq(pthread_create(&other, NULL, end_giving_back, device), 0);
        served = pool_allocate(pool, &block, MIB) == CUDA_SUCCESS;
        cr_assert(!served || atomic_load(&device->returning) == 0);
        pthread_join(other, NULL);
        fake_fail(FAKE_MEM_ALLOC, CUDA_SUCCESS, 0);
    } while (is_tried_again(served, monotonic_now() - started, &tries));
    cr_assert(served);
}

/* ---- keeping blocks, or not ---- */

/* Sizes that never come back, in a reserve without room to keep them. */
static void keep_in_vain(unsigned from, unsigned to)
{
    for (unsigned i = from; i < to; i++) {
        release(allocate(2 * MIB + i * 4 * KIB));
        synchronise();
    }
}

static void start_without_reserve(void)
{
    settings.device.buckets.policy = BUCKETS_EXACT;
    settings.device.caps.reserve_ratio = 1;
    start_with_budget(0);
    release(allocate(MIB));
    synchronise();
    device_set_short(context_find(pool, context)->device, true);
}

static struct keep *keep_of_heap(void)
{
    return &heap_of(context_find(pool, context))->keep;
}

Test(release, after_many_blocks_kept_in_vain_the_driver_frees)
{
    start_without_reserve();
    keep_in_vain(0, KEEP_UNUSED_MOST + 1);
    CUdeviceptr block = allocate(3 * MIB), small = allocate(MIB);
    fake_trace();
    release(block);
    cr_assert_str_eq(fake_trace(), "free");
    release(small);
    cr_assert_eq(pending_bytes(), MIB);
}

/* Keeping costs nobody anything there. */
Test(release, where_memory_is_left_blocks_may_be_kept_in_vain)
{
    start_without_reserve();
    device_set_short(context_find(pool, context)->device, false);
    keep_in_vain(0, KEEP_UNUSED_MOST + 5);
    cr_assert_not(keep_is_on_trial(keep_of_heap()));
}

Test(release, hits_make_up_for_blocks_kept_in_vain)
{
    start_without_reserve();
    keep_in_vain(0, KEEP_UNUSED_MOST - 10);
    for (unsigned i = 0; i < 20; i++) {
        release(allocate(3 * MIB));
        synchronise();
    }
    keep_in_vain(KEEP_UNUSED_MOST, KEEP_UNUSED_MOST + 15);
    cr_assert_not(keep_is_on_trial(keep_of_heap()));
}

/* Nine tenths of the device in live blocks. */
static void fill_the_device(void)
{
    size_t total = context_find(pool, context)->device->total_bytes;
    for (unsigned i = 0; i < 9; i++)
        allocate(total / 10);
}

Test(release, on_a_nearly_full_device_the_driver_frees_large_blocks)
{
    start_with_budget(128 * MIB);
    fill_the_device();
    CUdeviceptr block = allocate(2 * MIB);
    fake_trace();
    release(block);
    cr_assert_str_eq(fake_trace(), "free");
    release(allocate(MIB));
    cr_assert_eq(pending_bytes(), MIB);
}

Test(release, on_a_nearly_full_device_sizes_that_come_back_are_kept_after_a_trial)
{
    start_with_budget(128 * MIB);
    fill_the_device();
    for (unsigned i = 0; i < KEEP_TRIAL_FIRST; i++)
        release(allocate(2 * MIB));
    cr_assert_eq(pending_bytes(), 0);
    release(allocate(2 * MIB));
    cr_assert_eq(pending_bytes(), 2 * MIB);
}

Test(release, once_memory_is_left_a_trial_is_not_followed_by_another)
{
    start_with_budget(128 * MIB);
    fill_the_device();
    release(allocate(2 * MIB));
    cr_assert(keep_is_on_trial(keep_of_heap()));
    keep_of_heap()->frees_left = 1;
    CUdeviceptr block = allocate(3 * MIB);
    device_set_short(context_find(pool, context)->device, false);
    release(block);
    cr_assert_not(keep_is_on_trial(keep_of_heap()));
}

Test(release, on_a_nearly_full_device_other_sizes_each_time_are_never_kept)
{
    start_without_reserve();
    fill_the_device();
    for (unsigned i = 0; i < 4 * KEEP_TRIAL_FIRST; i++)
        release(allocate(2 * MIB + i * 4 * KIB));
    cr_assert_eq(pending_bytes(), 0);
    cr_assert(keep_is_on_trial(keep_of_heap()));
}
