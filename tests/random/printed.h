/*
 * What a program that tests/random has printed needs: its variables, and threads that take turns.
 * Included once.
 */
#ifndef TESTS_RANDOM_PRINTED_H
#define TESTS_RANDOM_PRINTED_H

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>

#include "../driver_api.h"
#include "../kernels.h"
#include "../sim/simcuda.h"

/* As many as any program has; none needs all of them. */
#define MAYBE __attribute__((unused)) static
MAYBE CUcontext context[16], popped;
MAYBE CUgreenCtx green[16];
MAYBE CUdevResourceDesc description;
MAYBE CUstream stream[16];
MAYBE CUevent event[16], helper[16], done[32];
MAYBE CUgraph graph;
MAYBE CUgraphExec exec[16];
MAYBE CUmodule module;
MAYBE CUfunction kernel[16][8];
MAYBE CUarray array;
MAYBE CUmemoryPool memory_pool;
MAYBE CUmemGenericAllocationHandle physical;
MAYBE CUipcMemHandle handle;
MAYBE CUdeviceptr buffer[32], spare, base, target, mismatches;
MAYBE unsigned long long ns, tokens[2];
MAYBE unsigned int words, value, one = 1;
MAYBE size_t size, total, pitch;
MAYBE int file;
MAYBE void *memory, *arguments[8];
MAYBE _Alignas(4096) unsigned long long counters[16][512];
MAYBE _Alignas(4096) unsigned int flag[512];
MAYBE _Alignas(4096) unsigned int landing[64];
static int wrong;

/* 999: a query, whose answer depends on time. */
#define expect(result, call)                                                                       \
    do {                                                                                           \
        CUresult got = (call);                                                                     \
        if (got != (result) && (result) != 999u) {                                                 \
            fprintf(stderr, "%s:%d: %u, not %u: %s\n", __FILE__, __LINE__, got, (result), #call);  \
            wrong = 1;                                                                             \
        }                                                                                          \
    } while (0)

MAYBE void set_all_flags(void)
{
    for (unsigned int i = 0; i < 512; i++)
        __atomic_store_n(&flag[i], 1, __ATOMIC_RELEASE);
}

MAYBE void set_words(unsigned int with)
{
    for (unsigned int i = 0; i < 64; i++)
        landing[i] = with;
}

MAYBE void expect_words(unsigned int count, unsigned int with, const char *what)
{
    for (unsigned int i = 0; i < count; i++)
        if (landing[i] != with) {
            fprintf(stderr, "%s: word %u is %#x, not %#x\n", what, i, landing[i], with);
            wrong = 1;
        }
}

MAYBE void do_nothing(void *unused)
{
    (void)unused;
}

MAYBE void make_description(int device)
{
    CUdevResource all, some;
    unsigned int count = 1;
    cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM);
    cuDevSmResourceSplitByCount(&some, &count, &all, NULL, 0, 8);
    cuDevResourceGenerateDesc(&description, &some, 1);
}

/* ---- threads that take turns ---- */

static struct {
    pthread_t thread;
    sem_t turn;
    int started;
    void (*part)(void);
} workers[4];
static sem_t back;

static void *work(void *number)
{
    for (;;) {
        sem_wait(&workers[(size_t)number].turn);
        if (!workers[(size_t)number].part)
            return NULL;
        workers[(size_t)number].part();
        sem_post(&back);
    }
}

static void in_thread(unsigned int number, int restarted, void (*part)(void))
{
    if (number == 0) {
        part();
        return;
    }
    if (restarted && workers[number].started) {
        workers[number].part = NULL;
        sem_post(&workers[number].turn);
        pthread_join(workers[number].thread, NULL);
        workers[number].started = 0;
    }
    if (!workers[number].started) {
        sem_init(&workers[number].turn, 0, 0);
        sem_init(&back, 0, 0);
        pthread_create(&workers[number].thread, NULL, work, (void *)(size_t)number);
        workers[number].started = 1;
    }
    workers[number].part = part;
    sem_post(&workers[number].turn);
    sem_wait(&back);
}

static int end(void)
{
    for (unsigned int i = 0; i < 16; i++)
        if (counters[i][0]) {
            fprintf(stderr, "%llu words are not what was written (context %u)\n", counters[i][0],
                    i);
            wrong = 1;
        }
    if (simcuda_live_allocations()) {
        fprintf(stderr, "%llu allocations are left\n",
                (unsigned long long)simcuda_live_allocations());
        wrong = 1;
    }
    return wrong;
}

#endif
