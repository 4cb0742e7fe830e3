/*
 * Arithmetic on two numbers of bytes, blocks or nanoseconds.
 */
#ifndef CUDAPOOL_CORE_NUMBERS_H
#define CUDAPOOL_CORE_NUMBERS_H

#include <stdint.h>

static inline uint64_t smaller_of(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

static inline uint64_t larger_of(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

/* Returns max(0, all - part). part may seem to exceed all, since other threads change the numbers
 * meanwhile. */
static inline uint64_t rest_of(uint64_t all, uint64_t part)
{
    return all > part ? all - part : 0;
}

/* Returns a + b; UINT64_MAX if the sum is too large for 64 bits. The counters of a hostile file, or
 * of a very long run, may be that large. */
static inline uint64_t saturating_sum(uint64_t a, uint64_t b)
{
    return a + b < a ? UINT64_MAX : a + b;
}

#endif
