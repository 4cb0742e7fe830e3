/*
 * Pinned host memory: contexts that end while threads are in the middle of a call.
 */
#include "host_fixture.h"

/* The driver is asked about what has just died, and refuses: that is no misuse here. */
TestSuite(host_ends, .init = host_set_up, .fini = host_check, .timeout = 60);

static void *_Atomic shared_context;
static atomic_bool stop_using_it;

/* Whatever comes of it: the context may end at any moment, also before the driver is asked
 * something about it, which then refuses. */
static void use_the_shared_context(void *unused)
{
    (void)unused;
    while (!atomic_load(&stop_using_it)) {
        void *blocks[4] = {NULL};
        fake_set_current((CUcontext)atomic_load(&shared_context));
        for (unsigned i = 0; i < 4; i++)
            pool_allocate_host(pool, &blocks[i], KIB, 0);
        for (unsigned i = 0; i < 4; i++)
            if (blocks[i])
                pool_free_host(pool, blocks[i]);
    }
}

Test(host_ends, contexts_end_while_threads_allocate_in_them_and_free)
{
    struct errand users[3];
    host_start();
    atomic_store(&shared_context, (void *)context);
    for (unsigned i = 0; i < 3; i++)
        send(&users[i], use_the_shared_context, NULL);
    uint64_t until = monotonic_now() + 2 * UINT64_C(1000000000);
    unsigned ends = 0;
    while (monotonic_now() < until) {
        let_time_pass();
        CUcontext old = context;
        context = another_context(0);
        atomic_store(&shared_context, (void *)context);
        end_context(old);
        ends++;
    }
    atomic_store(&stop_using_it, true);
    for (unsigned i = 0; i < 3; i++)
        wait_for(&users[i]);
    cr_assert_gt(ends, 10);
}
