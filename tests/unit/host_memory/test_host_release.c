/*
 * Pinned host memory: caps, idle blocks, what the cgroup has left, and running out.
 */
#include "host_fixture.h"

#include <stdatomic.h>

#include "core/contexts/epoch.h"
#include "core/host_memory/host_by_driver.h"
#include "core/host_memory/host_release.h"
#include "machine_fixture.h"

TestSuite(host_release, .init = host_set_up, .fini = host_tear_down, .timeout = 60);

#define SECOND UINT64_C(1000000000)

static void cap_cached(uint64_t bytes)
{
    settings.host.caps.cached = (struct byte_size){.bytes = bytes};
}

/* ---- caps ---- */

Test(host_release, a_free_gives_back_what_is_past_the_cap)
{
    cap_cached(4 * MIB);
    host_start();
    allocate_and_release_host(3, 2 * MIB);
    cr_assert_eq(fake_calls(FAKE_FREE_HOST), 1);
    cr_assert_eq(host_kept().cached, 4 * MIB);
    cr_assert_eq(host_counted().evictions.cap, 1);
}

/* The first free has a fence, since blocks were made, and the third one, since half of what may be
 * cached waits for it. The fourth passes the cap. */
Test(host_release, what_is_past_the_cap_goes_back_before_a_fence_is_due)
{
    void *blocks[4];
    cap_cached(7 * MIB);
    host_start();
    for (unsigned i = 0; i < 4; i++)
        blocks[i] = allocate_host(2 * MIB);
    for (unsigned i = 0; i < 4; i++) {
        release_host(blocks[i]);
        cr_assert_leq(host_kept().cached + host_kept().pending, 7 * MIB);
    }
    cr_assert_eq(fake_calls(FAKE_FREE_HOST), 1);
}

Test(host_release, the_cap_is_one_for_all_contexts)
{
    cap_cached(4 * MIB);
    host_start();
    allocate_and_release_host(2, 2 * MIB);
    another_context(0);
    allocate_and_release_host(1, 2 * MIB);
    cr_assert_eq(host_kept().cached + host_kept().pending, 4 * MIB);
    cr_assert_eq(host_counted().evictions.cap, 1);
}

/* Which of a larger and an older block goes first. */
static bool gives_back_the_larger(void)
{
    cap_cached(8 * MIB);
    host_start();
    void *older = allocate_host(MIB), *larger = allocate_host(4 * MIB);
    void *last = allocate_host(4 * MIB);
    release_host(older);
    synchronise();
    release_host(larger);
    synchronise();
    release_host(last);
    cr_assert_eq(fake_is_host_allocated(older) + fake_is_host_allocated(larger), 1);
    return fake_is_host_allocated(older);
}

Test(host_release, the_largest_blocks_go_first_where_the_settings_say_so)
{
    settings.host.evict = EVICT_LARGEST_FIRST;
    cr_assert(gives_back_the_larger());
}

Test(host_release, the_oldest_blocks_go_first)
{
    cr_assert_not(gives_back_the_larger());
}

Test(host_release, a_bucket_has_so_many_blocks_at_most)
{
    settings.host.caps.blocks_per_bucket = 2;
    host_start();
    void *other = allocate_host(2 * MIB);
    release_host(other);
    allocate_and_release_host(5, MIB);
    cr_assert_eq(host_kept().cached + host_kept().pending, 4 * MIB);
    cr_assert(fake_is_host_allocated(other));
    cr_assert_eq(host_counted().evictions.cap, 3);
}

static void check_that_nothing_is_kept(void)
{
    host_start();
    void *block = allocate_host(1000);
    cr_assert_eq(host_kept().live, 1000, "and not rounded");
    fake_launch(context);
    release_host(block);
    cr_assert_not(fake_is_host_allocated(block));
    cr_assert_eq(fake_host_waits(), 1);
    cr_assert_eq(fake_calls(FAKE_RECORD), 0);
    cr_assert_eq(host_counted().evictions.free, 1);
}

Test(host_release, with_no_bytes_to_cache_nothing_is_kept)
{
    cap_cached(0);
    check_that_nothing_is_kept();
}

Test(host_release, with_no_blocks_to_a_bucket_nothing_is_kept)
{
    settings.host.caps.blocks_per_bucket = 0;
    check_that_nothing_is_kept();
}

Test(host_release, a_block_above_the_largest_size_is_not_kept)
{
    settings.host.buckets.largest = (struct byte_size){.bytes = 512};
    check_that_nothing_is_kept();
}

/* ---- blocks that are not kept, after frees that have not waited ---- */

static void start_with_largest(uint64_t bytes)
{
    settings.host.buckets.largest = (struct byte_size){.bytes = bytes};
    host_start();
}

/* A block that is not kept, freed beside work that an earlier free has not waited for. */
static void *put_a_block_aside(void)
{
    start_with_largest(MIB);
    void *block = allocate_host(2 * MIB);
    release_host_under_work(MIB);
    uint64_t started = monotonic_now();
    release_host(block);
    cr_assert_geq(monotonic_now() - started, STALLED_WAIT_NANOSECONDS);
    cr_assert(fake_is_host_allocated(block));
    cr_assert_eq(fake_host_waits(), 0, "the program may have a lock that the work needs");
    cr_assert_eq(ask(block, 0).kind, POINTER_HIDDEN);
    cr_assert_eq(pool_free_host(pool, block), CUDA_ERROR_INVALID_VALUE);
    return block;
}

Test(host_release, what_is_not_kept_goes_in_a_later_free_if_it_cannot_go_now)
{
    void *block = put_a_block_aside();
    fake_finish(context);
    release_host_under_work(MIB / 2);
    cr_assert(fake_is_host_allocated(block));
    fake_finish(context);
    let_time_pass();
    allocate_and_release_host(1, MIB / 4);
    cr_assert_not(fake_is_host_allocated(block));
    cr_assert_eq(fake_host_waits(), 0);
    cr_assert_eq(host_counted().evictions.free, 1);
}

Test(host_release, or_with_another_one_that_is_not_kept)
{
    void *block = put_a_block_aside();
    fake_finish(context);
    let_time_pass();
    allocate_and_release_host(1, 3 * MIB);
    cr_assert_not(fake_is_host_allocated(block));
}

Test(host_release, or_where_memory_is_short)
{
    void *block = put_a_block_aside();
    fake_finish(context);
    synchronise();
    allocate_host(MIB);
    cr_assert_eq(host_kept().cached, 0);
    cr_assert(host_memory.watch(pool), "the housekeeper stays");
    cr_assert_eq(pool_trim(pool), 2 * MIB);
    cr_assert_not(fake_is_host_allocated(block));
}

Test(host_release, or_with_its_context)
{
    put_a_block_aside();
    const struct host_heap *heap = host_heap();
    fake_finish(context);
    end_context(context);
    cr_assert_not(host_has_deferred(heap));
}

/* Another thread is ending the context, and waits for those who use it. */
Test(host_release, beside_its_contexts_end_nobody_waits_for_that)
{
    settings.host.large = HOST_LARGE_HUGE_PAGES;
    start_with_largest(64 * MIB);
    void *memory = allocate_host(6 * MIB);
    struct context *of = context_find(pool, context);
    uint64_t generation = context_generation(of);
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)memory;
    struct block *block = block_table_find(&host_memory_of(pool)->blocks, address);
    cr_assert(host_defer_free(host_heap(), block, address, generation));
    cr_assert(context_pin(of, generation));
    atomic_store(&of->dying, true);
    cr_assert_eq(host_free_deferred(pool, host_heap()), 0);
    atomic_store(&of->dying, false);
    context_unpin(of);
    cr_assert_eq(host_free_deferred(pool, host_heap()), 6 * MIB);
}

Test(host_release, after_a_free_without_a_fence_it_goes_at_once)
{
    start_with_largest(MIB);
    void *kept[2] = {allocate_host(KIB), allocate_host(KIB)}, *block = allocate_host(2 * MIB);
    release_host(kept[0]);
    unsigned fences = fake_calls(FAKE_RECORD);
    release_host(kept[1]);
    cr_assert_eq(fake_calls(FAKE_RECORD), fences);
    release_host(block);
    cr_assert_not(fake_is_host_allocated(block));
}

Test(host_release, a_free_past_the_cap_waits_for_work_that_ends)
{
    cap_cached(2 * MIB);
    host_start();
    void *one = allocate_host(2 * MIB), *other = allocate_host(2 * MIB);
    fake_launch(context);
    release_host(one);
    finish_at_query(8);
    release_host(other);
    cr_assert_eq(queries_until_finish, 0);
    cr_assert_eq(fake_host_waits(), 0, "the driver had nothing left to wait for");
    cr_assert_eq(host_kept().cached, 2 * MIB);
}

Test(host_release, a_free_past_the_cap_gives_up_on_work_once)
{
    void *blocks[4];
    cap_cached(2 * MIB);
    host_start();
    for (unsigned i = 0; i < 4; i++)
        blocks[i] = allocate_host(2 * MIB);
    fake_launch(context);
    uint64_t started = monotonic_now();
    for (unsigned i = 0; i < 4; i++)
        release_host(blocks[i]);
    cr_assert_geq(monotonic_now() - started, STALLED_WAIT_NANOSECONDS);
    cr_assert_lt(monotonic_now() - started, 2 * STALLED_WAIT_NANOSECONDS);
    cr_assert_eq(fake_calls(FAKE_FREE_HOST), 0);
    fake_finish(context);
}

/* ---- only when nothing runs ---- */

Test(host_release, a_trim_gives_back_everything)
{
    host_start();
    allocate_and_release_host(3, MIB);
    allocate_and_release_host(2, 5 * KIB);
    synchronise();
    cr_assert_eq(pool_trim(pool), 3 * MIB + 10 * KIB);
    cr_assert_eq(fake_host_bytes(), 0);
    cr_assert_eq(host_counted().evictions.memory, 5);
}

Test(host_release, nothing_goes_back_while_the_context_works)
{
    host_start();
    allocate_and_release_host(3, MIB);
    synchronise();
    fake_launch(context);
    cr_assert_eq(pool_trim(pool), 0);
    cr_assert_eq(fake_calls(FAKE_FREE_HOST), 0);
    fake_finish(context);
    cr_assert_eq(pool_trim(pool), 3 * MIB);
    cr_assert_eq(fake_host_waits(), 0);
}

static void launch_at_the_second_record(void *records)
{
    if (++*(unsigned *)records == 2)
        fake_launch(context);
}

Test(host_release, before_each_block_the_work_is_asked_about)
{
    unsigned records = 0;
    host_start();
    allocate_and_release_host(3, 2 * MIB);
    synchronise();
    fake_during(FAKE_RECORD, launch_at_the_second_record, &records);
    cr_assert_eq(pool_trim(pool), 2 * MIB);
    cr_assert_eq(fake_host_waits(), 0);
    fake_finish(context);
}

static void end_recording(void *known)
{
    struct timespec nap = {.tv_nsec = 5 * 1000 * 1000};
    nanosleep(&nap, NULL);
    atomic_store(&((struct context *)known)->epochs.recording, false);
}

Test(host_release, while_another_thread_records_a_fence_asking_waits)
{
    struct errand errand;
    host_start();
    allocate_and_release_host(2, 2 * MIB);
    synchronise();
    struct context *known = context_find(pool, context);
    uint64_t released, took;
    unsigned tries = 0;
    do {
        atomic_store(&known->epochs.recording, true);
        send(&errand, end_recording, known);
        uint64_t began = monotonic_now();
        released = pool_trim(pool);
        took = monotonic_now() - began;
        wait_for(&errand);
    } while (is_tried_again(released, took, &tries));
    cr_assert_eq(released, 4 * MIB);
}

Test(host_release, but_not_for_long)
{
    host_start();
    allocate_and_release_host(2, 2 * MIB);
    synchronise();
    struct context *known = context_find(pool, context);
    atomic_store(&known->epochs.recording, true);
    cr_assert_eq(pool_trim(pool), 0);
    atomic_store(&known->epochs.recording, false);
    cr_assert_eq(pool_trim(pool), 4 * MIB);
}

static void begin_to_submit(void *submission)
{
    *(struct host_submission *)submission = host_work_begin(pool, NULL);
}

Test(host_release, beside_work_that_the_host_ends_nothing_goes_back)
{
    struct host_submission submission;
    host_start();
    allocate_and_release_host(3, 2 * MIB);
    synchronise();
    /* It comes too late for the fence that is asked about. */
    fake_during(FAKE_EVENT_QUERY, begin_to_submit, &submission);
    cr_assert_eq(pool_trim(pool), 0);
    fake_during(FAKE_EVENT_QUERY, NULL, NULL);
    host_work_end(&submission);
    synchronise();
    cr_assert_eq(pool_trim(pool), 6 * MIB);
}

static atomic_bool is_submitting;

static void submit(void *unused)
{
    struct host_submission submission = host_work_begin(pool, NULL);
    (void)unused;
    atomic_store(&is_submitting, true);
    host_work_end(&submission);
}

static void submit_in_another_thread(void *errand)
{
    struct timespec nap = {.tv_nsec = 50 * 1000 * 1000};
    send(errand, submit, NULL);
    nanosleep(&nap, NULL);
    cr_assert_not(is_submitting, "the driver's free would wait for it");
}

Test(host_release, work_that_the_host_ends_is_submitted_after_the_drivers_free)
{
    struct errand errand;
    host_start();
    allocate_and_release_host(1, 2 * MIB);
    synchronise();
    fake_during(FAKE_FREE_HOST, submit_in_another_thread, &errand);
    cr_assert_eq(pool_trim(pool), 2 * MIB);
    wait_for(&errand);
    cr_assert(is_submitting);
}

Test(host_release, a_trim_asks_what_is_over)
{
    host_start();
    release_host_under_work(MIB);
    fake_finish(context);
    cr_assert_eq(pool_trim(pool), MIB);
}

Test(host_release, what_the_driver_refuses_stays_cached)
{
    host_start();
    void *block = allocate_host(MIB);
    release_host(block);
    synchronise();
    fake_fail(FAKE_FREE_HOST, CUDA_ERROR_NOT_PERMITTED, 1);
    cr_assert_eq(pool_trim(pool), 0);
    cr_assert_eq(host_kept().cached, MIB);
    cr_assert_eq(allocate_host(MIB), block);
}

Test(host_release, what_the_driver_refuses_stays_pending)
{
    host_start();
    void *block = release_host_under_work(MIB);
    fake_fail(FAKE_FREE_HOST, CUDA_ERROR_UNKNOWN, 1);
    host_release_pending(pool, context_record());
    cr_assert(fake_is_host_allocated(block));
    cr_assert_eq(host_kept().pending, MIB, "the GPU may still read it");
    fake_finish(context);
    synchronise();
    cr_assert_eq(allocate_host(MIB), block);
}

Test(host_release, what_the_driver_does_not_know_is_forgotten)
{
    host_start();
    void *block = allocate_host(MIB);
    release_host(block);
    synchronise();
    driver->cuMemFreeHost(block);
    cr_assert_eq(pool_trim(pool), MIB);
    cr_assert_eq(host_kept().cached, 0);
}

/* ---- idle blocks ---- */

static uint64_t look(uint64_t now)
{
    return host_memory.release_idle(pool, NULL, now);
}

/* The housekeeper looks each second, from that time on. */
static uint64_t look_for_seconds(uint64_t from, unsigned seconds)
{
    uint64_t next = 0;
    for (unsigned i = 1; i <= seconds; i++)
        next = look(from + i * SECOND);
    return next;
}

/* A clean block that was freed at that time. */
static void *free_a_block(uint64_t *freed_at)
{
    void *block = allocate_host(MIB);
    *freed_at = monotonic_now();
    look(*freed_at);
    release_host(block);
    synchronise();
    return block;
}

Test(host_release, what_was_not_touched_for_so_long_goes_back)
{
    uint64_t freed_at;
    host_start();
    void *block = free_a_block(&freed_at);
    uint64_t next = look_for_seconds(freed_at, 9);
    cr_assert(fake_is_host_allocated(block));
    cr_assert_geq(next, freed_at + 10 * SECOND);
    cr_assert_lt(next, freed_at + 11 * SECOND);
    cr_assert_eq(look(freed_at + 11 * SECOND), UINT64_MAX);
    cr_assert_not(fake_is_host_allocated(block));
    cr_assert_eq(host_counted().evictions.idle, 1);
}

Test(host_release, what_was_touched_since_stays)
{
    uint64_t freed_at;
    host_start();
    void *block = free_a_block(&freed_at), *spare = allocate_host(KIB);
    release_host(spare);
    look_for_seconds(freed_at, 9);
    cr_assert_eq(allocate_host(MIB), block);
    release_host(block);
    synchronise();
    look(freed_at + 11 * SECOND);
    cr_assert(fake_is_host_allocated(block));
    cr_assert_not(fake_is_host_allocated(spare));
}

Test(host_release, idle_memory_stays_where_the_settings_want_it)
{
    uint64_t freed_at;
    settings.host.release_after_idle_ns = 0;
    host_start();
    void *block = free_a_block(&freed_at);
    cr_assert_eq(look_for_seconds(freed_at, 30), UINT64_MAX);
    cr_assert(fake_is_host_allocated(block));
}

Test(host_release, idle_memory_stays_while_the_context_works)
{
    uint64_t freed_at;
    host_start();
    void *block = free_a_block(&freed_at);
    fake_launch(context);
    look_for_seconds(freed_at, 30);
    cr_assert(fake_is_host_allocated(block));
    fake_finish(context);
    look(freed_at + 31 * SECOND);
    cr_assert_not(fake_is_host_allocated(block));
}

/* The last launch that the pool has seen was so long ago. */
static void launches_are_over_for(uint64_t nanoseconds)
{
    atomic_store(&host_memory_of(pool)->launched_at, monotonic_now() - nanoseconds);
}

Test(host_release, idle_memory_stays_for_a_second_after_a_launch)
{
    uint64_t freed_at;
    host_start();
    void *block = free_a_block(&freed_at);
    look_for_seconds(freed_at, 9);
    pool_note_launch(pool, NULL);
    look(freed_at + 11 * SECOND);
    cr_assert(fake_is_host_allocated(block));
    launches_are_over_for(2 * SECOND);
    pool_note_launch(pool, NULL);
    look(freed_at + 12 * SECOND);
    cr_assert(fake_is_host_allocated(block), "there was another one");
    launches_are_over_for(2 * SECOND);
    look(freed_at + 13 * SECOND);
    cr_assert_not(fake_is_host_allocated(block));
}

Test(host_release, where_nobody_has_told_the_time_nobody_knows_how_old_blocks_are)
{
    uint64_t freed_at;
    host_start();
    void *block = free_a_block(&freed_at);
    look(freed_at + 60 * SECOND);
    cr_assert(fake_is_host_allocated(block));
    look_for_seconds(freed_at + 60 * SECOND, 11);
    cr_assert_not(fake_is_host_allocated(block));
}

Test(host_release, the_first_blocks_are_as_young_as_others)
{
    host_start();
    allocate_and_release_host(2, MIB);
    synchronise();
    look(monotonic_now());
    cr_assert_eq(host_kept().cached, 2 * MIB);
}

Test(host_release, a_free_that_has_just_told_the_time_makes_no_block_younger)
{
    uint64_t freed_at;
    host_start();
    void *block = free_a_block(&freed_at);
    for (unsigned i = 1; i <= 11; i++) {
        /* A thread frees, and reads the clock, after the housekeeper has. */
        counter_set(&host_heap()->now, freed_at + i * SECOND + 1000);
        look(freed_at + i * SECOND);
    }
    cr_assert_not(fake_is_host_allocated(block));
}

Test(host_release, what_is_pending_without_a_fence_gets_one_from_the_housekeeper)
{
    /* Else it would ask, and so record one, for what is idle. */
    settings.host.release_after_idle_ns = 0;
    host_start();
    void *one = allocate_host(KIB), *other = allocate_host(KIB);
    release_host(one);
    release_host(other);
    uint64_t now = monotonic_now();
    look(now);
    unsigned before = fake_calls(FAKE_RECORD);
    look(now + SECOND);
    cr_assert_eq(fake_calls(FAKE_RECORD), before + 1);
    cr_assert_eq(host_kept().pending, 0);
}

Test(host_release, the_housekeeper_stays_while_anything_is_free)
{
    host_start();
    cr_assert_not(host_memory.watch(pool));
    void *block = allocate_host(MIB);
    cr_assert_not(host_memory.watch(pool));
    release_host(block);
    cr_assert(host_memory.watch(pool));
    pool_trim(pool);
    cr_assert_not(host_memory.watch(pool));
}

/* ---- memory is short ---- */

Test(host_release, out_of_memory_what_is_cached_goes_back)
{
    host_start();
    fake_host_limit(8 * MIB);
    allocate_and_release_host(4, 2 * MIB);
    synchronise();
    allocate_host(5 * MIB);
    cr_assert_leq(fake_host_bytes(), 8 * MIB);
    cr_assert_geq(host_counted().evictions.memory, 3);
    cr_assert_eq(host_counted().failures.memory, 0);
}

Test(host_release, a_request_that_is_not_kept_takes_what_is_cached_too)
{
    settings.host.buckets.largest = (struct byte_size){.bytes = 2 * MIB};
    host_start();
    fake_host_limit(8 * MIB);
    allocate_and_release_host(4, 2 * MIB);
    synchronise();
    allocate_host(8 * MIB);
    cr_assert_eq(host_counted().evictions.memory, 4);
}

Test(host_release, what_the_rounding_does_not_leave_room_for_is_had_exactly)
{
    host_start();
    fake_host_limit(33 * KIB);
    void *block = allocate_host(33 * KIB);
    cr_assert_eq(fake_host_bytes(), 33 * KIB);
    release_host(block);
    cr_assert_not(fake_is_host_allocated(block), "it is smaller than its bucket");
    cr_assert_eq(host_counted().evictions.free, 1);
}

Test(host_release, what_does_not_fit_fails_as_the_drivers)
{
    host_start();
    fake_host_limit(8 * MIB);
    allocate_and_release_host(2, 2 * MIB);
    cr_assert_eq(try_to_allocate_host(9 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(host_counted().failures.memory, 1);
    cr_assert_eq(fake_host_bytes(), 0);
}

Test(host_release, for_what_the_machine_does_not_have_nothing_goes_back)
{
    host_start();
    fake_host_limit(8 * MIB);
    allocate_and_release_host(2, 2 * MIB);
    synchronise();
    cr_assert_eq(try_to_allocate_host(65 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(host_kept().cached, 4 * MIB);
    cr_assert_eq(fake_calls(FAKE_FREE_HOST), 0);
}

Test(host_release, out_of_memory_what_is_pending_is_waited_for)
{
    host_start();
    fake_host_limit(8 * MIB);
    release_host_under_work(6 * MIB);
    finish_at_query(12);
    allocate_host(8 * MIB);
    cr_assert_eq(fake_host_waits(), 0, "the driver's free has not waited");
    cr_assert_eq(host_counted().evictions.memory, 1);
}

Test(host_release, out_of_memory_work_behind_the_last_free_is_waited_for)
{
    host_start();
    fake_host_limit(8 * MIB);
    allocate_and_release_host(1, 6 * MIB);
    synchronise();
    fake_launch(context);
    finish_at_query(12);
    allocate_host(8 * MIB);
    cr_assert_eq(fake_host_waits(), 0);
    cr_assert_eq(host_counted().evictions.memory, 1);
}

Test(host_release, no_device_gets_anything_from_the_host)
{
    host_start();
    allocate_and_release_host(2, 2 * MIB);
    synchronise();
    cr_assert_eq(try_to_allocate(2 * DEVICE_BYTES), CUDA_ERROR_OUT_OF_MEMORY);
    allocate(DEVICE_BYTES / 2);
    cr_assert_eq(try_to_allocate(DEVICE_BYTES / 2 + MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(fake_calls(FAKE_FREE_HOST), 0);
    cr_assert_eq(host_kept().cached, 4 * MIB);
    cr_assert_eq(host_memory.release(pool, device(), MIB, RELEASE_OUT_OF_MEMORY), 0);
    cr_assert_eq(host_memory.release(pool, NULL, MIB, RELEASE_FOR_OTHERS), 0);
}

/* The driver's pools have it as soon as the context's work is over, and let it go when trimmed. */
static void trim_what_was_freed_in_order(void *block)
{
    if (fake_ordered(context) == fake_launched(context))
        fake_vanish(*(CUdeviceptr *)block);
}

Test(host_release, what_the_driver_keeps_of_work_that_frees_have_not_waited_for_is_trimmed)
{
    CUdeviceptr block;
    host_start();
    cr_assert_eq(pool->driver->cuMemAlloc_v2(&block, DEVICE_BYTES / 2), CUDA_SUCCESS);
    allocate_and_release_host(2, KIB);
    void *small = allocate_host(KIB);
    fake_launch(context);
    release_host(small);
    cr_assert_eq(fake_calls(FAKE_RECORD), 1, "it has no fence");
    fake_during(FAKE_TRIM, trim_what_was_freed_in_order, &block);
    finish_at_query(12);
    allocate(DEVICE_BYTES / 2 + MIB);
    cr_assert_not(fake_is_allocated(block));
}

Test(host_release, the_host_gets_nothing_from_a_device)
{
    host_start();
    allocate_and_release(2, 2 * MIB);
    synchronise();
    fake_host_limit(MIB);
    cr_assert_eq(try_to_allocate_host(2 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE_ASYNC) + fake_calls(FAKE_MEM_FREE), 0);
    cr_assert_eq(fake_calls(FAKE_TRIM), 0);
    cr_assert_eq(clean_bytes(), 4 * MIB);
}

Test(host_release, a_call_that_may_concern_anything_gets_both)
{
    struct reclaim progress = {0};
    host_start();
    allocate_and_release_host(1, 2 * MIB);
    allocate_and_release(1, 2 * MIB);
    synchronise();
    while (pool_make_room(pool, &progress))
        continue;
    cr_assert_eq(host_kept().cached, 0);
    cr_assert_eq(clean_bytes(), 0);
}

/* ---- ... in several threads at once ---- */

static void release_in_between(void *block)
{
    void **live = block;
    cr_assert_eq(atomic_load(&pool->host_returns), 1);
    if (*live)
        release_host(*live);
    *live = NULL;
}

Test(host_release, what_another_thread_frees_while_memory_is_looked_for_is_looked_for_again)
{
    host_start();
    fake_host_limit(8 * MIB);
    allocate_and_release_host(1, MIB);
    void *live = allocate_host(6 * MIB);
    synchronise();
    /* Nothing comes of the first look but that there is more now. */
    fake_fail(FAKE_FREE_HOST, CUDA_ERROR_UNKNOWN, 2);
    fake_during(FAKE_FREE_HOST, release_in_between, &live);
    allocate_host(4 * MIB);
    cr_assert_null(live);
    cr_assert_eq(atomic_load(&pool->host_returns), 0);
}

static void end_giving_back(void *unused)
{
    struct timespec nap = {.tv_nsec = 20 * 1000 * 1000};
    (void)unused;
    nanosleep(&nap, NULL);
    atomic_fetch_sub(&pool->host_returns, 1);
}

Test(host_release, what_another_thread_is_giving_back_is_waited_for)
{
    struct errand errand;
    host_start();
    atomic_fetch_add(&pool->host_returns, 1);
    fake_fail(FAKE_HOST_ALLOC, CUDA_ERROR_OUT_OF_MEMORY, 1);
    send(&errand, end_giving_back, NULL);
    allocate_host(MIB);
    cr_assert_eq(atomic_load(&pool->host_returns), 0);
    wait_for(&errand);
}

/* ---- a cgroup ---- */

static void use_mib(uint64_t mib)
{
    char text[64];
    snprintf(text, sizeof text, "%" PRIu64 "\n", mib * MIB);
    file("/sys/fs/cgroup/job/memory.current", text);
}

/* On a machine whose cgroup has 1 GiB. */
static void start_in_a_cgroup(uint64_t mib_used)
{
    make_root();
    file("/proc/meminfo", "MemTotal:       67108864 kB\n");
    file("/proc/self/cgroup", "0::/job\n");
    file("/proc/self/mountinfo",
         "30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n");
    file("/sys/fs/cgroup/job/memory.max", "1073741824\n");
    use_mib(mib_used);
    machine_read(&machine, root);
    host_machine = machine;
    host_machine.nodes = 1;
    cr_assert_eq(host_machine.memory_bytes, GIB);
    host_start();
}

Test(host_release, the_housekeeper_leaves_memory_to_the_cgroup)
{
    start_in_a_cgroup(100);
    allocate_and_release_host(8, 16 * MIB);
    synchronise();
    uint64_t now = monotonic_now();
    look(now);
    cr_assert_eq(host_kept().cached, 128 * MIB);
    use_mib(1000);
    cr_assert_leq(host_memory.leave_to_machine(pool, now + SECOND), now + SECOND + SECOND / 10);
    /* A sixteenth of it is left to others: 40 of these 64 MiB are missing. */
    cr_assert_eq(host_kept().cached, 80 * MIB);
    remove_root();
}

Test(host_release, an_allocation_leaves_memory_to_the_cgroup)
{
    start_in_a_cgroup(100);
    allocate_and_release_host(8, 16 * MIB);
    synchronise();
    use_mib(1000);
    allocate_host(32 * MIB);
    cr_assert_eq(host_kept().cached, 48 * MIB);
    remove_root();
}

Test(host_release, what_could_not_go_back_goes_in_the_next_free)
{
    start_in_a_cgroup(100);
    void *small[3] = {allocate_host(KIB), allocate_host(KIB), allocate_host(KIB)};
    allocate_and_release_host(8, 16 * MIB);
    synchronise();
    fake_launch(context);
    use_mib(1000);
    host_memory.leave_to_machine(pool, monotonic_now());
    cr_assert_eq(host_kept().cached, 128 * MIB);
    finish_at_query(4);
    release_host(small[0]);
    cr_assert_eq(host_kept().cached / MIB, 80);
    cr_assert_eq(fake_host_waits(), 0);
    fake_during(FAKE_EVENT_QUERY, NULL, NULL);
    release_host(small[1]);
    release_host(small[2]);
    cr_assert_eq(host_kept().cached / MIB, 80);
    remove_root();
}

/* Unless it is the free of another thread that asks. */
static void look_whether_it_is_wanted(void *seen)
{
    *(bool *)seen |= host_is_wanted(pool) && host_is_closed(host_heap(), HOST_CLOSED_WANTED);
    finish_soon(NULL);
}

Test(host_release, who_waits_for_memory_has_other_threads_free_it)
{
    bool seen = false;
    host_start();
    fake_host_limit(8 * MIB);
    allocate_and_release_host(1, 6 * MIB);
    synchronise();
    fake_launch(context);
    queries_until_finish = 12;
    fake_during(FAKE_EVENT_QUERY, look_whether_it_is_wanted, &seen);
    allocate_host(8 * MIB);
    cr_assert(seen);
    cr_assert_not(host_is_wanted(pool));
    cr_assert_not(host_is_closed(host_heap(), HOST_CLOSED_WANTED));
}

Test(host_release, what_the_machine_lacks_goes_back_as_well)
{
    start_in_a_cgroup(100);
    allocate_and_release_host(8, 16 * MIB);
    synchronise();
    uint64_t now = monotonic_now();
    host_memory.leave_to_machine(pool, now);
    cr_assert_eq(host_kept().cached, 128 * MIB);
    file("/proc/meminfo", "MemTotal:       67108864 kB\nMemAvailable:   24576 kB\n");
    host_memory.leave_to_machine(pool, now);
    cr_assert_eq(host_kept().cached, 80 * MIB);
    remove_root();
}
