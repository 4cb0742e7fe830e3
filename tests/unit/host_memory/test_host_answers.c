/*
 * Pinned host memory: every answer is as it would be without the pool, and what was done is
 * counted.
 */
#include "host_fixture.h"

TestSuite(host_answers, .init = host_set_up, .fini = host_tear_down, .timeout = 30);

/* ---- the driver's turn ---- */

Test(host_answers, an_error_of_the_driver_is_handed_on)
{
    host_start();
    fake_fail(FAKE_HOST_ALLOC, CUDA_ERROR_LAUNCH_FAILED, 1);
    cr_assert_eq(try_to_allocate_host(MIB), CUDA_ERROR_LAUNCH_FAILED);
    cr_assert_eq(host_counted().failures.other, 1);
    cr_assert_eq(host_kept().live, 0);
}

Test(host_answers, what_is_no_request_is_the_drivers_to_answer)
{
    void *address = &address;
    host_start();
    allocate_and_release_host(1, MIB);
    synchronise();
    cr_assert_eq(pool_allocate_host(pool, NULL, MIB, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(pool_allocate_host(pool, &address, MIB, 8), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(pool_allocate_host(pool, &address, 0, 0), CUDA_SUCCESS);
    cr_assert_null(address);
    cr_assert_eq(pool_free_host(pool, NULL), CUDA_SUCCESS);
    cr_assert_eq(host_counted().requests, 1);
}

Test(host_answers, where_the_settings_want_no_pool_the_driver_answers)
{
    settings.host.enabled = false;
    host_start();
    void *block = allocate_host(MIB);
    release_host(block);
    cr_assert_not(fake_is_host_allocated(block));
    void *other = allocate_host(MIB);
    cr_assert_eq(fake_calls(FAKE_HOST_ALLOC), 2);
    cr_assert_eq(ask(other, 0).kind, POINTER_FOREIGN);
}

Test(host_answers, an_address_that_the_driver_gives_again_is_a_new_block)
{
    host_start();
    void *block = allocate_host(MIB);
    driver->cuMemFreeHost(block);
    fake_next_host_address(block);
    cr_assert_eq(allocate_host(4 * MIB), block);
    cr_assert_eq(host_kept().live, 4 * MIB);
    release_host(block);
    cr_assert_eq(host_kept().pending + host_kept().cached, 4 * MIB);
}

Test(host_answers, a_free_block_whose_address_the_driver_gives_again_is_not_handed_out)
{
    host_start();
    void *block = allocate_host(MIB);
    release_host(block);
    synchronise();
    driver->cuMemFreeHost(block);
    fake_next_host_address(block);
    cr_assert_eq(allocate_host(4 * MIB), block);
    cr_assert_eq(host_kept().cached, 0);
    cr_assert_neq(allocate_host(MIB), block);
}

static CUdeviceptr address_of(const void *memory)
{
    return (CUdeviceptr)(uintptr_t)memory;
}

Test(host_answers, an_address_that_another_call_gave_out_is_forgotten)
{
    host_start();
    void *live = allocate_host(MIB), *pending = allocate_host(KIB),
         *clean = allocate_host(64 * KIB);
    release_host(clean);
    synchronise();
    fake_launch(context);
    release_host(pending);
    void *const all[] = {live, pending, clean};
    for (unsigned i = 0; i < 3; i++) {
        driver->cuMemFreeHost(all[i]);
        pool_forget_address(pool, address_of(all[i]));
        cr_assert_eq(ask(all[i], 0).kind, POINTER_FOREIGN);
        cr_assert_eq(pool_free_host(pool, all[i]), CUDA_ERROR_INVALID_VALUE);
        pool_forget_address(pool, address_of(all[i]));
    }
    cr_assert_eq(host_kept().live + host_kept().cached + host_kept().pending, 0);
}

Test(host_answers, who_frees_past_the_pool_may_free_what_is_live_and_nothing_else)
{
    host_start();
    void *live = allocate_host(MIB), *freed = allocate_host(KIB);
    release_host(freed);
    cr_assert_not(pool_freed_outside(pool, address_of(freed)));
    cr_assert(pool_freed_outside(pool, address_of(live)));
    driver->cuMemFreeHost(live);
    cr_assert(pool_freed_outside(pool, address_of(live)), "nobody's here");
    cr_assert_eq(host_kept().live, 0);
}

/* ---- freeing ---- */

Test(host_answers, a_block_is_freed_once)
{
    host_start();
    void *block = allocate_host(MIB);
    release_host(block);
    cr_assert_eq(pool_free_host(pool, block), CUDA_ERROR_INVALID_VALUE);
    synchronise();
    cr_assert_eq(pool_free_host(pool, block), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(host_counted().frees, 1);
    cr_assert(fake_is_host_allocated(block));
}

/* Two threads free one block at about the same time, again and again. */
#define DUELS 2000u

static void *_Atomic contested;
static atomic_uint victories;
static pthread_barrier_t both;

static void free_what_another_frees(void *unused)
{
    (void)unused;
    for (unsigned i = 0; i < DUELS; i++) {
        pthread_barrier_wait(&both);
        if (pool_free_host(pool, atomic_load(&contested)) == CUDA_SUCCESS)
            atomic_fetch_add(&victories, 1);
        pthread_barrier_wait(&both);
    }
}

Test(host_answers, of_two_threads_that_free_a_block_one_does)
{
    struct errand rival;
    host_start();
    pthread_barrier_init(&both, NULL, 2);
    send(&rival, free_what_another_frees, NULL);
    for (unsigned i = 0; i < DUELS; i++) {
        atomic_store(&contested, allocate_host(KIB));
        pthread_barrier_wait(&both);
        if (pool_free_host(pool, atomic_load(&contested)) == CUDA_SUCCESS)
            atomic_fetch_add(&victories, 1);
        pthread_barrier_wait(&both);
        cr_assert_eq(atomic_load(&victories), i + 1);
    }
    wait_for(&rival);
}

Test(host_answers, an_interior_pointer_is_the_drivers_to_refuse)
{
    host_start();
    char *block = allocate_host(MIB);
    cr_assert_eq(pool_free_host(pool, block + 512), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(pool_free_host(pool, block + 1), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(ask(block, 0).kind, POINTER_LIVE);
}

Test(host_answers, an_unknown_pointer_is_the_drivers)
{
    void *foreign = NULL;
    host_start();
    cr_assert_eq(driver->cuMemHostAlloc(&foreign, MIB, 0), CUDA_SUCCESS);
    release_host(foreign);
    cr_assert_not(fake_is_host_allocated(foreign));
    cr_assert_eq(host_counted().frees, 0);
}

Test(host_answers, without_a_current_context_blocks_are_freed_and_none_is_allocated)
{
    host_start();
    void *block = allocate_host(MIB);
    fake_set_current(NULL);
    release_host(block);
    cr_assert(fake_is_host_allocated(block), "the pool has it");
    cr_assert_eq(try_to_allocate_host(MIB), CUDA_ERROR_INVALID_CONTEXT);
    fake_set_current(context);
    synchronise();
    cr_assert_eq(allocate_host(MIB), block);
}

Test(host_answers, in_a_context_that_has_ended_the_driver_answers)
{
    host_start();
    void *block = allocate_host(MIB);
    CUcontext dead = another_context(0);
    end_context(dead);
    fake_set_current(dead);
    cr_assert_eq(try_to_allocate_host(MIB), CUDA_ERROR_INVALID_CONTEXT);
    fake_fail(FAKE_FREE_HOST, CUDA_ERROR_INVALID_CONTEXT, 1);
    cr_assert_eq(pool_free_host(pool, block), CUDA_ERROR_INVALID_CONTEXT);
    cr_assert_eq(ask(block, 0).kind, POINTER_LIVE);
    fake_set_current(context);
    release_host(block);
}

Test(host_answers, a_free_that_the_driver_refuses_leaves_the_block_alive)
{
    settings.host.buckets.largest = (struct byte_size){.bytes = MIB};
    host_start();
    void *block = allocate_host(2 * MIB);
    fake_fail(FAKE_FREE_HOST, CUDA_ERROR_NOT_PERMITTED, 1);
    cr_assert_eq(pool_free_host(pool, block), CUDA_ERROR_NOT_PERMITTED);
    cr_assert_eq(ask(block, 0).kind, POINTER_LIVE);
    cr_assert_eq(host_counted().frees, 0);
    release_host(block);
    cr_assert_eq(ask(block, 0).kind, POINTER_FOREIGN);
}

/* ---- a context that ends ---- */

Test(host_answers, a_context_takes_its_blocks_with_it)
{
    host_start();
    void *live = allocate_host(MIB), *pending = allocate_host(KIB),
         *clean = allocate_host(64 * KIB);
    release_host(clean);
    synchronise();
    fake_launch(context);
    release_host(pending);
    end_context(context);
    cr_assert_eq(fake_calls(FAKE_FREE_HOST), 0);
    cr_assert_eq(ask(live, 0).kind, POINTER_FOREIGN);
    cr_assert_eq(ask(pending, 0).kind, POINTER_FOREIGN);
    cr_assert_eq(ask(clean, 0).kind, POINTER_FOREIGN);
    cr_assert_eq(atomic_load(&pool->machine_bytes), 0);
    context = another_context(0);
    cr_assert_eq(pool_free_host(pool, live), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(host_counted().frees, 3);
    cr_assert_eq(host_counted().evictions.context, 3);
}

Test(host_answers, while_a_context_ends_nothing_is_handed_out_or_taken_back)
{
    host_start();
    allocate_and_release_host(2, MIB);
    synchronise();
    void *block = allocate_host(MIB);
    uint64_t cached = host_kept().cached;
    host_memory.ending(context_record(), true);
    allocate_host(MIB);
    cr_assert_eq(host_kept().cached, cached);
    release_host(block);
    cr_assert_eq(host_kept().cached + host_kept().pending, cached);
    host_memory.ending(context_record(), false);
    allocate_host(MIB);
    cr_assert_eq(host_kept().cached, cached - MIB);
}

Test(host_answers, a_handle_that_comes_back_is_a_new_context)
{
    host_start();
    allocate_and_release_host(4, MIB);
    end_context(context);
    context = fake_context_at(context, 0);
    pool_context_created(pool, context);
    void *block = allocate_host(MIB);
    cr_assert_eq(host_counted().misses, 5);
    release_host(block);
    cr_assert_eq(allocate_host(MIB), block);
}

Test(host_answers, a_context_that_does_not_end_keeps_its_blocks)
{
    host_start();
    void *block = allocate_host(MIB);
    release_host(block);
    synchronise();
    pool_context_ended(pool, pool_context_ending(pool, context), CONTEXT_LIVES);
    cr_assert_eq(allocate_host(MIB), block);
}

/* ---- what a program is told of a pointer ---- */

Test(host_answers, a_pointer_has_the_size_that_was_asked_for)
{
    host_start();
    void *block = allocate_host(1000);
    struct pointer_answer answer = ask(block, 999);
    cr_assert_eq(answer.kind, POINTER_LIVE);
    cr_assert_eq(answer.base, address_of(block));
    cr_assert_eq(answer.bytes, 1000);
    cr_assert(answer.of_host);
    cr_assert_eq(ask(block, 1000).kind, POINTER_HIDDEN);
    cr_assert_eq(ask(block, 1024).kind, POINTER_FOREIGN);
    release_host(block);
    cr_assert_eq(ask(block, 0).kind, POINTER_HIDDEN);
    synchronise();
    cr_assert_eq(ask(block, 999).kind, POINTER_HIDDEN);
    cr_assert_eq(allocate_host(600), block);
    cr_assert_eq(ask(block, 0).bytes, 600);
    cr_assert_eq(ask(block, 600).kind, POINTER_HIDDEN);
}

static uint64_t buffer_id(const void *memory)
{
    struct pointer_answer answer = ask(memory, 0);
    cr_assert_eq(answer.kind, POINTER_LIVE);
    return pool_buffer_id(pool, &answer);
}

Test(host_answers, each_life_of_a_block_has_a_number_of_its_own)
{
    host_start();
    void *block = allocate_host(MIB);
    uint64_t first = buffer_id(block);
    cr_assert_neq(first, 0);
    cr_assert_eq(buffer_id(block), first);
    cr_assert_neq(buffer_id(allocate_host(MIB)), first);
    release_host(block);
    synchronise();
    cr_assert_eq(allocate_host(MIB), block);
    cr_assert_neq(buffer_id(block), first);
}

Test(host_answers, a_block_that_others_were_told_of_goes_to_the_driver)
{
    host_start();
    void *block = allocate_host(MIB);
    pool_share(pool, address_of(block) + 5);
    release_host(block);
    cr_assert_not(fake_is_host_allocated(block));
    cr_assert_eq(host_counted().evictions.free, 1);
}

Test(host_answers, what_the_driver_has_made_is_not_registered)
{
    host_start();
    cr_assert_not(pool_has_registered(pool, allocate_host(4 * MIB)));
}

/* ---- counters ---- */

Test(host_answers, the_counters_add_up)
{
    host_start();
    for (unsigned i = 0; i < 200; i++) {
        void *one = allocate_host(1000 + 700 * (i % 7)), *other = allocate_host(3 * KIB);
        fake_launch(context);
        release_host(one);
        if (i % 3 == 0)
            fake_finish(context);
        if (i % 5 == 0)
            synchronise();
        release_host(other);
    }
    allocate_host(5000);
    struct report_counters c = host_counted();
    cr_assert_eq(c.requests, 401);
    cr_assert_eq(hits_of(&c) + c.misses, 401);
    cr_assert_eq(c.frees, 400);
    cr_assert_eq(c.live_bytes, 5 * KIB);
    cr_assert_eq(c.live_bytes + c.cached_bytes + c.pending_bytes, fake_host_bytes());
    cr_assert_eq(c.requested_bytes, 200 * 3 * KIB + 200 * 1000 + 5000 + 700 * (28 * 21 + 6));
    cr_assert_geq(c.rounded_bytes, c.requested_bytes);
    cr_assert_geq(c.peak.reserved_bytes, fake_host_bytes());
    cr_assert_eq(c.driver.calls, fake_calls(FAKE_HOST_ALLOC) + fake_calls(FAKE_FREE_HOST));
}

Test(host_answers, a_size_has_a_row_whatever_the_flags)
{
    static struct report report;
    host_start();
    allocate_host(600);
    allocate_flags(700, CU_MEMHOSTALLOC_PORTABLE);
    allocate_host(5000);
    cr_assert_eq(pool_report(pool, &report), 0);
    const struct report_kind *kind = report.devices[0].kinds;
    while (strcmp(kind->kind, "host") != 0)
        kind++;
    uint64_t requests = 0;
    for (size_t i = 0; i < kind->bucket_count; i++)
        requests += kind->buckets[i].bytes == 1024 ? kind->buckets[i].counters.requests : 0;
    cr_assert_eq(requests, 2);
    cr_assert_eq(kind->buckets[0].bytes, 1024);
    cr_assert_eq(kind->buckets[kind->bucket_count - 1].bytes, 5 * KIB);
    report_free(&report);
}

static struct host_shard *shard_of_another;

static void find_own_shard(void *unused)
{
    (void)unused;
    shard_of_another = host_shard_of_thread(pool, host_heap());
}

Test(host_answers, what_is_live_is_never_less_than_nothing)
{
    host_start();
    in_another_thread(find_own_shard, NULL);
    void *block = allocate_host(MIB);
    /* As seen by a thread that has looked at this shard, and now comes to where another thread has
     * freed a block that was allocated here since. */
    counter_subtract(&shard_of_another->live_requested, 2 * MIB);
    cr_assert_eq(host_sum(host_heap()).live_requested, 0);
    void *other = allocate_host(KIB);
    counter_add(&shard_of_another->live_requested, 2 * MIB);
    cr_assert_leq(host_counted().peak.live_bytes, MIB + KIB);
    release_host(block);
    release_host(other);
}
