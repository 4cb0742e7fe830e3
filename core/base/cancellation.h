/*
 * Keeps pthread_cancel from ending a thread inside the pool.
 *
 * A thread that ended there would leave a lock taken, or a wait unfinished that other threads look
 * at. So every call of the pool that may be a cancellation point (naps, files, the driver) stands
 * between cancellation_off and cancellation_restore.
 */
#ifndef CUDAPOOL_CORE_CANCELLATION_H
#define CUDAPOOL_CORE_CANCELLATION_H

#include <pthread.h>

/* Turns cancellation off. Returns the state that cancellation_restore needs. */
static inline int cancellation_off(void)
{
    /* Before glibc 2.34, the call stores nothing here in a process without threads. */
    int before = PTHREAD_CANCEL_ENABLE;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

static inline void cancellation_restore(int before)
{
    pthread_setcancelstate(before, &(int){0});
}

#endif
