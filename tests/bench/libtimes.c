/*
 * A preload that tells how long a program's cuMemAlloc and cuMemFree took, all threads together. In
 * front of the pool it times the pool, in front of nothing the driver.
 *
 *   LD_PRELOAD=libtimes.so[:libcudapool_preload.so] TIMES_REPORT=FILE PROGRAM
 *
 * A program may call bench_times_mark(), which it looks up: only what comes after it counts. FILE
 * gets one line of JSON as a process ends that has called one: of each function the calls and their
 * nanoseconds, and how many calls took 10 us and more, and theirs.
 */
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../driver_api.h"

#define REPLACED(F)                                                                                \
    F(cuMemAlloc_v2, (CUdeviceptr * address, size_t bytes))                                        \
    F(cuMemFree_v2, (CUdeviceptr address))
#define PRELOAD "times"
#include "replaced.h"

enum { LONG_NANOSECONDS = 10000 };

/* Relaxed: they are read when the program's threads have ended, or do nothing. */
static struct times {
    _Atomic uint64_t calls, nanoseconds, long_calls, long_nanoseconds;
} times[REPLACED_COUNT];

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void add(_Atomic uint64_t *sum, uint64_t number)
{
    atomic_fetch_add_explicit(sum, number, memory_order_relaxed);
}

static CUresult took(struct times *of, uint64_t start, CUresult result)
{
    uint64_t nanoseconds = now() - start;
    add(&of->calls, 1);
    add(&of->nanoseconds, nanoseconds);
    if (nanoseconds >= LONG_NANOSECONDS) {
        add(&of->long_calls, 1);
        add(&of->long_nanoseconds, nanoseconds);
    }
    return result;
}

REPLACE(cuMemAlloc_v2, (CUdeviceptr * address, size_t bytes))
{
    uint64_t start = now();
    return took(&times[REPLACED_cuMemAlloc_v2], start, real()->cuMemAlloc_v2(address, bytes));
}

REPLACE(cuMemFree_v2, (CUdeviceptr address))
{
    uint64_t start = now();
    return took(&times[REPLACED_cuMemFree_v2], start, real()->cuMemFree_v2(address));
}

__attribute__((visibility("default"))) void bench_times_mark(void);
void bench_times_mark(void)
{
    for (int i = 0; i < REPLACED_COUNT; i++) {
        times[i].calls = times[i].nanoseconds = 0;
        times[i].long_calls = times[i].long_nanoseconds = 0;
    }
}

__attribute__((destructor)) static void the_process_ends(void)
{
    const char *path = getenv("TIMES_REPORT"), *before = "{";
    bool any = times[REPLACED_cuMemAlloc_v2].calls + times[REPLACED_cuMemFree_v2].calls > 0;
    FILE *file = path != NULL && any ? fopen(path, "w") : NULL;
    if (file == NULL)
        return;
    for (int i = REPLACED_cuMemAlloc_v2; i <= REPLACED_cuMemFree_v2; i++, before = ", ")
        fprintf(file,
                "%s\"%s\": {\"calls\": %lu, \"nanoseconds\": %lu, \"long_calls\": %lu, "
                "\"long_nanoseconds\": %lu}",
                before, replacements[i].name, times[i].calls, times[i].nanoseconds,
                times[i].long_calls, times[i].long_nanoseconds);
    fprintf(file, "}\n");
    fclose(file);
}
