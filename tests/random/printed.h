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

/* As many as any program has; none needs all of them. Threads that run freely have their own. */
#define MAYBE __attribute__((unused)) static
static struct variables {
    CUcontext context[16], popped;
    CUgreenCtx green[16];
    CUdevResourceDesc description;
    CUstream stream[16];
    CUevent event[16], helper[16], done[64];
    CUgraph graph, kept[16];
    CUgraphExec exec[16];
    CUgraphExecUpdateResultInfo result_info;
    CUmodule module;
    CUfunction kernel[16][8];
    CUarray array;
    CUmemoryPool memory_pool;
    CUmemGenericAllocationHandle physical;
    CUipcMemHandle handle;
    CUdeviceptr buffer[64], spare, base, target, mismatches;
    unsigned long long ns, tokens[2];
    unsigned int words, value, one;
    size_t size, total, pitch;
    int file, zero;
    void *memory, *arguments[8];
    CUgraphNode node;
    CUgraphExec locked_exec;
    CUstreamBatchMemOpParams operation;
    struct {
        _Alignas(4096) unsigned long long wrong_words[128];
        unsigned int locks[4], flags[512];
    } counters[16];
    _Alignas(4096) unsigned int landing[1024];
} variables[4] = {{.one = 1}, {.one = 1}, {.one = 1}, {.one = 1}};
MAYBE __thread unsigned int self;
#define context     variables[self].context
#define popped      variables[self].popped
#define green       variables[self].green
#define description variables[self].description
#define stream      variables[self].stream
#define event       variables[self].event
#define helper      variables[self].helper
#define done        variables[self].done
#define graph       variables[self].graph
#define exec        variables[self].exec
#define kept        variables[self].kept
#define result_info variables[self].result_info
#define module      variables[self].module
#define kernel      variables[self].kernel
#define array       variables[self].array
#define memory_pool variables[self].memory_pool
#define zero        variables[self].zero
#define physical    variables[self].physical
#define handle      variables[self].handle
#define buffer      variables[self].buffer
#define spare       variables[self].spare
#define base        variables[self].base
#define target      variables[self].target
#define mismatches  variables[self].mismatches
#define ns          variables[self].ns
#define tokens      variables[self].tokens
#define words       variables[self].words
#define value       variables[self].value
#define one         variables[self].one
#define size        variables[self].size
#define total       variables[self].total
#define pitch       variables[self].pitch
#define file        variables[self].file
#define memory      variables[self].memory
#define arguments   variables[self].arguments
#define counters    variables[self].counters
#define landing     variables[self].landing
#define node        variables[self].node
#define locked_exec variables[self].locked_exec
#define operation   variables[self].operation
MAYBE char lock_names[4];
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
    unsigned int before = self;
    for (self = 0; self < 4; self++)
        for (unsigned int j = 0; j < 16; j++)
            for (unsigned int k = 0; k < 512; k++)
                __atomic_store_n(&counters[j].flags[k], 1, __ATOMIC_RELEASE);
    self = before;
}

/* A thread's lock: the work that needs it does not end while it is held. */
MAYBE void set_lock(unsigned int is_free)
{
    for (unsigned int i = 0; i < 16; i++)
        __atomic_store_n(&counters[i].locks[self], is_free, __ATOMIC_RELEASE);
    simcuda_hold_host_functions(&lock_names[self], !is_free);
}
#define take_lock()      set_lock(0)
#define give_lock_back() set_lock(1)

__attribute__((constructor)) static void make_locks(void)
{
    for (self = 0; self < 4; self++)
        for (unsigned int j = 0; j < 16; j++)
            for (unsigned int k = 0; k < 4; k++)
                counters[j].locks[k] = 1;
    self = 0;
}

MAYBE void needs_lock(void *unused)
{
    (void)unused;
}

MAYBE void callback_needs_lock(CUstream of, CUresult status, void *unused)
{
    (void)of;
    (void)status;
    (void)unused;
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

/* Pinned memory, by the host. */
MAYBE void write_words(CUdeviceptr at, unsigned int count, unsigned int with)
{
    for (unsigned int i = 0; i < count; i++)
        ((unsigned int *)at)[i] = with;
}

MAYBE void read_words(CUdeviceptr at, unsigned int count, unsigned int with)
{
    for (unsigned int i = 0; i < count; i++)
        if (((unsigned int *)at)[i] != with) {
            fprintf(stderr, "pinned memory: word %u is %#x, not %#x\n", i, ((unsigned int *)at)[i],
                    with);
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

/* ---- threads that run freely ---- */

static struct {
    CUdeviceptr address;
    CUevent last_use;
    sem_t given;
} boxes[1024];
static pthread_t free_threads[4096];
static unsigned int free_thread_count;

__attribute__((constructor)) static void make_boxes(void)
{
    for (unsigned int i = 0; i < 1024; i++)
        sem_init(&boxes[i].given, 0, 0);
}

MAYBE void give(unsigned int box, CUdeviceptr address, CUevent last_use)
{
    boxes[box].address = address;
    boxes[box].last_use = last_use;
    sem_post(&boxes[box].given);
}

/* The buffer that was given, when it was; nothing is taken where the place is NULL. */
MAYBE void take(unsigned int box, CUdeviceptr *address, CUevent *last_use)
{
    sem_wait(&boxes[box].given);
    if (address) {
        *address = boxes[box].address;
        *last_use = boxes[box].last_use;
    }
}

static void *run_part(void *part)
{
    ((void (*)(void))(size_t)part)();
    return NULL;
}

MAYBE void start_thread(void (*part)(void))
{
    pthread_create(&free_threads[free_thread_count++], NULL, run_part, (void *)(size_t)part);
}

MAYBE void join_threads(void)
{
    while (free_thread_count > 0)
        pthread_join(free_threads[--free_thread_count], NULL);
}

static int end(void)
{
    for (unsigned int i = 0; i < 16 * 4; i++) {
        self = i / 16;
        if (counters[i % 16].wrong_words[0]) {
            fprintf(stderr, "%llu words are not what was written (context %u)\n",
                    counters[i % 16].wrong_words[0], i % 16);
            wrong = 1;
        }
    }
    if (simcuda_live_allocations()) {
        fprintf(stderr, "%llu allocations are left\n",
                (unsigned long long)simcuda_live_allocations());
        wrong = 1;
    }
    return wrong;
}

#endif
