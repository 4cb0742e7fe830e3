/*
 * The clock of the process is the simulated driver's (SIMCUDA_STEPPED): these take the place of
 * libc's functions for the program, the pool and the driver alike, so that a run depends on nothing
 * but its seed and never sleeps.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../sim/simcuda.h"
#include "virtual_time.h"

/* A wait that has lasted so long will never end by itself: nothing here runs for a second, and the
 * pool's own patience (10 s) is shorter. */
#define FOREVER UINT64_C(30000000000)

/* Nanoseconds after which time passes a thousand times as fast. */
#define HURRY UINT64_C(20000000)

static __thread uint64_t waited;
static void (*on_stall)(void);
static bool shared; /* set before there are threads, as is the next one */
static uint64_t per_read;

void virtual_time_is_shared(void)
{
    shared = true;
}

void virtual_time_moves(void)
{
    per_read = 1;
}

void virtual_time_on_stall(void (*handler)(void))
{
    on_stall = handler;
}

void virtual_time_new_call(void)
{
    waited = 0;
}

/* Whoever polls something that never comes is not kept at it for long. */
static void pass(uint64_t ns)
{
    if (waited > HURRY) {
        ns *= 1000;
        if (shared)
            syscall(SYS_nanosleep, &(struct timespec){0, 200000}, NULL);
    }
    waited += ns;
    simcuda_advance(ns);
    if (waited > FOREVER && on_stall) {
        waited = 0;
        on_stall();
    }
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    if (per_read)
        simcuda_advance(per_read);
    uint64_t ns = simcuda_now();
    now->tv_sec = (time_t)(ns / 1000000000u);
    now->tv_nsec = (long)(ns % 1000000000u);
    return 0;
}

int nanosleep(const struct timespec *wanted, struct timespec *left)
{
    (void)left;
    pass((uint64_t)wanted->tv_sec * 1000000000u + (uint64_t)wanted->tv_nsec);
    return 0;
}

/* The pool asks the kernel itself for the time where it distrusts another clock. A call may have
 * fewer arguments: they are no variable ones, which a sanitizer would look for. */
long any_call(long number, long a, long b, long c, long d, long e, long f) __asm__("syscall");
long any_call(long number, long a, long b, long c, long d, long e, long f)
{
    static long (*real)(long, ...);
    if (number == SYS_clock_gettime)
        return clock_gettime((clockid_t)a, (struct timespec *)b);
    if (!real)
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return real(number, a, b, c, d, e, f);
}

int sched_yield(void)
{
    pass(1000);
    return 0;
}
