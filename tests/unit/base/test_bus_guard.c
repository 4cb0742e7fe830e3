/*
 * Mapped files that somebody truncates: core/base/bus_guard.h.
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
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

static void block_bus_error(void)
{
    sigset_t bus_error;
    sigemptyset(&bus_error);
    sigaddset(&bus_error, SIGBUS);
    sigprocmask(SIG_BLOCK, &bus_error, NULL);
}

static void touch_while_blocked(struct mapped *mapped)
{
    block_bus_error();
    bus_guard_thread();
    mapped->memory[0] = 'y';
}

static bool is_pending(void)
{
    sigset_t pending;
    sigpending(&pending);
    return sigismember(&pending, SIGBUS) == 1;
}

/* One that is sent waits, as it would have; and the file is guarded again once that is over. */
static void be_sent_while_blocked(struct mapped *mapped)
{
    block_bus_error();
    struct mapped guarded = guarded_file(BUS_GUARD_CHILDREN_HAVE_IT);
    bus_guard_thread();
    raise(SIGBUS);
    kill(getpid(), SIGBUS);
    sigset_t bus_error;
    sigemptyset(&bus_error);
    sigaddset(&bus_error, SIGBUS);
    bool came = is_pending() && sigwaitinfo(&bus_error, NULL) == SIGBUS;
    while (is_pending())
        sigwaitinfo(&bus_error, NULL);
    if (!came || ftruncate(guarded.fd, 0) != 0)
        _exit(8);
    bus_guard_thread();
    guarded.memory[0] = 'y';
    mapped->memory[0] = 'y';
}

Test(bus_guard, unblocks_the_signal_where_it_is_needed)
{
    signal(SIGBUS, SIG_DFL);
    struct mapped with = guarded_file(BUS_GUARD_CHILDREN_HAVE_IT);
    cr_assert_eq(ftruncate(with.fd, 0), 0);
    cr_expect_eq(signal_that_ends(touch_while_blocked, &with), 0);
    if (!getenv("RUN_WITH") ||
        !*getenv("RUN_WITH")) /* an emulator takes SIGBUS that is sent for a fault of its own */
        cr_expect_eq(signal_that_ends(be_sent_while_blocked, &with), 0);
}

static void ask_what_is_blocked(struct mapped *mapped)
{
    (void)mapped;
    block_bus_error();
    bus_guard_thread();
    sigset_t blocked;
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    _exit(sigismember(&blocked, SIGBUS) == 1 ? 7 : 8);
}

Test(bus_guard, leaves_it_blocked_where_nothing_is_guarded)
{
    cr_expect_eq(signal_that_ends(ask_what_is_blocked, NULL), -7);
}

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

/* ---- handlers that call each other ---- */

static struct sigaction from_before;
static volatile sig_atomic_t came, was_blocked, other_was_blocked;

static void first_handler(int signal)
{
    sigset_t blocked;
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    came = signal;
    was_blocked = sigismember(&blocked, SIGUSR1) == 1 && sigismember(&blocked, SIGBUS) == 1;
    other_was_blocked = sigismember(&blocked, SIGUSR2) == 1;
}

static void last_handler(int signal, siginfo_t *info, void *context)
{
    from_before.sa_sigaction(signal, info, context);
}

Test(bus_guard, a_handler_from_before_runs_with_what_it_has_asked_to_be_blocked)
{
    struct sigaction first = {.sa_handler = first_handler};
    struct sigaction last = {.sa_sigaction = last_handler, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigemptyset(&first.sa_mask);
    sigaddset(&first.sa_mask, SIGUSR1);
    cr_assert_eq(sigaction(SIGBUS, &first, NULL), 0);
    guarded_file(BUS_GUARD_CHILDREN_HAVE_IT);
    cr_assert_eq(sigaction(SIGBUS, NULL, &from_before), 0);
    cr_expect_eq(sigismember(&from_before.sa_mask, SIGUSR1), 1);
    cr_assert_eq(sigaction(SIGBUS, &last, NULL), 0);
    raise(SIGBUS);
    cr_expect_eq(came, SIGBUS);
    cr_expect(was_blocked);
    /* ThreadSanitizer runs every handler with all signals blocked. */
#if !defined(__SANITIZE_THREAD__)
    cr_expect_not(other_was_blocked);
#endif
    sigset_t blocked;
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    cr_expect_not(sigismember(&blocked, SIGUSR1));
}
