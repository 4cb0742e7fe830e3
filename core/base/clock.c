#include "clock.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cancellation.h"
#include "numbers.h"

/* A clock stands still if a thread reads one time from it this many times in a row. */
#define READS_OF_ONE_TIME 64u
/* If no clock advances, READS_OF_ONE_TIME reads count as this many nanoseconds. */
#define TIME_OF_READS (READS_OF_ONE_TIME * UINT64_C(1000))
/* Over a sleep, the library's clock may exceed twice the kernel's by this many nanoseconds. */
#define SLACK 50000

/* 0 while the pool uses the C library's clock. Otherwise the time is this plus the kernel's clock,
 * which a system call reads. Accesses are relaxed: they order nothing. */
static _Atomic uint64_t correction;

static _Thread_local struct {
    uint64_t last;     /* the time that this thread read most recently */
    uint64_t stood_at; /* the time that it has read several times in a row */
    unsigned reads;    /* how often it has read stood_at again */
    unsigned naps;     /* how many naps it has made */
} own;

/* Returns false if a sandbox refuses the system call. */
__attribute__((noinline)) static bool ask_kernel(struct timespec *now)
{
    int error = errno;
    bool told = syscall(SYS_clock_gettime, CLOCK_MONOTONIC, now) == 0;
    errno = error;
    return told;
}

/* Reads the library's clock, or the kernel's if that can be asked. */
static inline uint64_t read_clock(bool of_kernel)
{
    struct timespec now = {0, 0};
    if (!of_kernel || !ask_kernel(&now))
        clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Makes monotonic_now read the kernel's clock and continue from time. Changes nothing if
 * monotonic_now reads the kernel's clock already. */
static void distrust_library(uint64_t time)
{
    uint64_t none = 0;
    atomic_compare_exchange_strong_explicit(&correction, &none, (time - read_clock(true)) | 1,
                                            memory_order_relaxed, memory_order_relaxed);
}

/* Adds to the correction. If several threads see the kernel's clock stand still or go back, only
 * one of them succeeds. */
static void put_forward(uint64_t corrected, uint64_t nanoseconds)
{
    atomic_compare_exchange_strong_explicit(&correction, &corrected, corrected + nanoseconds,
                                            memory_order_relaxed, memory_order_relaxed);
}

/* Called when now is not later than the thread's previous read. Returns the time of that read. */
__attribute__((noinline)) static uint64_t doubt(uint64_t now, uint64_t corrected)
{
    own.reads = own.stood_at == own.last ? own.reads + 1 : 1;
    own.stood_at = own.last;
    bool stands = own.reads % READS_OF_ONE_TIME == 0;
    if (!corrected && (stands || now < own.last))
        distrust_library(own.last);
    else if (corrected && stands)
        put_forward(corrected, own.last - now + TIME_OF_READS);
    return own.last;
}

uint64_t monotonic_now(void)
{
    uint64_t corrected = atomic_load_explicit(&correction, memory_order_relaxed);
    uint64_t now = corrected ? read_clock(true) + corrected : read_clock(false);
    if (__builtin_expect(now <= own.last, 0))
        return doubt(now, corrected);
    own.last = now;
    return now;
}

/* ---- sleeping ---- */

struct clock_sleep clock_sleep_begin(void)
{
    struct clock_sleep sleep = {.began = monotonic_now()};
    /* The kernel's clock is read first here, and last in clock_sleep_end. So a correct library
     * clock never shows the longer sleep. */
    sleep.kernel = read_clock(true);
    sleep.library = read_clock(false);
    return sleep;
}

void clock_sleep_end(const struct clock_sleep *sleep, uint64_t asked)
{
    int64_t library = (int64_t)(read_clock(false) - sleep->library);
    int64_t kernel = (int64_t)(read_clock(true) - sleep->kernel), least = (int64_t)(asked / 2);
    uint64_t corrected = atomic_load_explicit(&correction, memory_order_relaxed);
    uint64_t slept = larger_of(asked, kernel > 0 ? (uint64_t)kernel : 0);
    if (!corrected && (library < least || library - SLACK > 2 * kernel))
        distrust_library(sleep->began + slept);
    else if (corrected && kernel < least)
        put_forward(corrected, asked - (uint64_t)kernel);
}

#define LONGEST_NAP (UINT64_C(10) * 1000 * 1000)
#define NAP_SHARE   8u

uint64_t nap_after(uint64_t waited, uint64_t shortest)
{
    return larger_of(shortest, smaller_of(LONGEST_NAP, waited / NAP_SHARE));
}

static bool sleep_plainly(uint64_t nanoseconds)
{
    return nanosleep(&(struct timespec){0, (long)nanoseconds}, NULL) == 0;
}

/* Compares the clocks over a thread's first nap and every 16th after it. Once time is the kernel's,
 * compares them over every nap. */
static void sleep_for(uint64_t nanoseconds)
{
    int cancellation = cancellation_off();
    if (own.naps++ % 16 == 0 || atomic_load_explicit(&correction, memory_order_relaxed)) {
        struct clock_sleep sleep = clock_sleep_begin();
        bool slept = sleep_plainly(nanoseconds);
        clock_sleep_end(&sleep, slept ? nanoseconds : 0);
    } else {
        sleep_plainly(nanoseconds);
    }
    cancellation_restore(cancellation);
}

void seldom_nap(uint64_t started, uint64_t shortest)
{
    sleep_for(nap_after(monotonic_now() - started, shortest));
}

/* At first the awaited work may end within microseconds, so the thread only yields. Later it
 * sleeps, because a free core is worth more than a little latency. */
void patient_nap(uint64_t started)
{
    uint64_t waited = monotonic_now() - started;
    if (waited < 200000) {
        sched_yield();
        return;
    }
    sleep_for(waited < 50000000 ? 20000 : 200000);
}
