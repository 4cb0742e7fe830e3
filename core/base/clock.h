/*
 * The monotonic clock, and pauses of a thread that waits for something.
 *
 * Any thread, no lock needed. None of these is a cancellation point.
 */
#ifndef CUDAPOOL_CORE_CLOCK_H
#define CUDAPOOL_CORE_CLOCK_H

#include <stdint.h>

/* Nanoseconds of the monotonic clock. */
uint64_t monotonic_now(void);

/* A pause in a patient loop whose rounds began at started, in nanoseconds of the monotonic clock:
 * first the processor is only yielded. */
void patient_nap(uint64_t started);

/* How long to sleep before another look at what has been waited for for so long, in nanoseconds: an
 * eighth of that, so that it is seen hardly later than it is there; at least shortest, and at most
 * 10 ms. For looks that cost more than those of a patient loop. */
uint64_t nap_after(uint64_t waited, uint64_t shortest);

/* Sleeps for so long, in a wait that began at that time. */
void seldom_nap(uint64_t started, uint64_t shortest);

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
