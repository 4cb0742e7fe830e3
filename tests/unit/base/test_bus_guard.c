/*
 * Mapped files that somebody truncates: core/base/bus_guard.h.
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/bus_guard.h"

#define BYTES ((size_t)1 << 16)

/* A file in memory, and its mapping. */
struct mapped {
    int fd;
    volatile char *memory;
};

static struct mapped map_file(void)
{
    struct mapped mapped = {.fd = memfd_create("guarded", MFD_CLOEXEC)};
    cr_assert(mapped.fd >= 0 && ftruncate(mapped.fd, (off_t)BYTES) == 0);
    mapped.memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, mapped.fd, 0);
    cr_assert_neq((void *)mapped.memory, MAP_FAILED);
    memset((void *)mapped.memory, 'x', BYTES);
    return mapped;
}

static struct mapped guarded_file(enum bus_guard_children children)
{
    struct mapped mapped = map_file();
    cr_assert(bus_guard((void *)mapped.memory, BYTES, children));
    return mapped;
}

Test(bus_guard, puts_memory_where_a_file_was)
{
    struct mapped one = guarded_file(BUS_GUARD_CHILDREN_HAVE_IT);
    struct mapped other = guarded_file(BUS_GUARD_CHILDREN_LACK_IT);
    cr_expect_not(bus_guard_has_replaced((void *)one.memory));
    cr_assert_eq(ftruncate(one.fd, 0), 0);
    one.memory[BYTES - 1] = 'y';
    cr_expect_eq(one.memory[BYTES - 1], 'y');
    cr_expect_eq(one.memory[0], 0);
    cr_expect(bus_guard_has_replaced((void *)one.memory));
    cr_expect_not(bus_guard_has_replaced((void *)other.memory), "the other one is as it was");
    cr_expect_eq(other.memory[0], 'x');
    cr_assert_eq(ftruncate(other.fd, 0), 0);
    cr_expect_eq(other.memory[0], 0);
    cr_expect(bus_guard_has_replaced((void *)&other.memory[BYTES / 2]));
}

Test(bus_guard, has_room_for_a_few_and_again_for_others)
{
    struct mapped files[BUS_GUARD_MAPPINGS], more = map_file();
    for (unsigned i = 0; i < BUS_GUARD_MAPPINGS; i++)
        files[i] = guarded_file(BUS_GUARD_CHILDREN_HAVE_IT);
    cr_expect_not(bus_guard((void *)more.memory, BYTES, BUS_GUARD_CHILDREN_HAVE_IT));
    cr_expect_not(bus_guard_replace((void *)more.memory));
    bus_guard_end((void *)files[1].memory);
    bus_guard_end((void *)more.memory);
    cr_expect(bus_guard((void *)more.memory, BYTES, BUS_GUARD_CHILDREN_HAVE_IT));
    cr_assert_eq(ftruncate(more.fd, 0), 0);
    cr_expect_eq(more.memory[0], 0);
    cr_expect_not(bus_guard_has_replaced((void *)files[1].memory));
}

/* ---- what is none of its business ---- */

static int signal_that_ends(void (*body)(struct mapped *), struct mapped *mapped)
{
    int status;
    pid_t child = fork();
    cr_assert_neq(child, -1);
    if (child == 0) {
        body(mapped);
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
}

static void touch(struct mapped *mapped)
{
    signal(SIGBUS, SIG_DFL);
    struct mapped guarded = guarded_file(BUS_GUARD_CHILDREN_HAVE_IT);
    guarded.memory[0] = 'y';
    mapped->memory[0] = 'y';
}

static void touch_after_end(struct mapped *mapped)
{
    signal(SIGBUS, SIG_DFL);
    bus_guard((void *)mapped->memory, BYTES, BUS_GUARD_CHILDREN_HAVE_IT);
    bus_guard_end((void *)mapped->memory);
    mapped->memory[0] = 'y';
}

static void exit_7(int signal)
{
    (void)signal;
    _exit(7);
}

static void touch_with_handler(struct mapped *mapped)
{
    signal(SIGBUS, exit_7);
    guarded_file(BUS_GUARD_CHILDREN_HAVE_IT);
    mapped->memory[0] = 'y';
}

static void be_sent(struct mapped *mapped)
{
    (void)mapped;
    signal(SIGBUS, exit_7);
    guarded_file(BUS_GUARD_CHILDREN_HAVE_IT);
    raise(SIGBUS);
    _exit(1);
}

Test(bus_guard, leaves_other_signals_to_the_program)
{
    struct mapped mapped = map_file();
    cr_assert_eq(ftruncate(mapped.fd, 0), 0);
    cr_expect_eq(signal_that_ends(touch, &mapped), SIGBUS);
    cr_expect_eq(signal_that_ends(touch_after_end, &mapped), SIGBUS);
    cr_expect_eq(signal_that_ends(touch_with_handler, &mapped), -7);
    cr_expect_eq(signal_that_ends(be_sent, &mapped), -7);
}

/* ---- children ---- */

static void touch_only(struct mapped *mapped)
{
    mapped->memory[0] = 'y';
}

/* In a child something else may be where the parent's mapping was. */
Test(bus_guard, knows_which_mappings_children_have)
{
    signal(SIGBUS, SIG_DFL);
    struct mapped with = guarded_file(BUS_GUARD_CHILDREN_HAVE_IT);
    struct mapped without = guarded_file(BUS_GUARD_CHILDREN_LACK_IT);
    cr_assert_eq(ftruncate(with.fd, 0), 0);
    cr_assert_eq(ftruncate(without.fd, 0), 0);
    cr_expect_eq(signal_that_ends(touch_only, &with), 0);
    cr_expect_eq(signal_that_ends(touch_only, &without), SIGBUS);
    touch_only(&without);
    cr_expect(bus_guard_has_replaced((void *)without.memory));
}

/* ---- threads ---- */

static struct mapped shared;

static void *count_up(void *place)
{
    for (int i = 0; i < 100000; i++)
        shared.memory[(uintptr_t)place * 4096]++;
    return NULL;
}

Test(bus_guard, is_for_all_threads)
{
    pthread_t threads[4];
    shared = guarded_file(BUS_GUARD_CHILDREN_HAVE_IT);
    for (uintptr_t i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, count_up, (void *)i);
    cr_assert_eq(ftruncate(shared.fd, 0), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    cr_expect(bus_guard_replace((void *)shared.memory));
    cr_expect_eq(shared.memory[0], 0);
}
