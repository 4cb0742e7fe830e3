/*
 * What virtual_time.c offers beside the functions of libc that it replaces.
 */
#ifndef TESTS_RANDOM_VIRTUAL_TIME_H
#define TESTS_RANDOM_VIRTUAL_TIME_H

#include <stdint.h>

/* Called in the thread that waits, when one has polled for longer than any work takes. */
void virtual_time_on_stall(void (*handler)(void));

/* Threads run beside each other: whoever polls gives the others real time while virtual time
 * passes, or seconds of it would have passed before they could do anything. */
void virtual_time_is_shared(void);

/* Each read of the clock takes a nanosecond, as reads of a real one take time. */
void virtual_time_moves(void);

/* The calling thread enters a call: what it waited before does not count. */
void virtual_time_new_call(void);

#endif
