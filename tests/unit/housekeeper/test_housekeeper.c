/*
 * When the housekeeper's thread is made, and what it takes for idle: its looks are made by the
 * test, at times that the test chooses.
 */
#include "pool_fixture.h"

#include <errno.h>
#include <link.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>

#include "core/base/clock.h"
#include "core/contexts/kind.h"
#include "core/device_memory/release.h"
#include "core/housekeeper/house.h"
#include "core/housekeeper/housekeeper.h"

#define SECOND UINT64_C(1000000000)

/* ---- threads are not made, but counted ---- */

static unsigned creations;
static int answer_to_creations; /* 0, or an error */
static sigset_t signals_of_thread;
static size_t stack_of_thread;

static int create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *),
                  void *argument)
{
    (void)thread, (void)body;
    creations++;
    cr_assert_eq(argument, pool);
    sigprocmask(SIG_SETMASK, NULL, &signals_of_thread);
    pthread_attr_getstacksize(attributes, &stack_of_thread);
    return answer_to_creations;
}

static void set_up_to_count(void)
{
    set_up();
    settings.neighbours.enabled = true;
    thread_functions.create = create;
    thread_functions.set_stack_size = pthread_attr_setstacksize;
    creations = 0;
    answer_to_creations = 0;
}

/* No device of the fake driver's has a UUID, so that the pool finds no place on the user's board.
 */
TestSuite(housekeeper, .init = set_up_to_count, .fini = tear_down, .timeout = 60);

static uint32_t phase(void)
{
    return atomic_load(&pool->housekeeping.phase);
}

/* More than HOUSEKEEPER_BYTES. */
static void take_and_free_much(void)
{
    release(allocate(64 * MIB));
}

/* ---- when it is made ---- */

Test(housekeeper, little_memory_needs_no_thread)
{
    start();
    for (int i = 0; i < 60; i++)
        release(allocate(64 * KIB));
    allocate(HOUSEKEEPER_BYTES / 2);
    cr_assert_eq(creations, 0);
    cr_assert_eq(phase(), HOUSEKEEPING_NONE);
}

Test(housekeeper, little_of_a_groups_limit_needs_a_thread)
{
    settings.limits.group_bytes = (struct byte_size){.bytes = 1024 * MIB};
    start();
    allocate(64 * KIB);
    cr_assert_eq(creations, 1);
    cr_assert_eq(phase(), HOUSEKEEPING_MADE);
}

Test(housekeeper, is_made_once_as_much_is_taken_whether_or_not_it_is_free)
{
    start();
    allocate(HOUSEKEEPER_BYTES + MIB);
    cr_assert_eq(creations, 1);
    cr_assert_eq(phase(), HOUSEKEEPING_MADE);
    take_and_free_much();
    cr_assert_eq(creations, 1);
}

Test(housekeeper, is_not_made_where_the_settings_want_none)
{
    settings.neighbours.enabled = false;
    start();
    take_and_free_much();
    cr_assert_eq(creations, 0);
}

Test(housekeeper, has_all_signals_blocked_but_faults_and_the_program_has_its_own)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS};
    sigset_t own, none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    start();
    take_and_free_much();
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        cr_assert_not(sigismember(&signals_of_thread, faults[i]));
    cr_assert(sigismember(&signals_of_thread, SIGTERM));
    cr_assert(sigismember(&signals_of_thread, SIGALRM));
    cr_assert(sigismember(&signals_of_thread, SIGRTMIN));
    sigprocmask(SIG_SETMASK, NULL, &own);
    cr_assert_not(sigismember(&own, SIGTERM));
}

Test(housekeeper, has_a_small_stack)
{
    start();
    take_and_free_much();
    cr_assert_geq(stack_of_thread, 256 * KIB);
    cr_assert_leq(stack_of_thread, 4 * MIB);
}

/* The housekeeper's call comes here (--wrap, see the Makefile), with a lock of the dynamic
 * linker's.
 */
static unsigned looks, looks_that_forks_wait_for;

typedef int visit(struct dl_phdr_info *, size_t, void *);
int __real_dl_iterate_phdr(visit *callback, void *argument);
int __wrap_dl_iterate_phdr(visit *callback, void *argument);

int __wrap_dl_iterate_phdr(visit *callback, void *argument)
{
    looks++;
    looks_that_forks_wait_for += pool && atomic_load(&pool->looking) != 0;
    return __real_dl_iterate_phdr(callback, argument);
}

Test(housekeeper, is_not_made_with_a_lock_that_a_fork_would_copy)
{
    start();
    looks = looks_that_forks_wait_for = 0;
    take_and_free_much();
    cr_assert_eq(creations, 1);
    cr_assert_geq(looks, 1);
    cr_assert_eq(looks_that_forks_wait_for, looks);
    cr_assert_eq(atomic_load(&pool->looking), 0);
}

/* The C library's lock of exit's handlers would be locked in the child for ever. */
Test(housekeeper, wants_to_be_told_of_exit_after_a_fork_and_not_beside_it)
{
    start();
    pool_fork_coming(pool);
    take_and_free_much();
    cr_assert_eq(creations, 0);
    cr_assert_eq(phase(), HOUSEKEEPING_NONE);
    pool_fork_over(pool);
    take_and_free_much();
    cr_assert_eq(creations, 1);
    cr_assert_eq(phase(), HOUSEKEEPING_MADE);
}

Test(housekeeper, is_made_beside_a_fork_without_a_look_at_objects)
{
    pthread_attr_t usual;
    size_t usual_bytes;
    pthread_attr_init(&usual);
    pthread_attr_getstacksize(&usual, &usual_bytes);
    answer_to_creations = EAGAIN;
    start();
    take_and_free_much();
    atomic_store(&pool->housekeeping.retry_at, monotonic_now());
    answer_to_creations = 0;
    creations = 0;
    looks = 0;
    pool_fork_coming(pool);
    take_and_free_much();
    pool_fork_over(pool);
    cr_assert_eq(looks, 0);
    cr_assert_eq(creations, 1);
    cr_assert_eq(stack_of_thread, usual_bytes);
}

Test(housekeeper, a_stack_that_is_too_small_is_not_all_that_is_tried)
{
    answer_to_creations = EINVAL;
    start();
    take_and_free_much();
    cr_assert_eq(creations, 2);
    cr_assert_eq(phase(), HOUSEKEEPING_CANNOT);
}

Test(housekeeper, where_no_thread_can_be_made_it_is_not_tried_again_soon)
{
    answer_to_creations = EAGAIN;
    start();
    errno = 0;
    for (int i = 0; i < 100; i++)
        take_and_free_much();
    cr_assert_eq(errno, 0);
    cr_assert_eq(creations, 1);
    cr_assert_eq(phase(), HOUSEKEEPING_CANNOT);
    atomic_store(&pool->housekeeping.retry_at, monotonic_now());
    answer_to_creations = 0;
    take_and_free_much();
    cr_assert_eq(creations, 2);
    cr_assert_eq(phase(), HOUSEKEEPING_MADE);
}

Test(housekeeper, a_sandbox_that_was_entered_since_is_not_tried)
{
    struct sock_filter allow[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {sizeof allow / sizeof allow[0], allow};
    start();
    cr_assert_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        cr_skip_test("system calls cannot be filtered here");
    take_and_free_much();
    cr_assert_eq(creations, 0);
    cr_assert_eq(phase(), HOUSEKEEPING_CANNOT);
}

Test(housekeeper, is_not_made_at_the_end_of_the_process)
{
    start();
    pool_ends(pool);
    take_and_free_much();
    cr_assert_eq(creations, 0);
}

Test(housekeeper, is_not_made_in_another_process)
{
    start();
    pool->process++;
    take_and_free_much();
    cr_assert_eq(creations, 0);
    pool->process--;
    pool_forget(pool);
    take_and_free_much();
    cr_assert_eq(creations, 0);
}

/* ---- when it has ended, the next free makes it again ---- */

/* What the thread does before it ends. */
static bool end_thread(void)
{
    bool any = false;
    atomic_store(&pool->housekeeping.phase, HOUSEKEEPING_WATCHED);
    for (const struct kind *const *kind = pool->kinds; *kind; kind++)
        any |= (*kind)->watch && (*kind)->watch(pool);
    return any;
}

Test(housekeeper, the_next_free_of_a_cache_makes_it_again)
{
    start();
    CUdeviceptr blocks[3];
    for (int i = 0; i < 3; i++)
        blocks[i] = allocate(4 * MIB);
    release(blocks[0]);
    synchronise();
    cr_assert(end_thread());
    blocks[0] = allocate(4 * MIB);
    cr_assert_not(end_thread());
    cr_assert_eq(creations, 1);
    release(blocks[0]);
    cr_assert_eq(creations, 2);
    release(blocks[1]);
    cr_assert_eq(creations, 2);
}

/* The driver has taken what was pending, so that the epoch has not ended. */
Test(housekeeper, so_does_the_next_free_in_the_same_epoch)
{
    start();
    CUdeviceptr one = allocate(4 * MIB), other = allocate(4 * MIB);
    allocate(4 * MIB);
    release(one);
    cr_assert_eq(creations, 1);
    heap_free_pending(pool, context_record());
    cr_assert_not(end_thread());
    release(other);
    cr_assert_eq(creations, 2);
}

Test(housekeeper, so_does_the_first_free_of_a_thread_that_had_no_cache)
{
    static size_t bytes = MIB;
    start();
    allocate(64 * MIB);
    cr_assert_not(end_thread());
    in_another_thread(allocate_and_free_one, &bytes);
    cr_assert_eq(creations, 2);
}

/* ---- what is idle ---- */

static uint64_t look(uint64_t at)
{
    return release_idle(pool, device(), at);
}

Test(housekeeper, what_a_thread_leaves_in_its_cache_goes_back_when_its_time_has_come)
{
    start();
    allocate_and_release(4, MIB);
    synchronise();
    uint64_t began = monotonic_now(), span = settings.device.release_after_idle_ns;
    cr_assert_eq(look(began), began + span);
    cr_assert_eq(look(began + span - 1), began + span);
    cr_assert_eq(clean_bytes(), 4 * MIB);
    cr_assert_eq(look(began + span), UINT64_MAX);
    cr_assert_eq(clean_bytes(), 0);
    cr_assert_eq(counted().evictions.idle, 4);
}

Test(housekeeper, what_a_thread_uses_stays_and_what_it_does_not_use_goes)
{
    start();
    allocate_and_release(4, MIB);
    CUdeviceptr used = allocate(2 * MIB);
    release(used);
    synchronise();
    uint64_t now = monotonic_now(), span = settings.device.release_after_idle_ns;
    unsigned misses = fake_calls(FAKE_MEM_ALLOC);
    for (int i = 0; i < 12; i++, now += SECOND) {
        look(now);
        cr_assert_eq(counter_get(&heap()->clean_bytes), 0);
        cr_assert_eq(allocate(2 * MIB), used);
        release(used);
        synchronise();
    }
    cr_assert_eq(fake_calls(FAKE_MEM_ALLOC), misses);
    cr_assert_gt(12 * SECOND, span);
    cr_assert_eq(clean_bytes(), 2 * MIB);
}

Test(housekeeper, large_blocks_go_back_when_their_time_has_come)
{
    start();
    release(allocate(64 * MIB));
    synchronise();
    uint64_t now = monotonic_now(), span = settings.device.release_after_idle_ns;
    uint64_t due = look(now);
    cr_assert_leq(due, now + span);
    cr_assert_gt(due, now + span - SECOND);
    cr_assert_eq(clean_bytes(), 64 * MIB);
    look(due);
    cr_assert_eq(clean_bytes(), 0);
}

/* Neighbours are listened to in between. */
Test(housekeeper, very_much_goes_back_in_portions)
{
    CUdeviceptr blocks[12];
    driver = fake_driver(UINT64_C(64) << 30);
    start();
    for (size_t i = 0; i < 12; i++)
        blocks[i] = allocate(UINT64_C(2) << 30);
    for (size_t i = 0; i < 12; i++)
        release(blocks[i]);
    synchronise();
    uint64_t now = monotonic_now(), due = now + settings.device.release_after_idle_ns;
    look(now);
    for (uint64_t left = 24; left > 0; left -= 8) {
        cr_assert_eq(clean_bytes(), left << 30);
        cr_assert_eq(look(due), RELEASE_MORE_AT_ONCE);
    }
    cr_assert_eq(look(due), UINT64_MAX);
    cr_assert_eq(clean_bytes(), 0);
}

/* Of the real kind, but for what it says of idle blocks. */
static struct kind kind_with_portions;
static unsigned portions_left = 1000;

static uint64_t give_back_a_portion(struct pool *of, struct device *on, uint64_t now)
{
    (void)on, (void)now;
    if (--portions_left == 0)
        atomic_store(&of->housekeeping.stopped, true);
    return RELEASE_MORE_AT_ONCE;
}

/* Looks are LOOKS_PER_SPAN'th parts of release_after_idle apart at least: of a day, they would be
 * hours. */
Test(housekeeper, one_portion_follows_the_other_at_once)
{
    static const struct kind *const kinds[] = {&kind_with_portions, NULL};
    settings.device.release_after_idle_ns = 86400 * SECOND;
    start();
    take_and_free_much();
    kind_with_portions = *pool->kinds[0];
    kind_with_portions.release_idle = give_back_a_portion;
    pool->kinds = kinds;
    house_keep(pool);
    cr_assert_eq(portions_left, 0);
}

Test(housekeeper, what_is_pending_without_a_fence_gets_one_that_nobody_waits_for)
{
    start();
    fake_launch(context);
    release(allocate(MIB));
    cr_assert_eq(fake_calls(FAKE_RECORD), 0);
    uint64_t now = monotonic_now(), span = settings.device.release_after_idle_ns;
    look(now);
    cr_assert_eq(fake_calls(FAKE_RECORD), 0);
    look(now + SECOND);
    cr_assert_eq(fake_calls(FAKE_RECORD), 1);
    cr_assert_not(epochs()->newest->waitable);
    look(now + span + SECOND);
    cr_assert_eq(fake_calls(FAKE_RECORD), 1);
    cr_assert_eq(pending_bytes(), MIB);
    fake_finish(context);
    let_time_pass();
    look(now + span + 2 * SECOND);
    cr_assert_eq(pending_bytes() + clean_bytes(), 0);
}

Test(housekeeper, nothing_is_recorded_while_a_capture_goes_on_and_what_is_clean_goes_back)
{
    start();
    allocate_and_release(2, MIB);
    synchronise();
    begin_capture(fake_stream());
    uint64_t now = monotonic_now(), span = settings.device.release_after_idle_ns;
    look(now);
    look(now + span);
    cr_assert_not(fake_capture_was_invalidated());
    cr_assert_eq(clean_bytes(), 0);
}

Test(housekeeper, the_plain_free_is_never_its_own)
{
    start();
    driver->cuMemFreeAsync = NULL;
    allocate_and_release(2, MIB);
    synchronise();
    uint64_t now = monotonic_now(), span = settings.device.release_after_idle_ns;
    look(now);
    look(now + span);
    cr_assert_eq(fake_calls(FAKE_MEM_FREE), 0);
    cr_assert_eq(clean_bytes(), 2 * MIB);
}

Test(housekeeper, nothing_is_idle_where_the_settings_say_never)
{
    settings.device.release_after_idle_ns = 0;
    start();
    allocate_and_release(2, MIB);
    synchronise();
    cr_assert_eq(look(monotonic_now() + 1000 * SECOND), UINT64_MAX);
    cr_assert_eq(clean_bytes(), 2 * MIB);
}
