/*
 * Sleeps until a word changes. The word may be in a file that several processes map.
 *
 * Any thread. Neither function is a cancellation point, and errno stays as it was.
 */
#ifndef CUDAPOOL_CORE_FUTEX_H
#define CUDAPOOL_CORE_FUTEX_H

#include <stdint.h>

/* Sleeps while *word == value. Returns when somebody wakes the sleepers on the word, when the
 * monotonic clock reaches until (UINT64_MAX: never), or spuriously. */
void futex_wait(const _Atomic(uint32_t) *word, uint32_t value, uint64_t until);

/* Sleeps until the monotonic clock reaches until, or returns earlier for no reason. */
void futex_sleep(uint64_t until);

/* Wakes all threads that sleep on the word. */
void futex_wake(const _Atomic(uint32_t) *word);

#endif
