#include "clock.h"

#include <sched.h>
#include <time.h>

#include "cancellation.h"
#include "numbers.h"

uint64_t monotonic_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#define LONGEST_NAP (UINT64_C(10) * 1000 * 1000)
#define NAP_SHARE   8u

uint64_t nap_after(uint64_t waited, uint64_t shortest)
{
    return larger_of(shortest, smaller_of(LONGEST_NAP, waited / NAP_SHARE));
}

static void sleep_for(uint64_t nanoseconds)
{
    int cancellation = cancellation_off();
    nanosleep(&(struct timespec){0, (long)nanoseconds}, NULL);
    cancellation_restore(cancellation);
}

void seldom_nap(uint64_t started, uint64_t shortest)
{
    sleep_for(nap_after(monotonic_now() - started, shortest));
}

/* At first the wait is for work that ends within microseconds; after that a core is worth more than
 * the last few microseconds of latency. */
void patient_nap(uint64_t started)
{
    uint64_t waited = monotonic_now() - started;
    if (waited < 200000) {
        sched_yield();
        return;
    }
    sleep_for(waited < 50000000 ? 20000 : 200000);
}
