/*
 * Pinned host memory: how long an allocation waits that may have a new block; and a free, for work
 * that only the host ends, after a wait in vain.
 */
#include <stdatomic.h>
#include <unistd.h>

#include "core/contexts/epoch.h"
#include "host_fixture.h"

TestSuite(host_waits, .init = host_set_up, .fini = host_tear_down, .timeout = 20);

static void stay_in_the_driver(void *unused)
{
    (void)unused;
    usleep(900000);
}

Test(host_waits, however_long_new_blocks_have_taken_a_fence_is_waited_for_a_moment)
{
    host_start_with_budget(8 * MIB);
    fake_during(FAKE_HOST_ALLOC, stay_in_the_driver, NULL);
    release_host_under_work(2 * MIB);
    fake_during(FAKE_HOST_ALLOC, NULL, NULL);
    uint64_t started = monotonic_now();
    allocate_host(2 * MIB);
    cr_assert_lt(monotonic_now() - started, STALLED_WAIT_NANOSECONDS / 2);
    cr_assert_eq(host_counted().misses, 2);
    fake_finish(context);
}

static void submit_host_function(void)
{
    struct host_submission submission = host_work_begin(pool, NULL);
    fake_launch(context);
    host_work_end(&submission);
}

static _Atomic bool is_released;

static void release_it(void *block)
{
    is_released = false;
    release_host(block);
    is_released = true;
}

/* Whether a free of the block goes on for longer than a wait that is given up. The context's work
 * is over by the end of this. */
static bool free_waits_on(void *block)
{
    struct errand errand;
    send(&errand, release_it, block);
    usleep((useconds_t)(STALLED_WAIT_NANOSECONDS / 1000 + 400000));
    bool waits_on = !is_released;
    fake_finish(context);
    wait_for(&errand);
    return waits_on;
}

/* An allocation of so many bytes has waited in vain for the context's work. */
static void *wait_in_vain(void)
{
    host_start_with_budget(0);
    release_host_under_work(MIB);
    return allocate_host(MIB);
}

Test(host_waits, after_one_in_vain_known_work_is_waited_for_as_long_as_it_takes)
{
    void *block = wait_in_vain();
    fake_finish(context);
    submit_host_function();
    cr_assert(free_waits_on(block));
}

Test(host_waits, also_while_what_that_was_for_goes_on)
{
    void *block = wait_in_vain();
    submit_host_function();
    cr_assert(free_waits_on(block));
}

Test(host_waits, what_a_free_has_given_up_on_no_other_one_waits_for_without_end)
{
    wait_in_vain();
    void *block = allocate_host(KIB);
    CUdeviceptr of_device = allocate(MIB);
    fake_finish(context);
    synchronise();
    fake_launch(context);
    release_host(block);
    uint64_t started = monotonic_now();
    release(of_device);
    cr_assert_geq(monotonic_now() - started, STALLED_WAIT_NANOSECONDS);
    cr_assert_eq(pending_bytes(), MIB);
    fake_finish(context);
}

static bool something_else_is_freed;

static void note_the_call(void *unused)
{
    (void)unused;
    something_else_is_freed = true;
}

Test(host_waits, where_a_context_may_be_ending_a_free_waits_by_that_of_something_else)
{
    host_start_with_budget(MIB);
    void *block = allocate_host(KIB);
    struct context *c = context_find(pool, context);
    submit_host_function();
    fake_during(FAKE_FREE_HOST, note_the_call, NULL);
    atomic_store(&c->dying, true);
    release_host(block);
    atomic_store(&c->dying, false);
    cr_assert(something_else_is_freed);
    cr_assert(fake_is_host_allocated(block));
    fake_finish(context);
}

/* Nobody may wait for a fence that is recorded outside of a free. */
Test(host_waits, beside_a_record_in_no_free_a_free_waits_by_a_fence_of_its_own)
{
    struct errand errand;
    host_start_with_budget(MIB);
    void *block = allocate_host(KIB);
    struct context *c = context_find(pool, context);
    submit_host_function();
    context_lock(c);
    struct fence *fence = epoch_begin_close(c, false);
    context_unlock(c);
    send(&errand, release_it, block);
    usleep(50000);
    cr_assert_not(is_released);
    cr_assert_eq(epoch_record(pool, c, fence), CUDA_SUCCESS);
    usleep(50000);
    cr_assert_not(is_released);
    fake_finish(context);
    wait_for(&errand);
}
