/*
 * Looking through the objects that the process has loaded, and forks beside that.
 */
#include "core/contexts/surroundings.h"

#include "pool_fixture.h"

#include <link.h>
#include <pthread.h>
#include <unistd.h>

#include "core/base/clock.h"

TestSuite(surroundings, .init = set_up, .fini = tear_down, .timeout = 60);

/* The child could never get the dynamic linker's lock that a look takes. */
Test(surroundings, nobody_looks_while_a_thread_forks)
{
    start();
    cr_assert(look_at_objects(pool));
    cr_assert(barriers_are_open(pool));
    pool_fork_coming(pool);
    pool_fork_coming(pool);
    cr_assert_not(look_at_objects(pool));
    cr_assert_not(barriers_are_open(pool), "what was loaded is not known");
    pool_fork_over(pool);
    cr_assert_not(look_at_objects(pool), "another thread forks still");
    pool_fork_over(pool);
    cr_assert(look_at_objects(pool));
    cr_assert(barriers_are_open(pool));
}

/* The core's call comes here (--wrap, see the Makefile). */
static pthread_barrier_t is_looking, may_end;
static _Thread_local bool slow;

typedef int visit(struct dl_phdr_info *, size_t, void *);
int __real_dl_iterate_phdr(visit *callback, void *argument);
int __wrap_dl_iterate_phdr(visit *callback, void *argument);

int __wrap_dl_iterate_phdr(visit *callback, void *argument)
{
    if (slow) {
        pthread_barrier_wait(&is_looking);
        pthread_barrier_wait(&may_end);
    }
    return __real_dl_iterate_phdr(callback, argument);
}

static void *look(void *unused)
{
    slow = true;
    cr_assert(look_at_objects(pool));
    return unused;
}

static pthread_t look_slowly(void)
{
    pthread_t thread;
    pthread_barrier_init(&is_looking, NULL, 2);
    pthread_barrier_init(&may_end, NULL, 2);
    cr_assert_eq(pthread_create(&thread, NULL, look, NULL), 0);
    pthread_barrier_wait(&is_looking);
    return thread;
}

static void *let_end(void *unused)
{
    usleep(20000);
    pthread_barrier_wait(&may_end);
    return unused;
}

static bool fork_waits_for_the_look(uint64_t *took)
{
    pthread_t other, thread = look_slowly();
    cr_assert_eq(pthread_create(&other, NULL, let_end, NULL), 0);
    uint64_t began = monotonic_now();
    pool_fork_coming(pool);
    *took = monotonic_now() - began;
    bool waited = atomic_load(&pool->looking) == 0;
    pthread_join(thread, NULL);
    pthread_join(other, NULL);
    pool_fork_over(pool);
    return waited;
}

Test(surroundings, a_fork_waits_for_who_looks)
{
    unsigned tries = 0;
    uint64_t took;
    bool waited;
    start();
    do
        waited = fork_waits_for_the_look(&took);
    while (is_tried_again(waited, took, &tries));
    cr_expect(waited);
}

/* It may be inside a look itself. */
Test(surroundings, but_not_for_long)
{
    start();
    pthread_t thread = look_slowly();
    uint64_t began = monotonic_now();
    pool_fork_coming(pool);
    cr_assert_geq(monotonic_now() - began, UINT64_C(100000000));
    cr_assert_eq(atomic_load(&pool->looking), 1);
    pthread_barrier_wait(&may_end);
    pthread_join(thread, NULL);
    pool_fork_over(pool);
}
