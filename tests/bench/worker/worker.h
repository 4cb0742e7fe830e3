/*
 * The benchmark's worker: one process for each allocator that is compared. What its files share.
 *
 *   worker ALLOCATOR
 *
 * It opens device 0, then reads commands from standard input, a line each: a name and key=value
 * words. It answers each with one line of JSON: the numbers, or {"error": "..."}. bench.py starts
 * the workers and gives all of them the same command in turn, so that what is compared is measured
 * within the same moments. Times are nanoseconds.
 *
 * Files
 *   main.c        commands and answers
 *   allocators.c  what is compared
 *   crew.c        threads that do one thing for a while, counted and timed
 *   pairs.c       allocate and free: without work, with kernels, live blocks, other threads' frees
 *   work.c        pairs around kernels: what a launch, and what a whole program, takes longer
 *   replay.c      recorded traces
 *   calls.c       driver calls
 *
 * Commands run one at a time, in the main thread, which alone answers; what they share is written
 * between commands only.
 */
#ifndef CUDAPOOL_TESTS_BENCH_WORKER_H
#define CUDAPOOL_TESTS_BENCH_WORKER_H

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../driver_api.h"

/* Safe from any thread: says what went wrong where, as the answer, and ends the process. */
__attribute__((noreturn, format(printf, 3, 4))) void fail_at(const char *file, int line,
                                                             const char *format, ...);
#define FAIL(...) fail_at(__FILE__, __LINE__, __VA_ARGS__)

#define MIB ((size_t)1 << 20)

/* --- allocators.c -----------------------------------------------------------------------------*/

struct allocator {
    const char *name;
    /* Once, first; false with a reason where it can't be used. */
    bool (*open)(const char *argument, const char **why);
    void (*thread_starts)(void);
    /* 0 where there is no memory. */
    CUdeviceptr (*allocate)(size_t bytes, CUstream stream);
    void (*release)(CUdeviceptr address, CUstream stream);
    size_t largest;  /* the largest size that makes sense to ask for */
    bool of_the_cpu; /* its memory is none of the GPU's */
};

/* "NAME" or "NAME:ARGUMENT", as on the command line. Answers and ends the process on failure. */
const struct allocator *allocator_named(const char *name);

/* --- main.c -----------------------------------------------------------------------------------*/

struct bench {
    const struct allocator *allocator;
    CUcontext context;
    CUdevice device;
    CUfunction spin; /* of tests/kernels.ptx */
};
extern struct bench bench;

struct command {
    const char *name;
    char *words[32];
    unsigned int count;
};

/* The value of key, or what to take where it is not given. number fails on what is no number. */
const char *word(const struct command *command, const char *key, const char *otherwise);
unsigned long number(const struct command *command, const char *key, unsigned long otherwise);

/* The answer to the command: the inside of a JSON object. Once for each command. */
__attribute__((format(printf, 1, 2))) void answer(const char *format, ...);
/* It could not be measured, and the worker goes on. */
__attribute__((format(printf, 1, 2))) void refuse(const char *format, ...);

static inline double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Sorts them. 0 where there are none. */
double median_of(double *values, size_t count);

/* The streams that all threads of the commands share, made on first use and used once each; at most
 * MAX_STREAMS. Called in the main thread. */
enum { MAX_STREAMS = 1024 };
CUstream *shared_streams(unsigned int count);

/* A kernel that takes so long, and does nothing else. */
static inline void launch_spin(CUstream stream, unsigned long long ns)
{
    CU(cuLaunchKernel(bench.spin, 1, 1, 1, 1, 1, 1, 0, stream, (void *[]){&ns}, NULL));
}

static inline void launch_nothing(CUstream stream)
{
    launch_spin(stream, 0);
}

/* --- crew.c -----------------------------------------------------------------------------------*/

enum { MAX_THREADS = 256, MAX_SIZES = 8 };

/* One thread of a crew. Each has its own lines of the processor's cache. */
struct member {
    _Alignas(128) unsigned int index;
    uint64_t done;  /* how often the body has done something, while measured */
    double seconds; /* that took */
    _Atomic bool has_done_something;
    void *own; /* the body's */
    struct crew *crew;
    pthread_t thread;
};

struct crew {
    unsigned int threads;
    double ms; /* how long to measure */
    /* The size of the nth request: sizes[n % size_count]. */
    size_t sizes[MAX_SIZES];
    unsigned int size_count;
    /* Without streams, all that is done is on the NULL stream. */
    CUstream *streams;
    unsigned int stream_count;
    bool launches;                          /* a kernel in each pair */
    void (*prepare)(struct member *member); /* optional; in the thread, untimed */
    /* Once. Returns false where there was nothing to do; does not wait for other members. */
    bool (*body)(struct member *member, uint64_t iteration);
    void (*finish)(struct member *member); /* optional; in the thread, untimed */
    unsigned int warm_up;                  /* bodies at least, before it is measured */
    /* Bodies go on until this is set; members spin on ready and go. */
    _Alignas(128) _Atomic bool go, stop;
    _Alignas(128) _Atomic unsigned int ready, finished;
    struct member members[MAX_THREADS];
};

/* A crew for threads=, ms=, sizes=, work= and streams= of the command; NULL, and the command is
 * answered, where a word is not allowed. Freed by crew_free. */
struct crew *crew_for(const struct command *command);
void crew_free(struct crew *crew);

/* Starts the threads, measures, and ends them. Waits for the GPU's work afterwards. */
void crew_run(struct crew *crew);

/* What crew_run has measured: all threads' bodies in a second, those that had nothing to do left
 * out. */
double crew_rate(const struct crew *crew);

/* A pair of the crew's nth size on the nth stream, with a kernel in it if there is to be one. */
static inline void one_pair(struct crew *crew, uint64_t n)
{
    CUstream stream = crew->stream_count > 0 ? crew->streams[n % crew->stream_count] : NULL;
    CUdeviceptr block = bench.allocator->allocate(crew->sizes[n % crew->size_count], stream);
    if (block == 0)
        FAIL("%s has no memory left", bench.allocator->name);
    if (crew->launches)
        launch_nothing(stream);
    bench.allocator->release(block, stream);
}

/* --- the commands -----------------------------------------------------------------------------*/

void measure_pairs(const struct command *command);
void measure_cross(const struct command *command);
void measure_short_threads(const struct command *command);
void hold_live_blocks(const struct command *command);
void measure_launch(const struct command *command);
void measure_overlap(const struct command *command);
void measure_replay(const struct command *command);
void count_calls(const struct command *command);

#endif
