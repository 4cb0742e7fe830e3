/*
 * The monotonic clock, and pauses for a thread that waits for something.
 *
 * A program may replace the C library's clock by one that stands still, jumps back or runs too
 * fast. A simulator or a debugger may even replace the kernel's clock. Waits must still end, and
 * not too early. So the pool stops using a clock that jumps back or shows a thread one time over
 * and over. It also stops using a clock that disagrees with the kernel's over a sleep. From then on
 * time is the kernel's; if that clock stands still, too, sleeps and reads count as time. No thread
 * ever reads less than it has read before. While the C library's clock is right the pool uses no
 * other, since other processes on the board use it.
 *
 * Any thread, no lock needed. None of these is a cancellation point.
 */
#ifndef CUDAPOOL_CORE_CLOCK_H
#define CUDAPOOL_CORE_CLOCK_H

#include <stdint.h>

/* Nanoseconds of the monotonic clock. */
uint64_t monotonic_now(void);

/* Pauses in a polling loop that began at started, in nanoseconds of the monotonic clock. At first
 * it only yields the processor, later it sleeps. Every wait for another thread must use it: a
 * thread with a real-time priority that only yields never lets a thread of a lower priority run. */
void patient_nap(uint64_t started);

/* Returns how long to sleep before the next look at what the caller has waited for, in nanoseconds:
 * max(shortest, min(10 ms, waited / 8)). So the end of the wait is seen hardly late. For looks that
 * cost more than those of a patient_nap loop. */
uint64_t nap_after(uint64_t waited, uint64_t shortest);

/* Sleeps for nap_after(now - started, shortest). */
void seldom_nap(uint64_t started, uint64_t shortest);

/* These two stand around each sleep, to compare the clocks over it. asked: the nanoseconds that the
 * thread has slept at least; 0 if not known. */
struct clock_sleep {
    uint64_t began, kernel, library;
};
struct clock_sleep clock_sleep_begin(void);
void clock_sleep_end(const struct clock_sleep *sleep, uint64_t asked);

/* A pause in a loop that spins on another thread's store. */
static inline void let_the_processor_rest(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
