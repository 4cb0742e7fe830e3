/*
 * What the programs in this directory share: opening a device, its kernels, checking, timing.
 *
 * Every program runs unmodified on a real GPU and on the simulated driver, without and with the
 * pool; it checks its data, ends with one line "NAME: MILLISECONDS ms, ...", and exits 0, or 1 when
 * something was wrong. A program includes this once. Not thread-safe unless it says so.
 */
#ifndef CUDAPOOL_TESTS_GPU_GPU_H
#define CUDAPOOL_TESTS_GPU_GPU_H

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../driver_api.h"
#include "../sim/races.h"

/* Safe from any thread: says what went wrong where, and ends the process with status 1. */
__attribute__((noreturn, format(printf, 3, 4))) static inline void
fail_at(const char *file, int line, const char *format, ...)
{
    va_list arguments;
    fprintf(stderr, "%s:%d: ", file, line);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    fflush(NULL);
    _exit(1);
}
#define FAIL(...) fail_at(__FILE__, __LINE__, __VA_ARGS__)

#define CHECK(call) CU(call)

#include "../device_work.h"

/* The number after the last "name=" among the program's arguments, or the one given. */
static inline unsigned long argument(int argc, char **argv, const char *name,
                                     unsigned long otherwise)
{
    size_t length = strlen(name);
    unsigned long value = otherwise;
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], name, length) == 0 && argv[i][length] == '=')
            value = strtoul(argv[i] + length + 1, NULL, 0);
    return value;
}

/* True if the word stands among the program's arguments. */
static inline bool asked_for(int argc, char **argv, const char *word)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], word) == 0)
            return true;
    return false;
}

/* A thread for each index below threads, running body(index); returns when all have ended. */
struct worker {
    pthread_t thread;
    void (*body)(unsigned int index);
    unsigned int index;
};

static inline void *run_worker(void *argument)
{
    struct worker *worker = argument;
    worker->body(worker->index);
    return NULL;
}

static inline void start_worker(struct worker *worker, void (*body)(unsigned int),
                                unsigned int index)
{
    worker->body = body;
    worker->index = index;
    if (pthread_create(&worker->thread, NULL, run_worker, worker) != 0)
        FAIL("no thread could be started");
}

static inline void join_worker(struct worker *worker)
{
    pthread_join(worker->thread, NULL);
}

/* ---- threads whose work is timed ---- */

/* Who times them, and all of them, meet twice: when each is ready, and when each is done. */
static pthread_barrier_t everybody;

/* In a worker's body, before and after what is timed. */
static inline void meet(void)
{
    pthread_barrier_wait(&everybody);
}

enum { MAX_WORKERS = 64 };

/* Runs the body in so many threads; the milliseconds between its two calls of meet. One run at a
 * time. */
static inline double time_workers(unsigned int threads, void (*body)(unsigned int index))
{
    struct worker workers[MAX_WORKERS];
    if (threads < 1 || threads > MAX_WORKERS)
        FAIL("threads=%u: must be 1 to %d", threads, MAX_WORKERS);
    pthread_barrier_init(&everybody, NULL, threads + 1);
    for (unsigned int i = 0; i < threads; i++)
        start_worker(&workers[i], body, i);
    meet();
    double start = now_ms();
    meet();
    double elapsed = now_ms() - start;
    for (unsigned int i = 0; i < threads; i++)
        join_worker(&workers[i]);
    pthread_barrier_destroy(&everybody);
    return elapsed;
}

/* A small generator, so that every run takes the same sizes. */
static inline unsigned int next_random(unsigned int *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

#endif
