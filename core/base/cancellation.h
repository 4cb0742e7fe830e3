/*
 * Threads that the program ends by pthread_cancel: none ends in the pool, where it would leave a
 * lock taken, or a wait that others look at unfinished. So whatever may be a cancellation point
 * (naps, files, the driver) is made between these two.
 */
#ifndef CUDAPOOL_CORE_CANCELLATION_H
#define CUDAPOOL_CORE_CANCELLATION_H

#include <pthread.h>

/* Returns what cancellation_restore needs. */
static inline int cancellation_off(void)
{
    /* Before glibc 2.34, a process without threads is told nothing. */
    int before = PTHREAD_CANCEL_ENABLE;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

static inline void cancellation_restore(int before)
{
    pthread_setcancelstate(before, &(int){0});
}

#endif
