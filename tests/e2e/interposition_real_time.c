/*
 * Two threads on one processor race into the first call: one is starting the pool when the other,
 * which has a real-time priority, takes the processor from it and must wait for it. The kernel lets
 * the one that starts run for some 50 ms of a second only, or not at all, unless the other sleeps.
 *
 * Exits 77 where threads may have no real-time priority.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <time.h>

#include "interposition.h"

/* Of processor time that the wait may take: without a sleep in it, it takes 950 ms. */
#define MOST_NANOSECONDS 300000000

static sem_t is_starting;
static bool has_started;

typedef int register_function(void (*prepare)(void), void (*parent)(void), void (*child)(void),
                              void *object);
register_function __register_atfork;

/* The pool calls it once it has begun to start, and before others are told. */
int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void),
                      void *object)
{
    if (is_ours(__builtin_return_address(0))) {
        has_started = true;
        sem_post(&is_starting);
    }
    return ((register_function *)function_of(RTLD_NEXT, "__register_atfork"))(prepare, parent,
                                                                              child, object);
}

static long long processor_time(void)
{
    struct timespec time;
    CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void *race(void *nothing)
{
    CUdeviceptr memory;
    while (sem_wait(&is_starting) != 0)
        ;
    long long before = processor_time();
    CU(cuInit(0));
    cuMemAlloc_v2(&memory, 1); /* without a context: an error, which is of no interest */
    long long took = processor_time() - before;
    if (took > MOST_NANOSECONDS)
        FAIL("%lld ms of processor time", took / 1000000);
    return nothing;
}

static void stay_on_one_processor(void)
{
    cpu_set_t allowed, one;
    size_t processor = 0;
    CHECK(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
    while (!CPU_ISSET(processor, &allowed))
        processor++;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
}

static int start_with_real_time(pthread_t *thread)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setinheritsched(&attributes, PTHREAD_EXPLICIT_SCHED);
    pthread_attr_setschedpolicy(&attributes, SCHED_FIFO);
    pthread_attr_setschedparam(&attributes, &(struct sched_param){.sched_priority = 1});
    return pthread_create(thread, &attributes, race, NULL);
}

int main(void)
{
    pthread_t thread;
    CUdeviceptr memory;
    sem_init(&is_starting, 0, 0);
    stay_on_one_processor();
    int error = start_with_real_time(&thread);
    if (error == EPERM)
        return 77;
    CHECK(error == 0);
    CU(cuInit(0));
    cuMemAlloc_v2(&memory, 1);
    CHECK(has_started);
    CHECK(pthread_join(thread, NULL) == 0);
    return 0;
}
