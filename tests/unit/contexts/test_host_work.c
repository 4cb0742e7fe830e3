/*
 * Work that ends only if the host acts: what allocations wait for beside it, and frees.
 */
#include <unistd.h>

#include "core/base/clock.h"
#include "core/device_memory/driver_free.h"
#include "core/device_memory/free_fence.h"
#include "core/device_memory/policies.h"
#include "pool_fixture.h"

TestSuite(host_work, .init = set_up, .fini = tear_down, .timeout = 30);

static struct host_work *work(void)
{
    return &epochs()->host_work;
}

static struct fence *begin_record(bool waitable)
{
    heap_lock(heap());
    struct fence *fence = epoch_begin_close(context_record(), waitable);
    heap_unlock(heap());
    cr_assert_not_null(fence);
    return fence;
}

static void end_record(struct fence *fence)
{
    cr_assert_eq(epoch_record(pool, context_record(), fence), CUDA_SUCCESS);
}

static void close_epoch(void)
{
    end_record(begin_record(true));
}

/* A host function that has not begun to run. */
static void submit_host_function(void)
{
    struct host_submission submission = host_work_begin(pool, NULL);
    fake_launch(context);
    host_work_end(&submission);
}

static bool wait_in_allocation(uint64_t stamp)
{
    struct context *c = context_find(pool, context);
    let_time_pass();
    heap_lock(heap_of(c));
    bool clean = epoch_wait_in_allocation(pool, c, stamp);
    heap_unlock(heap_of(c));
    return clean;
}

static bool raise_barrier(uint64_t epoch)
{
    struct context *c = context_find(pool, context);
    heap_lock(heap_of(c));
    struct fence *fence = epoch_fence_for(&c->epochs, epoch, true);
    bool raised = fence && epoch_raise_barrier(pool, c, fence);
    heap_unlock(heap_of(c));
    return raised;
}

static double seconds_now(void)
{
    return (double)monotonic_now() / 1e9;
}

static void finish_the_work(void *unused)
{
    (void)unused;
    fake_finish(context);
}

/* ---- marks, which the lock of their context guards ---- */

static struct short_lock lock_of_context;

Test(host_work, a_mark_lasts_until_a_fence_behind_it_is_over)
{
    struct host_work marks = {0};
    host_work_init(&marks);
    lock_take(&lock_of_context, LOCK_CONTEXT);
    cr_assert_eq(host_work_limit(&marks), UINT64_MAX);
    host_work_mark(&marks, 3, 5, true);
    cr_assert_eq(host_work_limit(&marks), 3);
    host_work_clean(&marks, 4);
    cr_assert_eq(host_work_limit(&marks), 3);
    host_work_clean(&marks, 5);
    cr_assert_eq(host_work_limit(&marks), UINT64_MAX);
}

Test(host_work, the_earliest_mark_counts_and_each_ends_by_itself)
{
    struct host_work marks = {0};
    host_work_init(&marks);
    lock_take(&lock_of_context, LOCK_CONTEXT);
    host_work_mark(&marks, 7, 8, true);
    host_work_mark(&marks, 3, 5, true);
    host_work_mark(&marks, 3, 6, true);
    cr_assert_eq(marks.count, 2);
    host_work_clean(&marks, 5);
    cr_assert_eq(host_work_limit(&marks), 3);
    host_work_clean(&marks, 6);
    cr_assert_eq(host_work_limit(&marks), 7);
}

Test(host_work, of_very_many_marks_none_is_forgotten)
{
    struct host_work marks = {0};
    host_work_init(&marks);
    lock_take(&lock_of_context, LOCK_CONTEXT);
    for (uint64_t i = 0; i < 10 * HOST_MARKS; i++)
        host_work_mark(&marks, 2 * i, 2 * i + 1, true);
    cr_assert_leq(marks.count, HOST_MARKS);
    host_work_clean(&marks, 2 * (10 * HOST_MARKS - 1));
    cr_assert_lt(host_work_limit(&marks), UINT64_MAX);
    host_work_clean(&marks, 20 * HOST_MARKS);
    cr_assert_eq(host_work_limit(&marks), UINT64_MAX);
}

Test(host_work, a_context_that_dies_takes_its_marks_with_it)
{
    start();
    submit_host_function();
    struct epochs *died = epochs();
    cr_assert_lt(host_work_limit(&died->host_work), UINT64_MAX);
    end_context(context);
    cr_assert_eq(host_work_limit(&died->host_work), UINT64_MAX);
}

Test(host_work, what_is_being_submitted_to_one_that_dies_leaves_none)
{
    start();
    struct epochs *died = epochs();
    struct host_submission submission = host_work_begin(pool, NULL);
    end_context(context);
    cr_assert_lt(host_work_limit(&died->host_work), UINT64_MAX);
    host_work_end(&submission);
    cr_assert_eq(host_work_limit(&died->host_work), UINT64_MAX);
}

/* ---- what allocations wait for ---- */

Test(host_work, an_allocation_waits_for_fences_before_it_and_for_none_behind_it)
{
    start();
    fake_launch(context);
    close_epoch();
    uint64_t before = epochs()->newest->epoch;
    submit_host_function();
    close_epoch();
    uint64_t behind = epochs()->newest->epoch;
    double began = seconds_now();
    cr_assert_not(wait_in_allocation(behind));
    cr_assert_not(raise_barrier(behind));
    cr_assert_lt(seconds_now() - began, 0.5);
    cr_assert(raise_barrier(before));
    fake_finish_some(context, 1);
    cr_assert(wait_in_allocation(before));
    fake_finish(context);
    fake_during(FAKE_EVENT_QUERY, finish_the_work, NULL);
    cr_assert_not(wait_in_allocation(behind), "nobody has seen yet that it is over");
}

Test(host_work, one_that_is_over_is_waited_for_no_more)
{
    start();
    release(allocate(MIB));
    submit_host_function();
    close_epoch();
    fake_finish(context);
    struct context *c = context_find(pool, context);
    let_time_pass();
    heap_lock(heap_of(c));
    cr_assert_eq(epoch_query(pool, c, c->epochs.newest), FENCE_OVER);
    heap_unlock(heap_of(c));
    cr_assert_eq(host_work_limit(work()), UINT64_MAX);
}

/* A fence that is recorded while the driver has the call may be before the work or behind it. */
Test(host_work, a_fence_of_the_very_moment_is_not_waited_for_and_says_nothing)
{
    start();
    struct host_submission submission = host_work_begin(pool, NULL);
    close_epoch();
    uint64_t meanwhile = epochs()->newest->epoch;
    cr_assert_not(wait_in_allocation(meanwhile));
    fake_launch(context);
    host_work_end(&submission);
    struct context *c = context_find(pool, context);
    let_time_pass();
    heap_lock(heap_of(c));
    cr_assert_eq(epoch_query(pool, c, c->epochs.newest), FENCE_OVER);
    heap_unlock(heap_of(c));
    cr_assert_lt(host_work_limit(work()), UINT64_MAX, "the fence was before the work");
    close_epoch();
    cr_assert_not(wait_in_allocation(epochs()->newest->epoch));
}

Test(host_work, another_contexts_work_does_not_keep_it)
{
    start();
    struct context *c = context_find(pool, context);
    submit_host_function();
    CUcontext other = fake_context(0);
    pool_context_created(pool, other);
    fake_launch(other);
    fake_set_current(context);
    close_epoch();
    fake_finish(context);
    let_time_pass();
    heap_lock(heap_of(c));
    cr_assert_eq(epoch_query(pool, c, c->epochs.newest), FENCE_OWN_OVER);
    heap_unlock(heap_of(c));
    cr_assert_eq(host_work_limit(work()), UINT64_MAX);
}

Test(host_work, a_refusal_in_a_host_function_is_no_failure_of_the_context)
{
    start();
    for (unsigned i = 0; i < 20; i++) {
        struct context *c = context_find(pool, context);
        fake_fail(FAKE_RECORD, CUDA_ERROR_NOT_PERMITTED, 1);
        heap_lock(heap_of(c));
        struct fence *fence = epoch_begin_close(c, true);
        heap_unlock(heap_of(c));
        cr_assert_eq(epoch_record(pool, c, fence), CUDA_SUCCESS);
    }
    cr_assert_not(atomic_load(&context_find(pool, context)->unusable));
    cr_assert_eq(epochs()->failures, 0);
}

/* ---- every wait ends ---- */

static double gives_up_at;
static unsigned queries;

static void finish_in_the_end(void *unused)
{
    (void)unused;
    if (seconds_now() > gives_up_at)
        fake_finish(context);
}

static void wait_in_vain(void)
{
    fake_launch(context);
    close_epoch();
    gives_up_at = seconds_now() + 3;
    fake_during(FAKE_EVENT_QUERY, finish_in_the_end, NULL);
    cr_assert_not(wait_in_allocation(epochs()->newest->epoch));
    fake_during(FAKE_EVENT_QUERY, NULL, NULL);
}

Test(host_work, an_allocation_waits_for_a_second_in_vain_and_then_no_more)
{
    start();
    double began = seconds_now();
    wait_in_vain();
    cr_assert_geq(seconds_now() - began, 1);
    cr_assert_lt(seconds_now() - began, 5);
    cr_assert_eq(counter_get(&heap()->counters->stalled_waits), 1);
    began = seconds_now();
    cr_assert_not(wait_in_allocation(epochs()->newest->epoch));
    cr_assert_not(raise_barrier(epochs()->newest->epoch));
    cr_assert_lt(seconds_now() - began, 0.5);
    cr_assert_eq(counter_get(&heap()->counters->stalled_waits), 1);
}

static void finish_late(void *unused)
{
    struct timespec late = {0, 350000000};
    (void)unused;
    for (unsigned i = 0; i < 3; i++) {
        nanosleep(&late, NULL);
        fake_finish_some(context, 1);
    }
}

Test(host_work, while_something_becomes_clean_the_wait_is_not_in_vain)
{
    struct errand finisher;
    start();
    for (unsigned i = 0; i < 3; i++) {
        fake_launch(context);
        close_epoch();
    }
    uint64_t last = epochs()->newest->epoch;
    send(&finisher, finish_late, NULL);
    for (uint64_t epoch = last - 2; epoch <= last; epoch++)
        cr_assert(wait_in_allocation(epoch));
    wait_for(&finisher);
    cr_assert_eq(counter_get(&heap()->counters->stalled_waits), 0);
}

Test(host_work, then_frees_wait_for_some_seconds)
{
    start();
    wait_in_vain();
    fake_finish(context);
    CUdeviceptr block = allocate(MIB), other = allocate(MIB);
    cr_assert(frees_may_wait(&epochs()->frees_wait));
    unsigned waits = fake_calls(FAKE_CTX_SYNCHRONIZE);
    release(block);
    cr_assert_eq(fake_calls(FAKE_CTX_SYNCHRONIZE), waits + 1);
    cr_assert_eq(pending_bytes(), 0);
    epochs()->frees_wait.until = monotonic_now();
    release(other);
    cr_assert_eq(fake_calls(FAKE_CTX_SYNCHRONIZE), waits + 1);
    cr_assert_not(frees_may_wait(&epochs()->frees_wait));
    cr_assert_eq(atomic_load(&heap()->closed) & CLOSED_SYNCHRONISING, 0);
}

static void release_it(void *block)
{
    release(*(CUdeviceptr *)block);
}

static void check_that_it_waits_for_a_second(CUdeviceptr block)
{
    unsigned waits = fake_calls(FAKE_CTX_SYNCHRONIZE);
    double began = seconds_now();
    release(block);
    cr_assert_geq(seconds_now() - began, 1);
    cr_assert_lt(seconds_now() - began, 5);
    cr_assert_eq(fake_calls(FAKE_CTX_SYNCHRONIZE), waits);
}

/* The program may have taken a lock that it needs since it freed something without a wait. */
Test(host_work, but_not_without_end_for_what_was_waited_for_in_vain)
{
    start();
    CUdeviceptr block = allocate(MIB), other = allocate(MIB);
    wait_in_vain();
    check_that_it_waits_for_a_second(block);
    check_that_it_waits_for_a_second(other);
    cr_assert_eq(pending_bytes(), 2 * MIB);
    fake_finish(context);
}

static CUdeviceptr beside_record;

static void release_beside_record(void *unused)
{
    struct errand errand;
    (void)unused;
    fake_during(FAKE_RECORD, NULL, NULL);
    send(&errand, release_it, &beside_record);
    wait_for(&errand);
}

/* The driver would wait with its lock held. */
Test(host_work, nor_does_the_driver_free_then_where_another_thread_is_recording)
{
    start();
    CUdeviceptr block = allocate(MIB);
    beside_record = allocate(MIB);
    wait_in_vain();
    fake_during(FAKE_RECORD, release_beside_record, NULL);
    release(block);
    cr_assert(fake_is_allocated(beside_record));
    cr_assert_eq(pending_bytes(), 2 * MIB);
    fake_finish(context);
}

Test(host_work, nor_where_other_contexts_keep_what_is_pending)
{
    set_up_on(16 * GIB);
    start();
    CUdeviceptr block = allocate(7 * GIB);
    CUcontext other = fake_context(0);
    pool_context_created(pool, other);
    fake_launch(other);
    fake_set_current(context);
    wait_in_vain();
    release(block);
    cr_assert(fake_is_allocated(block));
    fake_finish(context);
    fake_finish(other);
}

/* It would let the program take a lock that the known work needs. */
Test(host_work, beside_known_work_a_free_waits_for_that_too)
{
    start();
    CUdeviceptr block = allocate(MIB);
    wait_in_vain();
    submit_host_function();
    gives_up_at = seconds_now() + 2;
    fake_during(FAKE_EVENT_QUERY, finish_in_the_end, NULL);
    release(block);
    cr_assert_geq(seconds_now(), gives_up_at);
    cr_assert_eq(pending_bytes(), 0);
}

/* A synchronise would spoil a capture that another thread begins meanwhile. */
Test(host_work, then_frees_wait_for_a_fence_where_captures_may_allocate)
{
    struct errand finisher;
    settings.captures.allocate = true;
    start();
    wait_in_vain();
    fake_finish(context);
    CUdeviceptr block = allocate(MIB);
    cr_assert(frees_may_wait(&epochs()->frees_wait));
    unsigned waits = fake_calls(FAKE_CTX_SYNCHRONIZE);
    fake_launch(context);
    send(&finisher, finish_late, NULL);
    release(block);
    wait_for(&finisher);
    cr_assert_eq(fake_calls(FAKE_CTX_SYNCHRONIZE), waits);
    cr_assert_eq(pending_bytes(), 0);
}

static uint64_t seconds_of_next(uint64_t quiet_seconds)
{
    struct context *c = context_find(pool, context);
    heap_lock(heap_of(c));
    struct frees_wait *wait = &c->epochs.frees_wait;
    atomic_store_explicit(&wait->on, false, memory_order_relaxed);
    wait->until = monotonic_now() - quiet_seconds * 1000000000;
    frees_wait_begin(wait, monotonic_now());
    heap_unlock(heap_of(c));
    return wait->span / 1000000000;
}

Test(host_work, the_seconds_double_and_decay)
{
    start();
    cr_assert_eq(seconds_of_next(0), 10);
    cr_assert_eq(seconds_of_next(1), 20);
    cr_assert_eq(seconds_of_next(1), 40);
    cr_assert_eq(seconds_of_next(50), 40, "halved once, then doubled");
    for (unsigned i = 0; i < 10; i++)
        seconds_of_next(1);
    cr_assert_eq(seconds_of_next(1), 600, "ten minutes at most");
    cr_assert_eq(seconds_of_next(3600), 10, "once an hour is no pattern");
}

/* ---- frees ---- */

static void finish_at_the_fifth(void *unused)
{
    (void)unused;
    if (++queries == 5)
        fake_finish(context);
}

Test(host_work, a_free_waits_for_it)
{
    start();
    CUdeviceptr first = allocate(MIB), second = allocate(MIB);
    submit_host_function();
    fake_during(FAKE_EVENT_QUERY, finish_at_the_fifth, NULL);
    release(first);
    cr_assert_geq(queries, 5);
    cr_assert_eq(pending_bytes(), 0);
    cr_assert_eq(host_work_limit(work()), UINT64_MAX);
    fake_launch(context);
    release(second);
    cr_assert_eq(pending_bytes(), MIB, "the next one does not");
}

Test(host_work, and_so_does_one_on_the_fast_path)
{
    start();
    for (unsigned i = 0; i < 100; i++)
        release(allocate(MIB));
    CUdeviceptr block = allocate(MIB);
    submit_host_function();
    cr_assert(atomic_load(&heap()->closed) & CLOSED_HOST_WORK);
    queries = 0;
    fake_during(FAKE_EVENT_QUERY, finish_at_the_fifth, NULL);
    release(block);
    cr_assert_geq(queries, 5);
    cr_assert_eq(atomic_load(&heap()->closed) & CLOSED_HOST_WORK, 0);
}

/* As where another context is ending. */
Test(host_work, where_no_fence_can_be_had_the_driver_frees)
{
    start();
    CUdeviceptr block = allocate(MIB);
    submit_host_function();
    fake_fail(FAKE_RECORD, CUDA_ERROR_NOT_PERMITTED, 2);
    release(block);
    cr_assert_not(fake_is_allocated(block));
    cr_assert_eq(reserved_bytes(), 0);
}

static bool something_else_is_freed;

static void note_the_call(void *unused)
{
    (void)unused;
    something_else_is_freed = true;
}

/* The driver does not know the part, so it cannot be left to the driver's free. */
Test(host_work, where_no_fence_can_be_had_for_a_part_something_else_is_freed)
{
    settings.device.buckets.policy = BUCKETS_SPLIT;
    start();
    CUdeviceptr block = allocate(MIB), other = allocate(MIB);
    struct context *c = context_record();
    fake_during(FAKE_FREE_HOST, note_the_call, NULL);
    release(block);
    cr_assert_not(something_else_is_freed);
    submit_host_function();
    atomic_store(&c->dying, true);
    release(other);
    atomic_store(&c->dying, false);
    cr_assert(something_else_is_freed);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE), 0);
    cr_assert_eq(live_bytes(), 0);
}

static void take_what_is_pending(void *unused)
{
    (void)unused;
    fake_during(FAKE_RECORD, NULL, NULL);
    heap_free_pending(pool, context_record());
}

/* Another thread is releasing the block to the driver, and waits there. */
Test(host_work, nor_does_a_free_return_whose_block_another_thread_has_taken)
{
    start();
    CUdeviceptr block = allocate(MIB);
    submit_host_function();
    fake_fail(FAKE_RECORD, CUDA_ERROR_NOT_PERMITTED, 2);
    fake_during(FAKE_RECORD, take_what_is_pending, NULL);
    fake_during(FAKE_FREE_HOST, note_the_call, NULL);
    release(block);
    cr_assert(something_else_is_freed);
}

static CUdeviceptr part_behind_host_work(void)
{
    settings.device.buckets.policy = BUCKETS_SPLIT;
    start();
    CUdeviceptr block = allocate(MIB);
    submit_host_function();
    return block;
}

static void wait_a_while(void *unused)
{
    (void)unused;
    nanosleep(&(struct timespec){0, 20000000}, NULL);
}

Test(host_work, that_wait_is_counted)
{
    CUdeviceptr block = part_behind_host_work();
    fake_fail(FAKE_RECORD, CUDA_ERROR_NOT_PERMITTED, 2);
    fake_during(FAKE_FREE_HOST, wait_a_while, NULL);
    release(block);
    cr_assert_eq(thread_state.waited_ns, 0);
}

Test(host_work, the_error_of_that_free_is_the_programs)
{
    CUdeviceptr block = part_behind_host_work();
    struct context *c = context_record();
    atomic_store(&c->dying, true);
    fake_fail(FAKE_FREE_HOST, CUDA_ERROR_ILLEGAL_ADDRESS, 1);
    cr_assert_eq(pool_free(pool, block), CUDA_ERROR_ILLEGAL_ADDRESS);
    atomic_store(&c->dying, false);
    cr_assert_not(context_is_usable(c));
}

/* The work has failed, and no fence tells when it ends. */
Test(host_work, nor_is_the_error_of_the_work_lost)
{
    CUdeviceptr block = part_behind_host_work();
    fake_fail(FAKE_EVENT_QUERY, CUDA_ERROR_ILLEGAL_ADDRESS, 1);
    fake_fail(FAKE_FREE_HOST, CUDA_ERROR_ILLEGAL_ADDRESS, 1);
    cr_assert_eq(pool_free(pool, block), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static atomic_bool free_is_over;

static void release_and_tell(void *block)
{
    release_it(block);
    atomic_store(&free_is_over, true);
}

/* Frees the block while this thread records a fence outside of a free, for which nobody may wait.
 * The free waits all the same for the work before it. */
static void check_free_beside_a_record(CUdeviceptr block)
{
    struct errand freer;
    struct fence *fence = begin_record(false);
    send(&freer, release_and_tell, &block);
    usleep(50000);
    cr_assert_not(free_is_over);
    end_record(fence);
    usleep(50000);
    cr_assert_not(free_is_over);
    fake_finish(context);
    wait_for(&freer);
}

Test(host_work, beside_a_record_in_no_free_a_free_waits_by_a_fence_of_its_own)
{
    start();
    CUdeviceptr block = allocate(MIB);
    submit_host_function();
    check_free_beside_a_record(block);
    cr_assert(fake_is_allocated(block));
    cr_assert_eq(fake_calls(FAKE_RECORD), 2);
}

Test(host_work, and_so_does_the_free_of_a_part)
{
    CUdeviceptr block = part_behind_host_work();
    check_free_beside_a_record(block);
    cr_assert_eq(pending_bytes(), 0);
}

/* The driver would wait with its lock held. */
Test(host_work, and_so_does_one_that_the_driver_makes)
{
    static size_t bytes = MIB;
    start();
    in_another_thread(allocate_and_free_one, &bytes);
    CUdeviceptr shared = allocate(MIB), block = allocate(MIB);
    pool_share(pool, shared);
    fake_launch(context);
    release(block);
    check_free_beside_a_record(shared);
    cr_assert_not(fake_is_allocated(shared));
}

Test(host_work, a_record_that_does_not_end_is_waited_for_no_longer_than_a_second)
{
    start();
    CUdeviceptr block = allocate(MIB);
    submit_host_function();
    struct fence *fence = begin_record(false);
    double began = seconds_now();
    release(block);
    cr_assert_geq(seconds_now() - began, 1);
    cr_assert_not(fake_is_allocated(block), "the driver waits in its place");
    end_record(fence);
}

Test(host_work, a_free_in_a_streams_order_does_not_wait)
{
    start();
    CUdeviceptr block = allocate(MIB);
    submit_host_function();
    cr_assert_eq(pool_free_async(pool, driver->cuMemFreeAsync, block, fake_stream()), CUDA_SUCCESS);
    cr_assert_eq(pending_bytes(), MIB);
}

static void note_whether_it_waits(void *waits)
{
    *(bool *)waits = fake_calls(FAKE_EVENT_QUERY) > 0;
}

static void share_and_release(bool *waited)
{
    CUdeviceptr block = allocate(MIB);
    pool_share(pool, block);
    fake_during(FAKE_MEM_FREE, note_whether_it_waits, waited);
    release(block);
}

Test(host_work, beside_other_threads_the_pool_waits_before_the_driver_does)
{
    bool waited = false;
    static size_t bytes = MIB;
    start();
    share_and_release(&waited);
    cr_assert_not(waited, "a lone thread leaves it to the driver");
    in_another_thread(allocate_and_free_one, &bytes);
    share_and_release(&waited);
    cr_assert(waited);
}

static double freed_at;

static void note_the_time(void *unused)
{
    (void)unused;
    freed_at = seconds_now();
}

/* A wait in the driver would end no sooner, and hold its lock. */
Test(host_work, and_as_long_as_it_takes)
{
    static size_t bytes = MIB;
    start();
    in_another_thread(allocate_and_free_one, &bytes);
    CUdeviceptr block = allocate(MIB);
    pool_share(pool, block);
    wait_in_vain();
    gives_up_at = seconds_now() + 2;
    fake_during(FAKE_EVENT_QUERY, finish_in_the_end, NULL);
    fake_during(FAKE_MEM_FREE, note_the_time, NULL);
    release(block);
    cr_assert_geq(freed_at, gives_up_at);
}

static struct errand another;
static atomic_bool other_has_freed, it_had_freed_too_early;

static void free_another(void *block)
{
    pool_free(pool, *(CUdeviceptr *)block);
    atomic_store(&other_has_freed, true);
}

/* Once: the free that it makes asks the driver, too. */
static void have_another_freed(void *block)
{
    if (!atomic_exchange(&other_has_freed, true))
        in_another_thread(free_another, block);
}

static void note_what_is_pending(void *bytes)
{
    *(uint64_t *)bytes = pending_bytes();
}

/* Its owner may have taken a lock that the block's work needs, and want the driver's. */
Test(host_work, what_others_free_meanwhile_is_waited_for_before_the_driver_frees)
{
    static size_t bytes = MIB;
    uint64_t pending = UINT64_MAX;
    start();
    in_another_thread(allocate_and_free_one, &bytes);
    CUdeviceptr shared = allocate(MIB), block = allocate(MIB);
    pool_share(pool, shared);
    fake_during(FAKE_EVENT_QUERY, have_another_freed, &block);
    fake_during(FAKE_MEM_FREE, note_what_is_pending, &pending);
    release(shared);
    cr_assert(atomic_load(&other_has_freed));
    cr_assert_eq(pending, 0);
}

static void let_others_wait(void)
{
    nanosleep(&(struct timespec){0, 30000000}, NULL);
}

static void begin_another_free(void *block)
{
    send(&another, free_another, block);
    let_others_wait();
    atomic_store(&it_had_freed_too_early, atomic_load(&other_has_freed));
}

/* As it would for the driver's lock; then its work is over, too. */
Test(host_work, while_the_driver_frees_other_frees_wait)
{
    start();
    CUdeviceptr shared = allocate(MIB), block = allocate(MIB);
    pool_share(pool, shared);
    fake_during(FAKE_MEM_FREE, begin_another_free, &block);
    release(shared);
    wait_for(&another);
    cr_assert(atomic_load(&other_has_freed));
    cr_assert_not(atomic_load(&it_had_freed_too_early));
    cr_assert_eq(pending_bytes(), MIB);
}

/* The driver's free does not wait for that work, and there is nothing new to look for. */
Test(host_work, before_the_driver_frees_other_contexts_work_is_not_waited_for_again_and_again)
{
    static size_t bytes = MIB;
    start();
    CUcontext other = another_context(0);
    fake_set_current(context);
    CUdeviceptr shared = allocate(MIB);
    pool_share(pool, shared);
    fake_launch(other);
    in_another_thread(allocate_and_free_one, &bytes);
    uint64_t before = epoch_current(epochs());
    release(shared);
    cr_assert_eq(epoch_current(epochs()), before + 1);
    cr_assert_eq(pending_bytes(), MIB);
}

/* The failed free's stamp is no barrier's. */
Test(host_work, a_block_whose_free_has_failed_waits_for_no_other_context)
{
    settings.device.free_synchronizes = true;
    start();
    CUcontext other = another_context(0);
    fake_set_current(context);
    CUdeviceptr block = allocate(MIB);
    fake_launch(other);
    fake_fail(FAKE_CTX_SYNCHRONIZE, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    cr_assert_eq(pool_free(pool, block), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    close_epoch();
    pool_share(pool, block);
    release(block);
    cr_assert_not(fake_is_allocated(block));
}

static struct driver_free first_free, next_free;

/* As if another context's work kept what is pending so, or a capture had begun: the next one does
 * not wait for it. */
static void relieve_the_first(void)
{
    struct context *c = context_find(pool, context);
    atomic_store(&c->unusable, true);
    heap_begin_driver_free(pool, c, &next_free);
    heap_end_driver_free(c, &first_free);
    atomic_store(&c->unusable, false);
}

/* The driver would have served it in its turn: there may always be another one. */
Test(host_work, a_free_does_not_wait_for_the_drivers_that_come_after_it)
{
    start();
    struct context *c = context_find(pool, context);
    CUdeviceptr block = allocate(MIB);
    heap_begin_driver_free(pool, c, &first_free);
    send(&another, free_another, &block);
    while (pending_bytes() == 0)
        let_others_wait();
    let_others_wait();
    relieve_the_first();
    for (int i = 0; i < 100 && !atomic_load(&other_has_freed); i++)
        let_others_wait();
    cr_assert(atomic_load(&other_has_freed));
    heap_end_driver_free(c, &next_free);
    wait_for(&another);
    cr_assert_eq(counted().waits.frees, 1);
    cr_assert_geq(counted().waits.nanoseconds, 20000000);
}

/* The driver's lock may be the next one's first. */
Test(host_work, but_for_all_that_came_before_it_whichever_ends_first)
{
    start();
    struct context *c = context_find(pool, context);
    CUdeviceptr block = allocate(MIB);
    heap_begin_driver_free(pool, c, &first_free);
    heap_begin_driver_free(pool, c, &next_free);
    send(&another, free_another, &block);
    while (pending_bytes() == 0)
        let_others_wait();
    heap_end_driver_free(c, &next_free);
    let_others_wait();
    cr_assert_not(atomic_load(&other_has_freed));
    heap_end_driver_free(c, &first_free);
    wait_for(&another);
}

Test(host_work, a_free_that_waits_is_counted_with_its_time)
{
    start_with_budget(4 * MIB);
    CUdeviceptr first = allocate(3 * MIB), second = allocate(3 * MIB);
    release(first);
    submit_host_function();
    fake_during(FAKE_EVENT_QUERY, finish_the_work, NULL);
    release(second);
    struct report_counters c = counted();
    cr_assert_eq(c.waits.frees, 1);
    cr_assert_gt(c.waits.nanoseconds, 0);
    cr_assert_eq(c.requests, 2);
}

Test(host_work, without_it_a_free_waits_for_nothing)
{
    start_with_budget(4 * MIB);
    CUdeviceptr first = allocate(3 * MIB), second = allocate(3 * MIB);
    fake_launch(context);
    release(first);
    release(second);
    cr_assert_eq(pending_bytes(), 6 * MIB);
}

Test(host_work, where_memory_is_short_a_free_waits_for_what_would_be_missed)
{
    set_up_on(16 * GIB);
    start();
    CUdeviceptr block = allocate(7 * GIB);
    fake_launch(context);
    fake_during(FAKE_EVENT_QUERY, finish_the_work, NULL);
    release(block);
    cr_assert_eq(pending_bytes(), 0);
    allocate(12 * GIB);
}

/* 10 GiB are left: two requests of 5 GiB fit if what is pending is counted, and might not without.
 */
Test(host_work, where_memory_is_short_a_free_waits_for_what_several_requests_would_miss)
{
    set_up_on(16 * GIB);
    start();
    allocate(5 * GIB);
    allocate(512 * MIB);
    CUdeviceptr block = allocate(512 * MIB);
    fake_launch(context);
    fake_during(FAKE_EVENT_QUERY, finish_the_work, NULL);
    release(block);
    cr_assert_eq(pending_bytes(), 0);
}

Test(host_work, what_other_contexts_keep_pending_goes_to_the_driver_where_memory_is_short)
{
    set_up_on(16 * GIB);
    start();
    CUcontext other = fake_context(0);
    pool_context_created(pool, other);
    fake_launch(other);
    fake_set_current(context);
    CUdeviceptr block = allocate(7 * GIB);
    release(block);
    cr_assert_not(fake_is_allocated(block));
    cr_assert_eq(pending_bytes(), 0);
}

static void note_whether_frees_wait(void *wait)
{
    *(bool *)wait = atomic_load(&heap()->closed) & CLOSED_DRIVER_FREES;
}

/* The driver waits for this context's work there, too, and has its lock. */
Test(host_work, and_other_frees_wait_meanwhile)
{
    bool wait = false;
    set_up_on(16 * GIB);
    start();
    fake_launch(another_context(0));
    fake_set_current(context);
    CUdeviceptr block = allocate(7 * GIB);
    fake_during(FAKE_MEM_FREE, note_whether_frees_wait, &wait);
    release(block);
    cr_assert_not(fake_is_allocated(block));
    cr_assert(wait);
    cr_assert_not(atomic_load(&heap()->closed) & CLOSED_DRIVER_FREES);
}

Test(host_work, a_large_request_that_would_not_fit_with_it_either_makes_no_free_wait)
{
    set_up_on(16 * GIB);
    start();
    allocate(12 * GIB);
    CUdeviceptr block = allocate(GIB / 4);
    fake_launch(context);
    release(block);
    cr_assert_eq(pending_bytes(), GIB / 4);
}

/* ---- graphs ---- */

static CUgraphNodeType types[4];
static CUgraphNodeType child_types[4];
#define GRAPH      ((CUgraph)types)
#define CHILD      ((CUgraph)child_types)
#define EXECUTABLE ((CUgraphExec)0x100)

static CUresult get_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    CUgraphNodeType *of = graph == GRAPH ? types : child_types;
    for (size_t i = 0; nodes && i < *count; i++)
        nodes[i] = (CUgraphNode)&of[i];
    *count = 4;
    return CUDA_SUCCESS;
}

static CUresult get_type(CUgraphNode node, CUgraphNodeType *type)
{
    *type = *(CUgraphNodeType *)node;
    return CUDA_SUCCESS;
}

static CUresult get_child(CUgraphNode node, CUgraph *graph)
{
    (void)node;
    *graph = CHILD;
    return CUDA_SUCCESS;
}

static void start_with_graphs(void)
{
    driver->cuGraphGetNodes = get_nodes;
    driver->cuGraphNodeGetType = get_type;
    driver->cuGraphChildGraphNodeGetGraph = get_child;
    start();
}

static bool holds(CUgraphNodeType type)
{
    types[3] = type;
    host_graphs_add(pool, EXECUTABLE, GRAPH);
    return host_graphs_has(pool, EXECUTABLE);
}

Test(host_work, graphs_with_nodes_of_the_hosts_are_told_from_others)
{
    enum { HOST = 3, SEMAPHORE_WAIT = 9, BATCH = 12, CONDITIONAL = 13, UNKNOWN = 99 };
    start_with_graphs();
    cr_assert_not(holds(CU_GRAPH_NODE_TYPE_KERNEL));
    cr_assert_not(holds(CU_GRAPH_NODE_TYPE_EVENT_RECORD));
    cr_assert(holds(HOST));
    cr_assert_not(holds(CU_GRAPH_NODE_TYPE_MEMCPY), "a handle that comes again is another graph's");
    cr_assert(holds(SEMAPHORE_WAIT));
    cr_assert(holds(BATCH));
    cr_assert(holds(CONDITIONAL), "nobody can look into it");
    cr_assert(holds(UNKNOWN));
    cr_assert(host_graphs_remove(pool, EXECUTABLE));
    cr_assert_not(host_graphs_has(pool, EXECUTABLE));
    cr_assert_not(host_graphs_remove(pool, EXECUTABLE));
    host_graphs_put_back(pool, EXECUTABLE);
    cr_assert(host_graphs_has(pool, EXECUTABLE), "the driver has not destroyed it");
}

Test(host_work, nodes_that_allocate_are_noted_whatever_comes_before_them)
{
    start_with_graphs();
    cr_assert_not(holds(CU_GRAPH_NODE_TYPE_MEM_FREE));
    cr_assert_not(atomic_load(&pool->graphs_allocate));
    types[0] = 3;
    cr_assert(holds(CU_GRAPH_NODE_TYPE_MEM_ALLOC));
    types[0] = 0;
    cr_assert(atomic_load(&pool->graphs_allocate));
}

Test(host_work, and_so_are_graphs_inside_them)
{
    start_with_graphs();
    cr_assert_not(holds(CU_GRAPH_NODE_TYPE_GRAPH));
    child_types[0] = 3;
    cr_assert(holds(CU_GRAPH_NODE_TYPE_GRAPH));
    child_types[0] = 0;
}

Test(host_work, a_driver_that_tells_nothing_of_graphs_is_taken_for_the_worst)
{
    start();
    host_graphs_add(pool, EXECUTABLE, GRAPH);
    cr_assert(host_graphs_has(pool, EXECUTABLE));
    cr_assert_not(host_graphs_has(pool, (CUgraphExec)0x200));
}
