/*
 * The monotonic clock, and pauses for a thread that waits for something.
 *
 * A program may replace the C library's clock by one that stands still, jumps back or runs too
 * fast. A simulator or a debugger may even replace the kernel's clock. Waits must still end, and
 * not too early. So the pool stops using the C library's clock if it jumps back, or shows a thread
 * one time many times in a row. The pool also stops using it if it disagrees with the kernel's
 * clock over a sleep. From then on the pool uses the kernel's clock. If that clock stands still,
 * too, sleeps and reads count as time. No thread ever reads an earlier time than it has read
 * before. While the C library's clock is right, the pool uses no other. Other processes use it too,
 * and share times with this one on the board (core/board/board_layout.h).
 *
 * Any thread may call these functions, and needs no lock. None is a cancellation point.
 */
#ifndef CUDAPOOL_CORE_CLOCK_H
#define CUDAPOOL_CORE_CLOCK_H

#include <stdint.h>

/* Nanoseconds of the monotonic clock. */
uint64_t monotonic_now(void);

/* Pauses in a polling loop that began at started, in nanoseconds of the monotonic clock. At first
 * it only yields the processor, later it sleeps. Every wait for another thread must use it. A
 * real-time thread that only yields never lets a thread of a lower priority run. */
void patient_nap(uint64_t started);

/* Returns how long to sleep before the caller's next poll: max(shortest, min(10 ms, waited / 8)).
 * waited is how long the caller has waited already. All times are nanoseconds. So the caller
 * notices the end of its wait with little delay. nap_after suits polls that cost more than those of
 * a patient_nap loop. */
uint64_t nap_after(uint64_t waited, uint64_t shortest);

/* Sleeps for nap_after(now - started, shortest). */
void seldom_nap(uint64_t started, uint64_t shortest);

/* Call clock_sleep_begin before a sleep and clock_sleep_end after it, to compare the clocks over
 * the sleep. asked: the thread has slept at least this many nanoseconds; 0 if unknown. */
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
