/*
 * Pinned host memory: the ladder that an allocation climbs, and when a free closes an epoch or
 * waits.
 */
#include "host_fixture.h"

TestSuite(host_memory, .init = host_set_up, .fini = host_tear_down, .timeout = 30);

/* ---- rung 1: a clean block of the thread's own shard ---- */

Test(host_memory, a_clean_block_is_taken_without_a_driver_call)
{
    host_start();
    void *block = allocate_host(MIB);
    release_host(block);
    synchronise();
    fake_trace();
    cr_assert_eq(allocate_host(MIB), block);
    cr_assert_str_eq(fake_trace(), "");
    cr_assert_eq(host_counted().hits.clean, 1);
}

Test(host_memory, a_free_calls_nothing_when_no_fence_is_due)
{
    host_start();
    void *one = allocate_host(KIB), *other = allocate_host(KIB);
    release_host(one);
    fake_trace();
    release_host(other);
    cr_assert_str_eq(fake_trace(), "");
}

Test(host_memory, a_clean_block_serves_every_request_of_its_bucket_and_no_other)
{
    host_start();
    void *block = allocate_host(MIB);
    release_host(block);
    synchronise();
    cr_assert_neq(allocate_host(MIB + 1), block);
    cr_assert_neq(allocate_host(512 * KIB), block);
    cr_assert_eq(allocate_host(MIB - 1), block);
}

Test(host_memory, of_the_blocks_that_are_known_to_be_clean_the_newest_is_taken)
{
    host_start();
    void *first = allocate_host(MIB), *second = allocate_host(MIB);
    release_host(first);
    release_host(second);
    synchronise();
    cr_assert_eq(host_kept().cached, 2 * MIB);
    cr_assert_eq(allocate_host(MIB), second);
    cr_assert_eq(allocate_host(MIB), first);
}

Test(host_memory, of_the_pending_blocks_that_have_become_clean_the_oldest_is_taken)
{
    host_start();
    void *first = allocate_host(MIB), *second = allocate_host(MIB);
    release_host(first);
    synchronise();
    fake_launch(context);
    release_host(second);
    cr_assert_eq(allocate_host(MIB), first);
    cr_assert_neq(allocate_host(MIB), second);
    fake_finish(context);
}

/* A block of these flags serves them again, and no request with others. */
static void check_that_flags_are_apart(unsigned flags)
{
    void *block = allocate_flags(MIB, flags);
    cr_assert_eq(fake_host_flags(block), flags);
    release_host(block);
    synchronise();
    for (unsigned other = 0; other < 8; other++)
        if (other != flags) {
            void *another = allocate_flags(MIB, other);
            cr_assert_neq(another, block, "%u for %u", flags, other);
            release_host(another);
        }
    synchronise();
    void *again = allocate_flags(MIB, flags);
    cr_assert_eq(fake_host_flags(again), flags);
    release_host(again);
}

Test(host_memory, blocks_of_different_flags_are_kept_apart)
{
    host_start();
    for (unsigned flags = 0; flags < 8; flags++)
        check_that_flags_are_apart(flags);
    cr_assert_eq(host_counted().misses, 8);
}

Test(host_memory, blocks_of_the_call_without_flags_are_kept_apart)
{
    void *plain = NULL, *again = NULL;
    host_start();
    cr_assert_eq(pool_allocate_host_plainly(pool, &plain, MIB), CUDA_SUCCESS);
    cr_assert_eq(fake_calls(FAKE_ALLOC_HOST), 1);
    release_host(plain);
    synchronise();
    cr_assert_neq(allocate_host(MIB), plain);
    cr_assert_eq(pool_allocate_host_plainly(pool, &again, MIB), CUDA_SUCCESS);
    cr_assert_eq(again, plain);
}

/* From now on all threads are on this node. */
static void be_on_node(unsigned node)
{
    memset(host_memory_of(pool)->machine.node_of, (int)node, MACHINE_PROCESSORS);
}

Test(host_memory, blocks_of_different_nodes_are_kept_apart)
{
    host_machine.nodes = 2;
    host_start();
    be_on_node(0);
    void *near = allocate_host(MIB);
    be_on_node(1);
    void *far = allocate_host(MIB);
    release_host(near);
    release_host(far);
    synchronise();
    cr_assert_eq(allocate_host(MIB), far);
    cr_assert_neq(allocate_host(MIB), near);
    be_on_node(0);
    cr_assert_eq(allocate_host(MIB), near);
}

/* ---- rung 2: a clean block of another shard ---- */

static void release_it(void *memory)
{
    pool_free_host(pool, memory);
}

Test(host_memory, a_clean_block_that_another_thread_has_freed_is_taken)
{
    host_start();
    void *block = allocate_host(MIB);
    in_another_thread(release_it, block);
    synchronise();
    fake_trace();
    cr_assert_eq(allocate_host(MIB), block);
    cr_assert_str_eq(fake_trace(), "");
    cr_assert_eq(host_counted().hits.clean, 1);
}

static void release_it_too(void *memory)
{
    allocate_and_release_host(2, MIB);
    pool_free_host(pool, memory);
}

Test(host_memory, a_block_lies_with_the_thread_that_has_freed_it)
{
    host_start();
    void *block = allocate_host(MIB);
    release_host(block);
    synchronise();
    cr_assert_eq(allocate_host(MIB), block);
    in_another_thread(release_it_too, block);
    const struct block *record =
        block_table_find(&host_memory_of(pool)->blocks, (CUdeviceptr)(uintptr_t)block);
    cr_assert_neq(host_bin_of(record)->shard, host_shard_of_thread(pool, host_heap()));
}

/* ---- rung 3: a block whose fence is over ---- */

Test(host_memory, a_block_is_taken_once_its_fence_is_over)
{
    host_start_with_budget(0);
    void *block = release_host_under_work(MIB);
    fake_finish(context);
    cr_assert_eq(allocate_host(MIB), block);
    cr_assert_str_eq(fake_trace(), "query");
    cr_assert_eq(host_counted().hits.queried, 1);
}

Test(host_memory, of_several_pending_blocks_the_oldest_is_asked_about)
{
    host_start_with_budget(0);
    void *first = allocate_host(MIB), *second = allocate_host(MIB);
    fake_launch(context);
    release_host(first);
    fake_launch(context);
    in_another_thread(release_it, second);
    fake_finish_some(context, 1);
    let_time_pass();
    cr_assert_eq(allocate_host(MIB), first);
    cr_assert_eq(host_counted().hits.queried, 1);
    fake_finish(context);
}

Test(host_memory, the_programs_synchronise_makes_blocks_clean)
{
    host_start_with_budget(0);
    void *block = release_host_under_work(MIB);
    synchronise();
    cr_assert_eq(allocate_host(MIB), block);
    cr_assert_eq(host_counted().hits.clean, 1);
}

/* ---- rung 4: waiting ---- */

Test(host_memory, inside_the_growth_budget_a_new_block_is_made_soon)
{
    host_start_with_budget(8 * MIB);
    void *block = release_host_under_work(2 * MIB);
    uint64_t started = monotonic_now();
    cr_assert_neq(allocate_host(2 * MIB), block);
    cr_assert_lt(monotonic_now() - started, STALLED_WAIT_NANOSECONDS / 2);
    cr_assert_eq(host_counted().misses, 2);
}

static void sleep_for_long(void *unused)
{
    struct timespec nap = {0, 200 * 1000 * 1000};
    (void)unused;
    nanosleep(&nap, NULL);
}

static bool has_the_block_inside_the_budget(uint64_t *took)
{
    uint64_t waited = host_counted().hits.waited;
    fake_during(FAKE_HOST_ALLOC, sleep_for_long, NULL);
    void *block = release_host_under_work(2 * MIB);
    fake_during(FAKE_HOST_ALLOC, NULL, NULL);
    finish_at_query(4);
    uint64_t began = monotonic_now();
    void *again = allocate_host(2 * MIB);
    *took = monotonic_now() - began;
    fake_during(FAKE_EVENT_QUERY, NULL, NULL);
    fake_finish(context);
    release_host(again);
    synchronise();
    pool_trim(pool);
    return again == block && host_counted().hits.waited == waited + 1;
}

Test(host_memory, inside_the_growth_budget_a_fence_is_waited_for_as_long_as_a_new_block_takes)
{
    unsigned tries = 0;
    uint64_t took;
    bool had;
    host_start_with_budget(8 * MIB);
    do
        had = has_the_block_inside_the_budget(&took);
    while (is_tried_again(had, took, &tries));
    cr_assert(had);
    cr_assert_gt(host_counted().waits.nanoseconds, 0);
}

Test(host_memory, past_the_growth_budget_an_allocation_waits)
{
    host_start_with_budget(4 * MIB);
    for (unsigned i = 0; i < 2; i++)
        release_host_under_work(2 * MIB);
    cr_assert_eq(host_counted().misses, 2, "inside it");
    finish_at_query(10);
    allocate_host(2 * MIB);
    cr_assert_eq(host_counted().hits.waited, 1);
    cr_assert_eq(host_counted().misses, 2);
}

Test(host_memory, no_barrier_is_raised_for_what_the_host_writes)
{
    host_start_with_budget(0);
    release_host_under_work(MIB);
    finish_at_query(3);
    allocate_host(MIB);
    cr_assert_eq(fake_calls(FAKE_WAIT), 0);
    cr_assert_eq(host_counted().hits.barrier, 0);
}

Test(host_memory, a_block_that_no_fence_covers_yet_is_not_taken)
{
    host_start_with_budget(32 * MIB);
    void *one = allocate_host(KIB), *other = allocate_host(KIB), *third = allocate_host(KIB);
    release_host(one);
    fake_launch(context);
    release_host(other);
    allocate_host(KIB);
    cr_assert_neq(allocate_host(KIB), other);
    release_host(third);
    fake_finish(context);
}

/* ---- work that ends only if the host acts ---- */

static void submit_host_function(void)
{
    struct host_submission submission = host_work_begin(pool, NULL);
    fake_launch(context);
    host_work_end(&submission);
}

Test(host_memory, a_free_waits_while_there_is_work_that_the_host_ends)
{
    host_start();
    void *one = allocate_host(KIB), *other = allocate_host(KIB);
    release_host(one);
    submit_host_function();
    finish_at_query(5);
    release_host(other);
    cr_assert_eq(queries_until_finish, 0);
    cr_assert_eq(host_counted().waits.frees, 1);
    cr_assert_eq(host_kept().pending, 0);
}

Test(host_memory, an_allocation_waits_for_nothing_behind_such_work)
{
    struct errand waiter;
    host_start_with_budget(0);
    void *one = allocate_host(MIB), *other = allocate_host(KIB);
    submit_host_function();
    send(&waiter, release_it, one);
    while (fake_calls(FAKE_RECORD) == 0)
        let_time_pass();
    let_time_pass();
    uint64_t started = monotonic_now();
    cr_assert_neq(allocate_host(MIB), one);
    cr_assert_lt(monotonic_now() - started, STALLED_WAIT_NANOSECONDS / 2);
    fake_finish(context);
    wait_for(&waiter);
    release_host(other);
}

/* ---- a wait in vain ---- */

static uint64_t stalled_waits(void)
{
    return counter_get(&context_record()->counters->stalled_waits);
}

Test(host_memory, an_allocation_waits_for_a_second_at_most_and_then_frees_wait)
{
    host_start_with_budget(0);
    void *block = release_host_under_work(MIB);
    uint64_t started = monotonic_now();
    void *another = allocate_host(MIB);
    cr_assert_neq(another, block);
    cr_assert_geq(monotonic_now() - started, STALLED_WAIT_NANOSECONDS);
    cr_assert_eq(stalled_waits(), 1);
    fake_finish(context);
    synchronise();
    fake_launch(context);
    finish_at_query(5);
    release_host(another);
    cr_assert_eq(host_counted().waits.frees, 1);
    cr_assert_eq(host_kept().pending, 0);
}

Test(host_memory, frees_wait_no_longer_than_their_time)
{
    host_start();
    void *one = allocate_host(KIB), *other = allocate_host(KIB);
    release_host(one);
    struct context *c = context_record();
    context_lock(c);
    frees_wait_begin(&c->epochs.frees_wait, monotonic_now() - UINT64_C(11) * 1000000000);
    host_memory.wait_stalled(pool, c);
    context_unlock(c);
    fake_launch(context);
    fake_trace();
    release_host(other);
    cr_assert_str_eq(fake_trace(), "");
    cr_assert_not(frees_may_wait(&c->epochs.frees_wait));
    fake_finish(context);
}

/* ---- fences ---- */

/* A stream's wait closes the epoch without a fence. */
Test(host_memory, frees_count_on_where_an_epoch_was_closed_without_a_fence)
{
    void *blocks[HOST_FREES_TO_A_FENCE + 2];
    host_start();
    for (unsigned i = 0; i < HOST_FREES_TO_A_FENCE + 2; i++)
        blocks[i] = allocate_host(KIB);
    release_host(blocks[0]);
    for (unsigned i = 1; i < HOST_FREES_TO_A_FENCE + 1; i++) {
        if (i == HOST_FREES_TO_A_FENCE / 2)
            epoch_close(context_find(pool, context));
        release_host(blocks[i]);
    }
    release_host(blocks[HOST_FREES_TO_A_FENCE + 1]);
    cr_assert_eq(fake_calls(FAKE_RECORD), 2);
}

Test(host_memory, a_fence_serves_so_many_frees)
{
    void *blocks[2 * HOST_FREES_TO_A_FENCE + 1];
    host_start();
    for (unsigned i = 0; i < 2 * HOST_FREES_TO_A_FENCE + 1; i++)
        blocks[i] = allocate_host(KIB);
    release_host(blocks[0]);
    cr_assert_eq(fake_calls(FAKE_RECORD), 1, "after a new block the next free has one");
    for (unsigned i = 1; i < HOST_FREES_TO_A_FENCE; i++)
        release_host(blocks[i]);
    cr_assert_eq(fake_calls(FAKE_RECORD), 1);
    for (unsigned i = HOST_FREES_TO_A_FENCE; i < 2 * HOST_FREES_TO_A_FENCE + 1; i++)
        release_host(blocks[i]);
    cr_assert_eq(fake_calls(FAKE_RECORD), 3);
}

Test(host_memory, a_fence_serves_so_many_bytes)
{
    void *blocks[6];
    host_start_with_budget(32 * MIB);
    for (unsigned i = 0; i < 6; i++)
        blocks[i] = allocate_host(6 * MIB);
    release_host(blocks[0]);
    cr_assert_eq(fake_calls(FAKE_RECORD), 1);
    release_host(blocks[1]);
    release_host(blocks[2]);
    cr_assert_eq(fake_calls(FAKE_RECORD), 1);
    release_host(blocks[3]);
    cr_assert_eq(fake_calls(FAKE_RECORD), 2);
}

Test(host_memory, a_fence_serves_fewer_bytes_where_little_may_be_cached)
{
    void *blocks[3];
    settings.host.caps.cached = (struct byte_size){.bytes = 16 * MIB};
    host_start_with_budget(GIB);
    for (unsigned i = 0; i < 3; i++)
        blocks[i] = allocate_host(4 * MIB);
    release_host(blocks[0]);
    release_host(blocks[1]);
    cr_assert_eq(fake_calls(FAKE_RECORD), 1);
    release_host(blocks[2]);
    cr_assert_eq(fake_calls(FAKE_RECORD), 2);
}

static void make_a_shard(void *unused)
{
    (void)unused;
    allocate_and_release_host(1, KIB);
}

Test(host_memory, the_bytes_are_shared_by_all_threads_that_free)
{
    void *blocks[3];
    host_start_with_budget(32 * MIB);
    in_another_thread(make_a_shard, NULL);
    for (unsigned i = 0; i < 3; i++)
        blocks[i] = allocate_host(8 * MIB);
    release_host(blocks[0]);
    unsigned before = fake_calls(FAKE_RECORD);
    release_host(blocks[1]);
    cr_assert_eq(fake_calls(FAKE_RECORD), before + 1);
    release_host(blocks[2]);
}

Test(host_memory, free_synchronizes_gives_the_wait_back)
{
    settings.host.free_synchronizes = true;
    host_start();
    void *one = allocate_host(KIB), *other = allocate_host(KIB);
    release_host(one);
    uint64_t before = host_counted().waits.frees;
    fake_launch(context);
    finish_at_query(5);
    release_host(other);
    cr_assert_eq(queries_until_finish, 0);
    cr_assert_eq(host_kept().pending, 0);
    cr_assert_eq(host_counted().waits.frees, before + 1);
}

Test(host_memory, free_synchronizes_says_what_the_fence_has_found)
{
    settings.host.free_synchronizes = true;
    host_start();
    void *block = allocate_host(KIB);
    fake_fail(FAKE_RECORD, CUDA_ERROR_ILLEGAL_ADDRESS, 1);
    cr_assert_eq(pool_free_host(pool, block), CUDA_ERROR_ILLEGAL_ADDRESS);
}

Test(host_memory, where_no_fence_can_be_had_a_free_that_waits_is_the_drivers)
{
    settings.host.free_synchronizes = true;
    host_start();
    void *block = allocate_host(KIB);
    fake_launch(context);
    fake_fail(FAKE_RECORD, CUDA_ERROR_NOT_PERMITTED, 2);
    release_host(block);
    cr_assert_not(fake_is_host_allocated(block));
    cr_assert_eq(fake_host_waits(), 1);
}

/* The next free would be the driver's. */
Test(host_memory, a_free_whose_record_has_failed_makes_no_other_one)
{
    settings.host.free_synchronizes = true;
    host_start();
    void *block = allocate_host(KIB);
    fake_launch(context);
    fake_fail(FAKE_RECORD, CUDA_ERROR_OUT_OF_MEMORY, 2);
    release_host(block);
    cr_assert_eq(fake_calls(FAKE_RECORD), 1);
    cr_assert_not(fake_is_host_allocated(block));
    cr_assert_eq(fake_host_waits(), 1);
}

/* ---- several contexts ---- */

/* Another context, whose work goes on. */
static CUcontext start_beside_another_context(uint64_t budget)
{
    host_start_with_budget(budget);
    CUcontext other = another_context(0);
    fake_launch(other);
    fake_set_current(context);
    return other;
}

Test(host_memory, another_contexts_work_keeps_blocks)
{
    CUcontext other = start_beside_another_context(MIB);
    void *block = allocate_host(MIB);
    release_host(block);
    cr_assert_eq(host_kept().pending, MIB);
    let_time_pass();
    uint64_t started = monotonic_now();
    cr_assert_neq(allocate_host(MIB), block, "past the budget, too");
    cr_assert_lt(monotonic_now() - started, STALLED_WAIT_NANOSECONDS / 2);
    cr_assert_eq(stalled_waits(), 0);
    fake_finish(other);
}

Test(host_memory, a_block_is_taken_once_every_contexts_work_is_over)
{
    CUcontext other = start_beside_another_context(32 * MIB);
    void *block = allocate_host(MIB);
    release_host(block);
    cr_assert_eq(host_kept().pending, MIB);
    fake_finish(other);
    let_time_pass();
    cr_assert_eq(allocate_host(MIB), block);
    cr_assert_eq(host_counted().hits.queried, 1);
}

Test(host_memory, what_other_contexts_keep_past_the_budget_goes_to_the_driver_in_a_free)
{
    CUcontext other = start_beside_another_context(4 * MIB);
    void *blocks[3];
    for (unsigned i = 0; i < 3; i++)
        blocks[i] = allocate_host(2 * MIB);
    release_host(blocks[0]);
    release_host(blocks[1]);
    cr_assert_eq(host_kept().pending, 4 * MIB);
    cr_assert_eq(fake_calls(FAKE_FREE_HOST), 0);
    release_host(blocks[2]);
    cr_assert_eq(fake_calls(FAKE_FREE_HOST), 3);
    cr_assert_eq(host_counted().evictions.free, 3);
    fake_finish(other);
}

Test(host_memory, a_free_waits_for_its_own_contexts_part_beside_others)
{
    CUcontext other = start_beside_another_context(0);
    void *block = allocate_host(MIB);
    fake_finish(other);
    fake_launch(context);
    finish_at_query(6);
    release_host(block);
    cr_assert_eq(queries_until_finish, 0);
    cr_assert_eq(host_kept().cached, MIB);
    cr_assert_eq(fake_calls(FAKE_FREE_HOST), 0);
}

Test(host_memory, a_context_has_blocks_of_its_own)
{
    host_start();
    void *block = allocate_host(MIB);
    release_host(block);
    synchronise();
    another_context(0);
    cr_assert_neq(allocate_host(MIB), block);
    fake_set_current(context);
    cr_assert_eq(allocate_host(MIB), block);
}

Test(host_memory, a_block_goes_back_to_its_own_context)
{
    host_start();
    void *block = allocate_host(MIB);
    another_context(0);
    release_host(block);
    synchronise();
    cr_assert_eq(host_sum(host_heap()).free_bytes, MIB);
}

/* ---- captures ---- */

static void exchange_mode(CUstreamCaptureMode mode)
{
    driver->cuThreadExchangeStreamCaptureMode(&mode);
}

static CUstream begin_relaxed_capture(void)
{
    CUstream stream = fake_stream();
    begin_capture(stream);
    exchange_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    fake_trace();
    return stream;
}

Test(host_memory, while_a_capture_goes_on_the_driver_allocates)
{
    host_start();
    void *block = allocate_host(MIB);
    release_host(block);
    synchronise();
    CUstream stream = begin_relaxed_capture();
    void *another = allocate_host(MIB - 1);
    cr_assert_neq(another, block);
    cr_assert_str_eq(fake_trace(), "host-alloc");
    end_capture(stream);
    release_host(another);
    cr_assert_not(fake_is_host_allocated(another), "it is not kept");
}

Test(host_memory, while_a_capture_goes_on_an_allocation_fails_as_the_drivers)
{
    host_start();
    allocate_and_release_host(1, MIB);
    synchronise();
    CUstream stream = begin_relaxed_capture();
    fake_fail(FAKE_HOST_ALLOC, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    cr_assert_eq(try_to_allocate_host(MIB), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end_capture(stream);
    cr_assert_eq(host_counted().failures.other, 1);
}

Test(host_memory, a_block_that_is_freed_during_a_capture_goes_to_the_driver)
{
    host_start();
    void *block = allocate_host(MIB);
    CUstream stream = begin_relaxed_capture();
    release_host(block);
    cr_assert_str_eq(fake_trace(), "free-host");
    end_capture(stream);
    cr_assert_not(fake_is_host_allocated(block));
}

Test(host_memory, a_free_that_fails_during_a_capture_leaves_the_block_alive)
{
    host_start();
    void *block = allocate_host(MIB);
    CUstream stream = begin_relaxed_capture();
    fake_fail(FAKE_FREE_HOST, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    cr_assert_eq(pool_free_host(pool, block), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    cr_assert_eq(ask(block, 0).kind, POINTER_LIVE);
    end_capture(stream);
    cr_assert_eq(host_counted().frees, 0);
    release_host(block);
    cr_assert_eq(host_counted().frees, 1);
}

Test(host_memory, no_other_memory_goes_back_while_a_capture_goes_on)
{
    host_start();
    allocate_and_release_host(3, MIB);
    synchronise();
    CUstream stream = begin_relaxed_capture();
    cr_assert_eq(pool_trim(pool), 0);
    host_memory.release_idle(pool, NULL, monotonic_now() + 60 * UINT64_C(1000000000));
    cr_assert_eq(fake_calls(FAKE_FREE_HOST), 0);
    cr_assert_eq(fake_calls(FAKE_RECORD), 1, "and nothing is fenced");
    end_capture(stream);
}
