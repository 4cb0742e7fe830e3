/*
 * Sleeping until a word changes, which may be in a file that several processes map.
 *
 * Any thread. Neither is a cancellation point, and errno stays as it was.
 */
#ifndef CUDAPOOL_CORE_FUTEX_H
#define CUDAPOOL_CORE_FUTEX_H

#include <stdint.h>

/* Sleeps while the word has this value, until somebody wakes those who sleep on it, or the
 * monotonic clock shows until (UINT64_MAX: for ever), or for no reason. */
void futex_wait(const _Atomic(uint32_t) *word, uint32_t value, uint64_t until);

/* Wakes all who sleep on the word. */
void futex_wake(const _Atomic(uint32_t) *word);

#endif
