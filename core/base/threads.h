/*
 * Thread functions that glibc before version 2.34 has in a separate library (libpthread).
 */
#ifndef CUDAPOOL_CORE_THREADS_H
#define CUDAPOOL_CORE_THREADS_H

#include <pthread.h>
#include <stddef.h>

/* pthread_key_create, pthread_setspecific, pthread_create and pthread_attr_setstacksize, which must
 * be looked up at run time. NULL: the process does not have that function. */
struct thread_functions {
    int (*key_create)(pthread_key_t *, void (*)(void *));
    int (*set_specific)(pthread_key_t, const void *);
    int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    int (*set_stack_size)(pthread_attr_t *, size_t);
};

#endif
