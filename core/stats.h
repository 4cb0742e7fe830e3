/*
 * Counters: what a bucket did.
 *
 * Each counter has one writer at a time (whoever holds the heap lock), and readers that take no
 * lock and only want a number that was true a moment ago: plain loads and stores of a relaxed
 * atomic, which pair with nothing.
 */
#ifndef CUDAPOOL_CORE_STATS_H
#define CUDAPOOL_CORE_STATS_H

#include <stdatomic.h>
#include <stdint.h>

typedef _Atomic uint64_t counter;

enum hit { HIT_CLEAN, HIT_QUERIED, HIT_BARRIER, HIT_WAITED, HIT_KINDS };
enum eviction { EVICTION_CAP, EVICTION_IDLE, EVICTION_MEMORY, EVICTION_KINDS };

struct bucket_counters {
    counter requests;
    counter hits[HIT_KINDS];
    counter misses;
    counter frees;
    counter requested_bytes;
    counter reserved_bytes; /* of all blocks: live, clean and pending */
    counter free_bytes;     /* clean and pending */
    counter clean_bytes;
    counter peak_live_bytes;
    counter peak_reserved_bytes;
    counter evictions[EVICTION_KINDS];
    counter allocation_calls; /* to the driver, failed ones included */
    counter allocation_nanoseconds;
    counter returned_blocks; /* blocks given back to the driver, and what that took */
    counter return_nanoseconds;
};

static inline uint64_t counter_get(const counter *c)
{
    return atomic_load_explicit(c, memory_order_relaxed);
}

static inline void counter_set(counter *c, uint64_t value)
{
    atomic_store_explicit(c, value, memory_order_relaxed);
}

static inline void counter_add(counter *c, uint64_t value)
{
    counter_set(c, counter_get(c) + value);
}

static inline void counter_subtract(counter *c, uint64_t value)
{
    counter_set(c, counter_get(c) - value);
}

static inline void counter_raise_to(counter *c, uint64_t value)
{
    if (value > counter_get(c))
        counter_set(c, value);
}

#endif
