/*
 * What the machine and its control groups allow is read as the pool starts.
 */
#include "core/host_memory/host_heap.h"
#include "pool_fixture.h"

TestSuite(host_ready, .init = set_up, .fini = tear_down, .timeout = 20);

static void *allocate_pinned(size_t bytes)
{
    void *address = NULL;
    cr_assert_eq(pool_allocate_host(pool, &address, bytes, 0), CUDA_SUCCESS);
    return address;
}

Test(host_ready, before_the_first_context_all_is_known)
{
    start_without_context();
    const struct host_memory *memory = host_memory_of(pool);
    cr_assert_gt(memory->machine.memory_bytes, 0);
    cr_assert_gt(memory->cached_cap, 0);
    cr_assert_eq(memory->growth_budget, 32 * MIB);
    cr_assert_gt(memory->machine.kept_count, 0);
}

Test(host_ready, each_context_is_made_ready)
{
    start();
    CUcontext first = context;
    cr_assert_eq(pool_free_host(pool, allocate_pinned(MIB)), CUDA_SUCCESS);
    context = another_context(0);
    void *address = allocate_pinned(MIB);
    cr_assert(host_heap_is_ready(host_heap_of(context_record())));
    cr_assert_eq(pool_free_host(pool, address), CUDA_SUCCESS);
    context = first;
    fake_set_current(context);
}

static void pin_one(void *unused)
{
    (void)unused;
    cr_assert_eq(pool_free_host(pool, allocate_pinned(64 * KIB)), CUDA_SUCCESS);
}

Test(host_ready, threads_that_are_the_first_at_the_same_time_wait_for_the_one_that_reads)
{
    struct errand errands[8];
    start();
    for (int i = 0; i < 8; i++)
        send(&errands[i], pin_one, NULL);
    for (int i = 0; i < 8; i++)
        wait_for(&errands[i]);
    cr_assert(host_heap_is_ready(host_heap_of(context_record())));
}
