#include "short_lock.h"

#include <errno.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Some microseconds of spinning, longer than any running holder keeps the lock. */
#define TURNS             200
#define YIELDS            100
#define SLEEP_NANOSECONDS 20000

static void pause_for_a_moment(void)
{
#if defined __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("isb" ::: "memory");
#endif
}

/* Avoids nanosleep, a cancellation point: a thread that is cancelled here may hold other locks. */
static void sleep_for_a_moment(void)
{
    int error = errno; /* errno is the program's */
    syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = SLEEP_NANOSECONDS}, NULL);
    errno = error;
}

void short_lock_wait(struct short_lock *lock)
{
    for (unsigned turns = 0;; turns++) {
        /* Relaxed: only the exchange below takes the lock. */
        if (!atomic_load_explicit(&lock->taken, memory_order_relaxed) &&
            !atomic_exchange_explicit(&lock->taken, true, memory_order_acquire))
            return;
        if (turns < TURNS)
            pause_for_a_moment();
        else if (turns < TURNS + YIELDS)
            sched_yield();
        else
            sleep_for_a_moment();
    }
}
