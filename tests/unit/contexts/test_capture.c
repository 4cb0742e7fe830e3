/*
 * Captures: while one goes on, nothing that would invalidate it is done.
 */
#include "pool_fixture.h"

TestSuite(capture, .init = set_up, .fini = tear_down, .timeout = 20);

static CUstream stream;

static void start_capturing(void)
{
    start_with_budget(0);
    stream = fake_stream();
    begin_capture(stream);
    fake_trace();
}

/* A call that the capture forbids, as the program makes it, invalidates it: that is no misuse of
 * ours. */
static void relax(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver->cuThreadExchangeStreamCaptureMode(&mode);
}

/* ---- the driver answers ---- */

Test(capture, allocation_and_free_are_the_drivers)
{
    start_capturing();
    relax();
    CUdeviceptr block = allocate(MIB);
    release(block);
    cr_assert_str_eq(fake_trace(), "alloc info free");
    cr_assert_not(fake_is_allocated(block));
    cr_assert_not(fake_capture_was_invalidated());
    end_capture(stream);
}

static CUstreamCaptureMode mode_in_call;

static void note_the_mode(void *unused)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    (void)unused;
    driver->cuThreadExchangeStreamCaptureMode(&mode);
    mode_in_call = mode;
    driver->cuThreadExchangeStreamCaptureMode(&mode);
}

Test(capture, they_are_made_in_the_callers_own_mode)
{
    start_capturing();
    stop_looking_at_locks();
    fake_during(FAKE_MEM_ALLOC, note_the_mode, NULL);
    fake_fail(FAKE_MEM_ALLOC, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    cr_assert_eq(try_to_allocate(MIB), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    cr_assert_eq(mode_in_call, CU_STREAM_CAPTURE_MODE_GLOBAL);
    end_capture(stream);
}

Test(capture, a_free_that_the_driver_refuses_leaves_the_block)
{
    start_with_budget(0);
    CUdeviceptr block = allocate(MIB);
    stream = fake_stream();
    begin_capture(stream);
    fake_fail(FAKE_MEM_FREE, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    cr_assert_eq(pool_free(pool, block), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    cr_assert_eq(live_bytes(), MIB);
    end_capture(stream);
    release(block);
    cr_assert_eq(pending_bytes(), MIB);
    cr_assert_eq(counted().frees, 1);
}

Test(capture, a_free_on_a_capturing_stream_is_the_drivers)
{
    start_with_budget(0);
    CUdeviceptr block = allocate(MIB);
    stream = fake_stream();
    begin_capture(stream);
    fake_trace();
    cr_assert_eq(pool_free_async(pool, driver->cuMemFreeAsync, block, stream), CUDA_SUCCESS);
    cr_assert_str_eq(fake_trace(), "free-async");
    cr_assert_eq(reserved_bytes(), 0);
    end_capture(stream);
}

Test(capture, what_was_cached_is_used_again_after_the_capture)
{
    start();
    CUdeviceptr block = allocate(MIB);
    release(block);
    synchronise();
    stream = fake_stream();
    begin_capture(stream);
    relax();
    cr_assert_neq(allocate(MIB), block);
    end_capture(stream);
    cr_assert_eq(allocate(MIB), block);
}

Test(capture, a_block_that_a_capture_allocated_is_not_kept)
{
    start_capturing();
    relax();
    CUdeviceptr block = allocate(MIB);
    end_capture(stream);
    release(block);
    synchronise();
    cr_assert_not(fake_is_allocated(block));
}

/* ---- nothing is fenced ---- */

Test(capture, nothing_is_fenced_and_no_barrier_is_raised)
{
    start_with_budget(0);
    CUdeviceptr pending = allocate(MIB);
    fake_launch(context);
    release(pending);
    stream = fake_stream();
    begin_capture(stream);
    let_time_pass();
    fake_trace();
    struct context *c = context_find(pool, context);
    heap_lock(heap_of(c));
    struct fence *fence = epoch_begin_close(c, true);
    heap_unlock(heap_of(c));
    epoch_record(pool, c, fence);
    heap_lock(heap_of(c));
    cr_assert_not(epoch_raise_barrier(pool, c, c->epochs.oldest));
    heap_unlock(heap_of(c));
    cr_assert_str_eq(fake_trace(), "");
    end_capture(stream);
    cr_assert_not(fake_capture_was_invalidated());
}

Test(capture, a_synchronise_that_fails_cleans_nothing)
{
    start_with_budget(0);
    CUdeviceptr block = allocate(MIB);
    fake_launch(context);
    release(block);
    stream = fake_stream();
    begin_capture(stream);
    struct synchronising state = pool_synchronise_begin(pool, NULL);
    cr_assert_not(state.cleans);
    pool_synchronise_end(pool, state, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    cr_assert_eq(clean_bytes(), 0);
    end_capture(stream);
}

Test(capture, queries_are_made_in_relaxed_mode)
{
    start_with_budget(0);
    CUdeviceptr block = allocate(MIB);
    fake_launch(context);
    release(block);
    stream = fake_stream();
    begin_capture(stream);
    let_time_pass();
    struct context *c = context_find(pool, context);
    heap_lock(heap_of(c));
    cr_assert_eq(epoch_query(pool, c, c->epochs.oldest), FENCE_RUNNING);
    heap_unlock(heap_of(c));
    cr_assert_not(fake_capture_was_invalidated());
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver->cuThreadExchangeStreamCaptureMode(&mode);
    cr_assert_eq(mode, CU_STREAM_CAPTURE_MODE_GLOBAL, "and the mode is put back");
    driver->cuThreadExchangeStreamCaptureMode(&mode);
    end_capture(stream);
}

Test(capture, running_out_during_a_capture_invalidates_nothing)
{
    start_with_budget(0);
    CUdeviceptr clean = allocate(MIB), pending = allocate(2 * MIB);
    release(clean);
    synchronise();
    release(pending);
    stream = fake_stream();
    begin_capture(stream);
    struct reclaim progress = {0};
    while (pool_make_room(pool, &progress))
        continue;
    cr_assert_eq(fake_bytes_used(0), 0);
    cr_assert_not(fake_capture_was_invalidated());
    end_capture(stream);
}

Test(capture, a_fence_that_meets_an_unseen_capture_is_dropped)
{
    start_with_budget(0);
    CUdeviceptr first = allocate(MIB);
    stream = fake_stream();
    fake_fail(FAKE_RECORD, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    release(first);
    cr_assert_eq(pending_bytes(), MIB);
    cr_assert_eq(epochs()->outstanding, 0);
}

/* ---- counting ---- */

Test(capture, captures_are_counted_one_by_one)
{
    start();
    CUstream one = fake_stream(), other = fake_stream();
    cr_assert_not(pool_captures_under_way(pool));
    begin_capture(one);
    begin_capture(other);
    end_capture(one);
    cr_assert(pool_captures_under_way(pool));
    end_capture(one);
    cr_assert(pool_captures_under_way(pool), "ended twice, counted once");
    end_capture(other);
    cr_assert_not(pool_captures_under_way(pool));
}

Test(capture, an_end_that_fails_leaves_the_capture)
{
    start();
    stream = fake_stream();
    begin_capture(stream);
    tell_of_an_end(stream);
    cr_assert(pool_captures_under_way(pool));
    end_capture(stream);
    cr_assert_not(pool_captures_under_way(pool));
}

Test(capture, a_stream_takes_its_capture_with_it)
{
    start();
    stream = fake_stream();
    begin_capture(stream);
    pool_captures_lock(pool);
    driver->cuStreamDestroy_v2(stream);
    pool_capture_stream_destroyed(pool, stream);
    pool_captures_unlock(pool);
    cr_assert_not(pool_captures_under_way(pool));
}

Test(capture, a_context_takes_its_captures_with_it)
{
    start();
    CUcontext other = another_context(0);
    CUstream doomed = fake_stream();
    begin_capture(doomed);
    fake_set_current(context);
    stream = fake_stream();
    begin_capture(stream);
    end_context(other);
    cr_assert(pool_captures_under_way(pool));
    end_capture(stream);
    cr_assert_not(pool_captures_under_way(pool));
}

static void end_own_stream(void *unused)
{
    (void)unused;
    pool_captures_lock(pool);
    pool_capture_perhaps_ended(pool, NULL, true, NULL);
    pool_captures_unlock(pool);
}

Test(capture, the_per_thread_stream_is_another_one_in_every_thread)
{
    start();
    pool_captures_lock(pool);
    pool_capture_began(pool, CU_STREAM_PER_THREAD, false);
    pool_captures_unlock(pool);
    in_another_thread(end_own_stream, NULL);
    cr_assert(pool_captures_under_way(pool));
    end_own_stream(NULL);
    cr_assert_not(pool_captures_under_way(pool), "by either of its names");
}

Test(capture, the_per_thread_stream_is_another_one_in_every_context)
{
    start();
    pool_captures_lock(pool);
    pool_capture_began(pool, NULL, true);
    pool_captures_unlock(pool);
    another_context(0);
    end_own_stream(NULL);
    cr_assert(pool_captures_under_way(pool));
    fake_set_current(context);
    end_own_stream(NULL);
    cr_assert_not(pool_captures_under_way(pool));
}

/* ---- a capture that begins while a fence is recorded ---- */

static void capture_from_another_thread(void *unused)
{
    (void)unused;
    begin_capture(stream);
}

static struct errand beginning;

static void begin_meanwhile(void *unused)
{
    (void)unused;
    fake_during(FAKE_RECORD, NULL, NULL);
    send(&beginning, capture_from_another_thread, NULL);
    struct timespec nap = {0, 10000000};
    nanosleep(&nap, NULL);
    cr_assert_not(pool_captures_under_way(pool));
}

Test(capture, a_capture_does_not_begin_while_a_fence_is_recorded)
{
    start_with_budget(0);
    stream = fake_stream();
    CUdeviceptr block = allocate(MIB);
    fake_during(FAKE_RECORD, begin_meanwhile, NULL);
    release(block);
    wait_for(&beginning);
    cr_assert(pool_captures_under_way(pool));
    cr_assert_not(fake_capture_was_invalidated());
    end_capture(stream);
}

Test(capture, what_is_pending_has_a_fence_before_a_capture_begins)
{
    start();
    release(allocate(MIB));
    cr_assert_eq(fake_calls(FAKE_RECORD), 0);
    pool_capture_about_to_begin(pool, NULL);
    cr_assert_eq(fake_calls(FAKE_RECORD), 1);
    const struct fence *fence = context_find(pool, context)->epochs.oldest;
    cr_assert_not_null(fence);
    cr_assert_not(fence->waitable, "this was neither a free nor a synchronise");
    pool_capture_about_to_begin(pool, NULL);
    cr_assert_eq(fake_calls(FAKE_RECORD), 1, "it has one already");
}
