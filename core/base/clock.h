/*
 * The monotonic clock, and pauses of a thread that waits for something.
 *
 * A program may have a clock of its own in the place of the C library's, which stands still, goes
 * back or runs too fast; a simulator's or a debugger's may stand for the kernel, too. Waits end all
 * the same, and no sooner than they should: a clock that goes back, that shows one time to a thread
 * over and over, or that disagrees with the kernel's over a sleep is not asked any more. From then
 * on time is the kernel's; and where that stands, sleeps and reads count as time. No thread ever
 * reads less than it has read before. Where the C library's clock is right it is the only one that
 * is used, since other processes on the board use it.
 *
 * Any thread, no lock needed. None of these is a cancellation point.
 */
#ifndef CUDAPOOL_CORE_CLOCK_H
#define CUDAPOOL_CORE_CLOCK_H

#include <stdint.h>

/* Nanoseconds of the monotonic clock. */
uint64_t monotonic_now(void);

/* A pause in a patient loop whose rounds began at started, in nanoseconds of the monotonic clock:
 * first the processor is only yielded. Whoever waits for another thread waits by this: a thread
 * with a real-time priority that only yields leaves its processor to none of a lower one. */
void patient_nap(uint64_t started);

/* How long to sleep before another look at what has been waited for for so long, in nanoseconds: an
 * eighth of that, so that it is seen hardly later than it is there; at least shortest, and at most
 * 10 ms. For looks that cost more than those of a patient loop. */
uint64_t nap_after(uint64_t waited, uint64_t shortest);

/* Sleeps for so long, in a wait that began at that time. */
void seldom_nap(uint64_t started, uint64_t shortest);

/* Around each sleep: what the clocks have shown is held against it. asked: nanoseconds that the
 * thread has slept at least; 0: not known. */
struct clock_sleep {
    uint64_t began, kernel, library;
};
struct clock_sleep clock_sleep_begin(void);
void clock_sleep_end(const struct clock_sleep *sleep, uint64_t asked);

/* While another thread's store is waited for. */
static inline void let_the_processor_rest(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
