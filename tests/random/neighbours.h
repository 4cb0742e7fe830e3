/*
 * Random processes that share a device: what the process that starts them (neighbours.c) and they
 * (neighbours_worker.c) know of each other, in memory that they share.
 *
 * The model: sum is no less than what all processes together would hold of the device without the
 * pool, at any moment. A request is added before the call and taken off after the free has returned
 * (stream-ordered memory: after the stream was synchronised). While the sum is no more than the
 * device has, no call may fail. So a process that wants memory adds its request only where the sum
 * stays below that, and is then owed the memory; now and then it asks for more all the same. Then
 * it may fail, and so may others until its call is over.
 *
 * What a process that is stopped caches nobody can have; nor for ten seconds what one caches that
 * did not answer, which for that time is not asked again.
 *
 * In a group the total is the group's limit, and the device has more. Then they take memory of
 * every kind that counts, and the limit is never passed: certain is no more than what all of them
 * hold together at the moment at which somebody adds to it. A block is added once the call has
 * succeeded and taken off before it is freed. Where they are greedy, little else is judged.
 */
#ifndef TESTS_RANDOM_NEIGHBOURS_H
#define TESTS_RANDOM_NEIGHBOURS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { MOST_PROCESSES = 64, TABLE_FD = 60, WHY_BYTES = 300 };

/* What a process is told to do. */
enum phase {
    PHASE_LIVE,  /* allocate, free, wait, fork, execute itself, end */
    PHASE_EMPTY, /* free everything and do nothing */
    PHASE_TAKE,  /* the one that table.taker says: all of the device */
    PHASE_LEAVE,
};

/* The process itself writes what is not said otherwise; it may be killed between any two writes. */
struct slot {
    _Atomic uint64_t held;      /* its part of the sum, or less */
    _Atomic uint64_t peak;      /* the most of that since it started */
    _Atomic uint64_t before;    /* the peak of the process that had the slot before */
    _Atomic uint64_t certain;   /* its part of that sum, or more */
    _Atomic uint64_t exceeding; /* 1: it is adding a request that need not be met */
    _Atomic uint64_t steps;     /* so far, of all that had the slot */
    _Atomic uint64_t requests, refused, forks, executions;
    _Atomic int32_t pid;
    _Atomic uint32_t phase_done;   /* the last phase that it has come to the end of */
    _Atomic uint64_t unsure_until; /* by the starting process as well: until then (nanoseconds of
                                      the monotonic clock) nobody may get what it caches */
    char doing[64];
    char why[WHY_BYTES];
};

struct table {
    uint64_t total;   /* what the device, or the limit, has for all */
    uint64_t limit;   /* of the group, the processes' counters included */
    bool whole_pages; /* sizes are powers of two, of which nothing is rounded up */
    bool pooled, grouped;
    bool greedy; /* every request is one that need not be met: they race for the last bytes */
    uint32_t processes, largest_shift; /* the largest request: 2 MiB << largest_shift */
    uint64_t seed;
    _Atomic uint64_t sum;
    _Atomic int64_t certain;   /* too low where a process was killed between two writes, of hold or
                                  of hold_no_more */
    _Atomic uint64_t exceeded; /* how many requests have been added that need not be met */
    _Atomic uint32_t phase, taker;
    struct slot slots[MOST_PROCESSES];
};

/* A process on the slot; start is how many had it before. Its exit status: 0, or 3 where the rule
 * is broken (slot.why), or 4 for anything else that is wrong. */
int run_worker(unsigned int slot, unsigned int start);

/* A group learns in this time, in nanoseconds, that a process has ended, or executed itself. */
#define GROUP_LEARNS UINT64_C(30000000)

static inline void unsure_at_least(struct slot *slot, uint64_t until)
{
    uint64_t before = atomic_load(&slot->unsure_until);
    while (before < until && !atomic_compare_exchange_weak(&slot->unsure_until, &before, until))
        continue;
}

/* splitmix64 */
static inline uint64_t next_number(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static inline uint64_t below(uint64_t *state, uint64_t count)
{
    return next_number(state) % count;
}

#endif
