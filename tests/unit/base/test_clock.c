/*
 * A clock that is wrong: core/base/clock.h. The C library's, and the kernel's, are the test's own
 * here.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/futex.h"

#define MS     UINT64_C(1000000)
#define SECOND (1000 * MS)
/* More reads, or naps, than any wait of a test may take. */
#define PLENTY 1000000

enum pace { STANDS, RUNS, BACKWARD, FAST };
/* The test's own thread alone sees a wrong clock: Criterion's threads send messages by theirs. */
static _Thread_local enum pace of_library = RUNS, of_kernel = RUNS;

static void set_clocks(enum pace library, enum pace kernel)
{
    of_library = library;
    of_kernel = kernel;
}

static uint64_t real_time(void)
{
    static long (*real)(long, ...);
    struct timespec now;
    if (!real)
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    real(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

static int tell(enum pace pace, struct timespec *now)
{
    static uint64_t first;
    first = first ? first : real_time();
    uint64_t passed = real_time() - first, time = 1000000 * SECOND;
    time += pace == RUNS ? passed : pace == FAST ? 1000 * passed : pace == BACKWARD ? -passed : 0;
    now->tv_sec = (time_t)(time / SECOND);
    now->tv_nsec = (long)(time % SECOND);
    return 0;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    return tell(of_library, now);
}

/* All six arguments of a call, which has fewer; that is no business of a sanitizer's. */
long any_call(long number, long a, long b, long c, long d, long e, long f) __asm__("syscall");
long any_call(long number, long a, long b, long c, long d, long e, long f)
{
    static long (*real)(long, ...);
    if (number == SYS_clock_gettime)
        return tell(of_kernel, (struct timespec *)b);
    if (!real)
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return real(number, a, b, c, d, e, f);
}

/* A wait for what never comes; never reads less than before. */
static unsigned wait_for(uint64_t nanoseconds, void nap(uint64_t))
{
    unsigned rounds = 0;
    uint64_t started = monotonic_now(), last = started;
    for (; last - started < nanoseconds && rounds < PLENTY; rounds++) {
        if (nap)
            nap(started);
        uint64_t now = monotonic_now();
        cr_assert_geq(now, last);
        last = now;
    }
    return rounds;
}

static void sleep_on_a_word(uint64_t started)
{
    static const _Atomic uint32_t word;
    (void)started;
    futex_wait(&word, 0, monotonic_now() + 10 * MS);
}

static void nothing_hangs(enum pace library, enum pace kernel)
{
    set_clocks(library, kernel);
    unsigned reads = wait_for(5 * MS, NULL), naps = wait_for(20 * MS, patient_nap);
    unsigned sleeps = wait_for(200 * MS, sleep_on_a_word);
    set_clocks(RUNS, RUNS);
    cr_expect_lt(reads, PLENTY);
    cr_expect_lt(naps, PLENTY);
    cr_expect_lt(sleeps, PLENTY);
}

Test(clock, that_stands_ends_waits_all_the_same)
{
    nothing_hangs(STANDS, RUNS);
}

Test(clock, that_stands_for_the_kernel_as_well_does)
{
    nothing_hangs(STANDS, STANDS);
}

Test(clock, that_goes_back_does)
{
    nothing_hangs(BACKWARD, RUNS);
}

Test(clock, that_goes_back_for_the_kernel_as_well_does)
{
    nothing_hangs(BACKWARD, BACKWARD);
}

static void waits_as_long_as_it_says(enum pace library)
{
    set_clocks(library, RUNS);
    uint64_t before = real_time();
    wait_for(300 * MS, patient_nap);
    wait_for(300 * MS, sleep_on_a_word);
    set_clocks(RUNS, RUNS);
    cr_expect_gt(real_time() - before, 300 * MS);
}

Test(clock, that_runs_too_fast_ends_no_wait_too_early)
{
    waits_as_long_as_it_says(FAST);
}

Test(clock, that_goes_back_ends_no_wait_too_early)
{
    waits_as_long_as_it_says(BACKWARD);
}

Test(clock, that_begins_to_go_wrong_later_is_noticed)
{
    uint64_t before = monotonic_now();
    wait_for(MS, patient_nap);
    nothing_hangs(STANDS, RUNS);
    cr_expect_lt(monotonic_now() - before, 60 * SECOND);
}

/* Its neighbours have the same one. */
Test(clock, that_is_right_is_used_as_it_is)
{
    struct timespec now;
    wait_for(2 * MS, NULL);
    wait_for(20 * MS, patient_nap);
    uint64_t shown = monotonic_now();
    clock_gettime(CLOCK_MONOTONIC, &now);
    cr_expect_leq(shown, (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec);
    wait_for(100 * MS, sleep_on_a_word);
    clock_gettime(CLOCK_MONOTONIC, &now);
    cr_expect_geq(monotonic_now(), (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec);
}
