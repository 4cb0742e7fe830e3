/*
 * Epochs: which fences are recorded, where, and what they say of the blocks freed before.
 */
#include "core/base/clock.h"
#include "pool_fixture.h"

TestSuite(epoch, .init = set_up, .fini = tear_down, .timeout = 20);

static void close_epoch(bool waitable)
{
    struct context *c = context_find(pool, context);
    heap_lock(heap_of(c));
    struct fence *fence = epoch_begin_close(c, waitable);
    heap_unlock(heap_of(c));
    cr_assert_not_null(fence);
    epoch_record(pool, c, fence);
}

/* ---- number, record, publish ---- */

static CUdeviceptr freed_meanwhile;

static void free_it(void *unused)
{
    (void)unused;
    pool_free(pool, freed_meanwhile);
}

static void free_it_from_another_thread(void *unused)
{
    (void)unused;
    fake_during(FAKE_RECORD, NULL, NULL);
    in_another_thread(free_it, NULL);
}

Test(epoch, a_block_freed_while_a_fence_is_recorded_is_not_covered_by_it)
{
    start_with_budget(0);
    CUdeviceptr first = allocate(MIB);
    freed_meanwhile = allocate(2 * MIB);
    fake_during(FAKE_RECORD, free_it_from_another_thread, NULL);
    release(first);
    /* It has a fence of its own, recorded by the same thread afterwards. */
    cr_assert_eq(fake_calls(FAKE_RECORD), 2);
    cr_assert_eq(pending_bytes(), 3 * MIB);
    cr_assert_eq(query_oldest(), FENCE_OVER);
    cr_assert_eq(clean_bytes(), MIB);
    cr_assert_eq(pending_bytes(), 2 * MIB);
}

static atomic_uint pairs_made;

/* Whoever waits for the record makes no pairs. */
static void let_go_after_pairs(void *unused)
{
    struct timespec nap = {0, 5000000};
    (void)unused;
    for (int i = 0; i < 60 && atomic_load(&pairs_made) < 300; i++)
        nanosleep(&nap, NULL);
    atomic_store(&let_go_of_the_record, true);
}

Test(epoch, however_long_a_record_takes_others_do_not_grow_the_reserve_past_its_bound)
{
    struct errand recorder, clock;
    start_with_budget(64 * MIB);
    hold_a_record(&recorder);
    /* What is freed from now on is of an epoch that the record does not cover. */
    synchronise();
    send(&clock, let_go_after_pairs, NULL);
    while (!atomic_load(&let_go_of_the_record)) {
        release(allocate(MIB));
        atomic_fetch_add(&pairs_made, 1);
    }
    wait_for(&clock);
    wait_for(&recorder);
    cr_assert_leq(reserved_bytes(), (64 + 2 * 33) * MIB);
    cr_assert_geq(counted().frees, 33);
}

static void let_go_late(void *unused)
{
    struct timespec late = {0, 200000000};
    (void)unused;
    nanosleep(&late, NULL);
    atomic_store(&let_go_of_the_record, true);
}

static uint64_t nanoseconds_of(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

Test(epoch, who_waits_for_a_long_record_leaves_the_processor_to_others)
{
    struct errand recorder, clock;
    start_with_budget(64 * MIB);
    hold_a_record(&recorder);
    synchronise();
    send(&clock, let_go_late, NULL);
    uint64_t began = nanoseconds_of(CLOCK_MONOTONIC);
    uint64_t used = nanoseconds_of(CLOCK_THREAD_CPUTIME_ID);
    while (!atomic_load(&let_go_of_the_record))
        release(allocate(MIB));
    used = nanoseconds_of(CLOCK_THREAD_CPUTIME_ID) - used;
    cr_expect_lt(used, (nanoseconds_of(CLOCK_MONOTONIC) - began) / 3);
    wait_for(&clock);
    wait_for(&recorder);
}

Test(epoch, what_goes_into_a_cache_while_a_fence_is_recorded_has_one_afterwards)
{
    struct errand recorder;
    start_with_budget(64 * MIB);
    hold_a_record(&recorder);
    allocate_and_release(FREES_TO_A_FENCE + 8, KIB);
    atomic_store(&let_go_of_the_record, true);
    wait_for(&recorder);
    cr_assert_eq(fake_calls(FAKE_RECORD), 2);
}

static void be_cancelled(void *unused)
{
    (void)unused;
    pthread_testcancel();
}

static void record_when_cancelled(void *freed)
{
    CUdeviceptr block = allocate(32 * MIB);
    fake_during(FAKE_RECORD, be_cancelled, NULL);
    pthread_cancel(pthread_self());
    release(block);
    atomic_store((atomic_bool *)freed, true);
}

Test(epoch, a_thread_that_is_cancelled_in_a_driver_call_of_ours_goes_on)
{
    struct errand recorder;
    atomic_bool freed = false;
    start();
    stop_looking_at_locks();
    send(&recorder, record_when_cancelled, &freed);
    wait_for(&recorder);
    cr_expect(atomic_load(&freed));
    cr_expect_not(is_held(&pool->fence_lock));
    cr_expect_not(epochs()->recording);
}

static unsigned outstanding_in_record;

static void look_for_fences(void *unused)
{
    (void)unused;
    outstanding_in_record += epochs()->outstanding;
}

Test(epoch, a_fence_is_not_seen_before_it_is_recorded)
{
    start_with_budget(0);
    fake_during(FAKE_RECORD, look_for_fences, NULL);
    release(allocate(MIB));
    cr_assert_eq(outstanding_in_record, 0);
    cr_assert_eq(epochs()->outstanding, 1);
}

Test(epoch, one_fence_cleans_everything_freed_before_it)
{
    start();
    allocate_and_release(FREES_TO_A_FENCE, KIB);
    cr_assert_eq(fake_calls(FAKE_RECORD), 1);
    cr_assert_eq(query_oldest(), FENCE_OVER);
    cr_assert_eq(pending_bytes(), 0);
    cr_assert_eq(clean_bytes(), FREES_TO_A_FENCE * KIB);
}

Test(epoch, a_later_fence_that_is_over_retires_the_earlier_ones)
{
    start_with_budget(0);
    allocate_and_release(5, MIB);
    cr_assert_eq(epochs()->outstanding, 5);
    struct context *c = context_find(pool, context);
    heap_lock(heap_of(c));
    cr_assert_eq(epoch_query(pool, c, epochs()->newest), FENCE_OVER);
    heap_unlock(heap_of(c));
    cr_assert_eq(epochs()->outstanding, 0);
    cr_assert_eq(clean_bytes(), 5 * MIB);
}

Test(epoch, a_running_fence_cleans_nothing)
{
    start_with_budget(0);
    CUdeviceptr block = allocate(MIB);
    fake_launch(context);
    release(block);
    cr_assert_eq(query_oldest(), FENCE_RUNNING);
    cr_assert_eq(clean_bytes(), 0);
    fake_finish(context);
    cr_assert_eq(query_oldest(), FENCE_OVER);
    cr_assert_eq(clean_bytes(), MIB);
}

Test(epoch, work_after_the_fence_is_not_waited_for)
{
    start_with_budget(0);
    CUdeviceptr block = allocate(MIB);
    fake_launch(context);
    release(block);
    fake_launch(context);
    fake_finish_some(context, 1);
    cr_assert_eq(query_oldest(), FENCE_OVER);
}

static void take_and_keep(void *unused)
{
    (void)unused;
    allocate(MIB);
}

static uint64_t clean_in_query;

static void try_to_take(void *unused)
{
    (void)unused;
    clean_in_query += clean_bytes();
}

Test(epoch, nothing_is_clean_before_the_query_has_returned)
{
    start_with_budget(0);
    release(allocate(MIB));
    fake_during(FAKE_EVENT_QUERY, try_to_take, NULL);
    cr_assert_eq(query_oldest(), FENCE_OVER);
    cr_assert_eq(clean_in_query, 0);
    cr_assert_eq(clean_bytes(), MIB);
}

static void query_too(void *calls)
{
    fake_during(FAKE_EVENT_QUERY, NULL, NULL);
    in_another_thread(take_and_keep, NULL);
    *(unsigned *)calls = fake_calls(FAKE_EVENT_QUERY);
}

Test(epoch, one_thread_at_a_time_asks_about_a_fence)
{
    unsigned calls = 0;
    settings.device.growth_budget.bytes = GIB;
    start();
    CUdeviceptr block = allocate(MIB);
    release(block);
    close_epoch(true);
    fake_during(FAKE_EVENT_QUERY, query_too, &calls);
    cr_assert_eq(query_oldest(), FENCE_OVER);
    cr_assert_eq(calls, 1);
}

/* QUERY_INTERVAL_SOON in core/contexts/epoch.c. */
#define SHORTEST_PAUSE_NANOSECONDS 1500u

Test(epoch, a_running_fence_is_not_asked_about_again_at_once)
{
    start_with_budget(GIB);
    CUdeviceptr block = allocate(MIB);
    fake_launch(context);
    release(block);
    close_epoch(true);
    cr_assert_eq(query_oldest(), FENCE_RUNNING);
    struct context *c = context_find(pool, context);
    bool asked_too_soon = false;
    heap_lock(heap_of(c));
    /* On a slow machine the pause is over between two lines, and the driver is rightly asked. */
    for (int i = 0; i < 1000 && !asked_too_soon; i++) {
        unsigned asked = fake_calls(FAKE_EVENT_QUERY);
        uint64_t began = monotonic_now();
        c->epochs.asked_at = began;
        cr_assert_eq(epoch_query(pool, c, c->epochs.oldest), FENCE_RUNNING);
        asked_too_soon = fake_calls(FAKE_EVENT_QUERY) != asked &&
                         monotonic_now() - began < SHORTEST_PAUSE_NANOSECONDS;
    }
    heap_unlock(heap_of(c));
    cr_assert_not(asked_too_soon);
}

/* ---- events are not recorded again while somebody looks at them ---- */

static void overtake(void *unused)
{
    (void)unused;
    fake_during(FAKE_EVENT_QUERY, NULL, NULL);
    cr_assert_eq(synchronise(), CUDA_SUCCESS);
    fake_launch(context);
    release(allocate(2 * MIB));
}

Test(epoch, an_event_that_is_looked_at_is_not_recorded_again)
{
    start_with_budget(0);
    CUdeviceptr block = allocate(4 * MIB);
    release(allocate(MIB));
    fake_launch(context);
    fake_during(FAKE_EVENT_QUERY, overtake, NULL);
    let_time_pass();
    /* The query looks at the first fence while a synchronise retires it and a free takes another:
     * were it the same event, the query would see that one running. */
    cr_assert_eq(query_oldest(), FENCE_OVER);
    cr_assert_eq(fake_calls(FAKE_EVENT_CREATE), 2);
    release(block);
    cr_assert_eq(fake_calls(FAKE_EVENT_CREATE), 2, "the first event is free by now");
}

Test(epoch, events_are_used_again_once_their_fence_is_over)
{
    start_with_budget(0);
    for (int i = 0; i < 10; i++) {
        release(allocate(MIB));
        cr_assert_eq(synchronise(), CUDA_SUCCESS);
    }
    cr_assert_eq(fake_calls(FAKE_RECORD), 10);
    cr_assert_eq(fake_calls(FAKE_EVENT_CREATE), 1);
}

/* ---- the program's own synchronise ---- */

static void free_during_synchronise(void *address)
{
    fake_during(FAKE_CTX_SYNCHRONIZE, NULL, NULL);
    release(*(CUdeviceptr *)address);
}

Test(epoch, a_synchronise_cleans_what_was_pending_when_it_was_entered)
{
    start();
    CUdeviceptr before = allocate(KIB), during = allocate(2 * KIB);
    release(before);
    fake_during(FAKE_CTX_SYNCHRONIZE, free_during_synchronise, &during);
    cr_assert_eq(synchronise(), CUDA_SUCCESS);
    cr_assert_eq(clean_bytes(), KIB);
    cr_assert_eq(pending_bytes(), 2 * KIB);
    cr_assert_eq(fake_calls(FAKE_RECORD), 0, "and costs no fence");
}

Test(epoch, a_synchronise_that_fails_cleans_nothing)
{
    start();
    release(allocate(KIB));
    fake_fail(FAKE_CTX_SYNCHRONIZE, CUDA_ERROR_NOT_PERMITTED, 1);
    cr_assert_eq(synchronise(), CUDA_ERROR_NOT_PERMITTED);
    cr_assert_eq(pending_bytes(), KIB);
    cr_assert_eq(clean_bytes(), 0);
}

Test(epoch, a_synchronise_by_handle_counts_for_that_context)
{
    start();
    release(allocate(KIB));
    struct synchronising state = pool_synchronise_begin(pool, &context);
    pool_synchronise_end(pool, state, CUDA_SUCCESS);
    cr_assert_eq(clean_bytes(), KIB);
}

/* ---- where fences are recorded ---- */

Test(epoch, an_allocation_records_no_fence)
{
    start_with_budget(0);
    CUdeviceptr blocks[7];
    for (int i = 0; i < 7; i++)
        blocks[i] = allocate(KIB + 512 * (size_t)i);
    settings.device.growth_budget.bytes = 0;
    for (int i = 0; i < 7; i++) {
        fake_launch(context);
        release(blocks[i]);
    }
    unsigned recorded = fake_calls(FAKE_RECORD);
    for (int i = 0; i < 7; i++)
        allocate(KIB + 512 * (size_t)i);
    allocate(GIB);
    cr_assert_eq(fake_calls(FAKE_RECORD), recorded);
}

Test(epoch, a_fence_for_every_few_frees)
{
    start();
    fake_launch(context);
    for (unsigned i = 1; i <= 4 * FREES_TO_A_FENCE; i++) {
        release(allocate(KIB));
        cr_assert_eq(fake_calls(FAKE_RECORD), i / FREES_TO_A_FENCE);
    }
}

Test(epoch, a_quarter_of_the_fences_while_the_gpu_keeps_up)
{
    start();
    for (unsigned i = 0; i < 2 * FREES_TO_A_FENCE; i++)
        release(allocate(KIB));
    unsigned recorded = fake_calls(FAKE_RECORD);
    for (unsigned i = 0; i < 20 * FREES_TO_A_FENCE; i++)
        release(allocate(KIB));
    cr_assert_geq(fake_calls(FAKE_RECORD), recorded + 4);
    cr_assert_leq(fake_calls(FAKE_RECORD), recorded + 6);
    recorded = fake_calls(FAKE_RECORD);
    fake_launch(context);
    for (unsigned i = 0; i < 30 * FREES_TO_A_FENCE; i++) {
        release(allocate(KIB));
        /* Not to be over for a while is what makes the GPU late. */
        if (i % FREES_TO_A_FENCE == 0)
            let_time_pass();
    }
    cr_assert_geq(fake_calls(FAKE_RECORD), recorded + 16);
}

Test(epoch, a_fence_for_every_32_MiB)
{
    start();
    allocate_and_release(3, 10 * MIB);
    cr_assert_eq(fake_calls(FAKE_RECORD), 0);
    release(allocate(2 * MIB));
    cr_assert_eq(fake_calls(FAKE_RECORD), 1);
    release(allocate(30 * MIB));
    cr_assert_eq(fake_calls(FAKE_RECORD), 1);
}

Test(epoch, a_large_block_has_a_fence_of_its_own)
{
    start();
    release(allocate(32 * MIB));
    cr_assert_eq(fake_calls(FAKE_RECORD), 1);
    release(allocate(KIB));
    cr_assert_eq(fake_calls(FAKE_RECORD), 1);
}

Test(epoch, with_growth_budget_0_every_free_has_a_fence)
{
    start_with_budget(0);
    for (unsigned i = 1; i <= 20; i++) {
        release(allocate(512));
        cr_assert_eq(fake_calls(FAKE_RECORD), i);
    }
}

Test(epoch, fences_follow_a_small_growth_budget)
{
    start_with_budget(8 * MIB);
    release(allocate(MIB));
    cr_assert_eq(fake_calls(FAKE_RECORD), 0);
    release(allocate(MIB));
    cr_assert_eq(fake_calls(FAKE_RECORD), 1);
}

static void *use_the_heap(void *unused)
{
    (void)unused;
    fake_set_current(context);
    release(allocate(KIB));
    return NULL;
}

Test(epoch, threads_that_wait_for_each_other_have_twice_as_many)
{
    start();
    pthread_t thread;
    stop_looking_at_locks();
    cr_assert_eq(pthread_create(&thread, NULL, use_the_heap, NULL), 0);
    pthread_join(thread, NULL);
    allocate_and_release(FREES_TO_A_FENCE / 2 - 1, KIB);
    cr_assert_eq(fake_calls(FAKE_RECORD), 1);
}

Test(epoch, with_little_memory_left_every_free_has_a_fence)
{
    start();
    CUdeviceptr most = allocate(59 * GIB);
    for (unsigned i = 0; i < 64; i++)
        allocate(4 * KIB);
    for (unsigned i = 1; i <= 5; i++) {
        release(allocate(512));
        cr_assert_eq(fake_calls(FAKE_RECORD), i);
    }
    release(most);
}

Test(epoch, while_memory_is_short_every_free_has_a_fence)
{
    start();
    allocate(DEVICE_BYTES - DEVICE_BYTES / 16);
    release(allocate(4 * KIB));
    cr_assert_eq(fake_calls(FAKE_RECORD), 1);
}

Test(epoch, no_more_than_so_many_fences_are_outstanding)
{
    enum { BLOCKS = 3 * FENCES_MAX };
    start_with_budget(0);
    static CUdeviceptr blocks[BLOCKS];
    for (unsigned i = 0; i < BLOCKS; i++)
        blocks[i] = allocate(512);
    fake_launch(context);
    for (unsigned i = 0; i < BLOCKS; i++) {
        release(blocks[i]);
        cr_assert_leq(epochs()->outstanding, FENCES_MAX);
    }
    cr_assert_eq(fake_calls(FAKE_RECORD), BLOCKS, "every free has its fence still");
    for (const struct fence *f = epochs()->oldest; f->next; f = f->next)
        cr_assert_lt(f->epoch, f->next->epoch);
    fake_finish(context);
    let_time_pass();
    cr_assert_eq(synchronise(), CUDA_SUCCESS);
    cr_assert_eq(pending_bytes(), 0);
}

Test(epoch, a_free_on_a_stream_records_a_fence_that_is_not_waited_for)
{
    start_with_budget(0);
    CUstream stream = fake_stream();
    CUdeviceptr block = allocate(MIB);
    fake_launch(context);
    cr_assert_eq(pool_free_async(pool, driver->cuMemFreeAsync, block, stream), CUDA_SUCCESS);
    cr_assert_eq(epochs()->outstanding, 1);
    cr_assert_not(epochs()->oldest->waitable);
    fake_trace();
    allocate(MIB);
    cr_assert_str_eq(fake_trace(), "query alloc", "neither a wait nor a barrier");
}

/* ---- several contexts ---- */

Test(epoch, a_fence_is_an_event_in_every_live_context)
{
    start_with_budget(0);
    CUcontext other = another_context(0);
    fake_set_current(context);
    CUdeviceptr block = allocate(MIB);
    fake_launch(other);
    release(block);
    cr_assert_eq(fake_calls(FAKE_RECORD), 3, "its own, and a round of both");
    cr_assert_eq(query_oldest(), FENCE_OWN_OVER);
    cr_assert_eq(clean_bytes(), 0);
    fake_finish(other);
    cr_assert_eq(query_oldest(), FENCE_OVER);
    cr_assert_eq(clean_bytes(), MIB);
}

Test(epoch, its_own_context_is_asked_first)
{
    start_with_budget(0);
    another_context(0);
    fake_set_current(context);
    CUdeviceptr block = allocate(MIB);
    fake_launch(context);
    release(block);
    unsigned asked = fake_calls(FAKE_EVENT_QUERY);
    cr_assert_eq(query_oldest(), FENCE_RUNNING);
    cr_assert_eq(fake_calls(FAKE_EVENT_QUERY), asked + 1);
}

Test(epoch, a_wait_ends_where_only_other_contexts_work_is_left)
{
    start_with_budget(0);
    CUcontext other = another_context(0);
    fake_set_current(context);
    CUdeviceptr block = allocate(MIB);
    fake_launch(other);
    release(block);
    cr_assert_neq(allocate(MIB), block);
    cr_assert_eq(pending_bytes(), MIB);
}

Test(epoch, a_synchronise_of_one_of_several_contexts_is_not_enough)
{
    start();
    CUcontext other = another_context(0);
    fake_set_current(context);
    CUdeviceptr block = allocate(KIB);
    fake_launch(other);
    release(block);
    cr_assert_eq(synchronise(), CUDA_SUCCESS);
    cr_assert_eq(clean_bytes(), 0);
    cr_assert_eq(fake_calls(FAKE_RECORD), 3, "but it records a fence");
    fake_finish(other);
    cr_assert_eq(query_oldest(), FENCE_OVER);
    cr_assert_eq(clean_bytes(), KIB);
}

Test(epoch, work_that_died_with_its_context_counts_as_done)
{
    start_with_budget(0);
    CUcontext other = another_context(0);
    fake_launch(other);
    fake_set_current(context);
    release(allocate(MIB));
    end_context(other);
    cr_assert_eq(query_oldest(), FENCE_OVER);
    cr_assert_eq(clean_bytes(), MIB);
}

Test(epoch, work_of_a_context_that_only_might_have_died_counts)
{
    start_without_context();
    context = fake_primary(0);
    pool_primary_retained(pool, context, 0);
    settings.device.growth_budget.bytes = 0;
    CUdeviceptr block = allocate(MIB);
    fake_launch(context);
    release(block);
    close_epoch(true);
    /* One of two retains is released: while the driver is asked, nobody knows how it ends. */
    struct context *c = context_find(pool, context);
    struct ending ending = pool_primary_releasing(pool, 0);
    heap_lock(heap_of(c));
    c->epochs.asked_at = 0;
    cr_assert_eq(epoch_query(pool, c, c->epochs.oldest), FENCE_RUNNING);
    heap_unlock(heap_of(c));
    pool_context_ended(pool, ending, CONTEXT_PRIMARY_MAY_HAVE_DIED);
    cr_assert_eq(clean_bytes(), 0);
    cr_assert_eq(query_oldest(), FENCE_RUNNING);
    fake_finish(context);
    cr_assert_eq(query_oldest(), FENCE_OVER);
}

/* ---- errors ---- */

Test(epoch, a_record_that_fails_leaves_no_fence)
{
    start_with_budget(0);
    CUdeviceptr block = allocate(MIB);
    fake_fail(FAKE_RECORD, CUDA_ERROR_ILLEGAL_ADDRESS, 1);
    cr_assert_eq(pool_free(pool, block), CUDA_ERROR_ILLEGAL_ADDRESS);
    cr_assert_eq(epochs()->outstanding, 0);
    cr_assert_eq(pending_bytes(), MIB);
    cr_assert(atomic_load(&context_find(pool, context)->unusable));
}

Test(epoch, a_query_that_fails_cleans_nothing)
{
    start_with_budget(0);
    release(allocate(MIB));
    fake_fail(FAKE_EVENT_QUERY, CUDA_ERROR_LAUNCH_FAILED, 1);
    cr_assert_eq(query_oldest(), FENCE_FAILED);
    cr_assert_eq(clean_bytes(), 0);
    cr_assert(atomic_load(&context_find(pool, context)->unusable));
}

Test(epoch, an_unseen_capture_makes_the_pool_step_aside)
{
    start_with_budget(0);
    CUdeviceptr first = allocate(MIB), second = allocate(MIB);
    fake_fail(FAKE_RECORD, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    release(first);
    fake_trace();
    release(second);
    allocate(MIB);
    /* With the second goes the first, which no fence will ever tell of. */
    cr_assert_str_eq(fake_trace(), "free free alloc");
    cr_assert_eq(pending_bytes(), 0);
    cr_assert(atomic_load(&context_find(pool, context)->unusable));
}

Test(epoch, nothing_is_fenced_once_the_pool_has_stepped_aside)
{
    start_with_budget(0);
    another_context(0);
    fake_set_current(context);
    CUdeviceptr first = allocate(MIB);
    fake_fail(FAKE_RECORD, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    release(first);
    unsigned recorded = fake_calls(FAKE_RECORD);
    cr_assert_eq(synchronise(), CUDA_SUCCESS);
    struct reclaim progress = {0};
    while (pool_make_room(pool, &progress))
        continue;
    cr_assert_eq(fake_calls(FAKE_RECORD), recorded);
}

Test(epoch, without_room_for_an_event_there_is_no_fence)
{
    start_with_budget(0);
    CUdeviceptr block = allocate(MIB);
    fake_fail(FAKE_EVENT_CREATE, CUDA_ERROR_OUT_OF_MEMORY, 1);
    release(block);
    cr_assert_eq(fake_calls(FAKE_RECORD), 0);
    cr_assert_eq(pending_bytes(), MIB);
    release(allocate(KIB));
    cr_assert_eq(fake_calls(FAKE_RECORD), 1, "the next free has one");
}

/* ---- without cuCtxRecordEvent ---- */

Test(epoch, without_record_closing_an_epoch_is_a_synchronise_inside_the_free)
{
    driver->cuCtxRecordEvent = NULL;
    driver->cuCtxWaitEvent = NULL;
    start();
    for (unsigned i = 1; i < FREES_TO_A_FENCE; i++) {
        fake_launch(context);
        release(allocate(KIB));
    }
    cr_assert_eq(fake_calls(FAKE_CTX_SYNCHRONIZE), 0);
    fake_launch(context);
    release(allocate(KIB));
    cr_assert_eq(fake_calls(FAKE_CTX_SYNCHRONIZE), 1);
    cr_assert_eq(pending_bytes(), 0);
    fake_trace();
    allocate(KIB);
    cr_assert_str_eq(fake_trace(), "");
}

Test(epoch, without_record_an_allocation_never_synchronises)
{
    driver->cuCtxRecordEvent = NULL;
    driver->cuCtxWaitEvent = NULL;
    set_up_on(GIB);
    driver->cuCtxRecordEvent = NULL;
    start();
    CUdeviceptr block = allocate(KIB);
    fake_launch(context);
    release(block);
    try_to_allocate(GIB);
    cr_assert_eq(fake_calls(FAKE_CTX_SYNCHRONIZE), 0);
}

Test(epoch, without_record_a_free_on_a_stream_does_not_synchronise)
{
    driver->cuCtxRecordEvent = NULL;
    start_with_budget(0);
    CUstream stream = fake_stream();
    CUdeviceptr block = allocate(MIB);
    cr_assert_eq(pool_free_async(pool, driver->cuMemFreeAsync, block, stream), CUDA_SUCCESS);
    cr_assert_eq(fake_calls(FAKE_CTX_SYNCHRONIZE), 0);
}

Test(epoch, without_record_and_with_several_contexts_the_driver_frees)
{
    driver->cuCtxRecordEvent = NULL;
    start_with_budget(0);
    another_context(0);
    fake_set_current(context);
    CUdeviceptr block = allocate(MIB);
    fake_trace();
    release(block);
    cr_assert_str_eq(fake_trace(), "free");
    cr_assert_not(fake_is_allocated(block));
}
