/*
 * The data of rounds; rounds.h says what they are for.
 *
 *   rounds->over <= rounds->begun <= rounds->over + ROUNDS_MAX
 *   round n is in slots[n % ROUNDS_MAX] while over < n <= begun
 */
#ifndef CUDAPOOL_CORE_ROUND_H
#define CUDAPOOL_CORE_ROUND_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fence_event;

#define ROUNDS_MAX 8u

struct round {
    uint64_t set_generation; /* of the set of contexts that events was made for */
    unsigned event_count;
    struct fence_event *events; /* written under the fence lock, before the round has begun */
};

struct rounds {
    /* The number of the newest round. Written under the fence lock with release; read with acquire
     * where a thread asks about it without the lock. */
    _Atomic uint64_t begun;
    /* The number of the newest round that has completed. The thread that has set asking writes it.
     * Release and acquire, since its slot is used again. */
    _Atomic uint64_t over;
    /* Fences recorded since the newest round began. Relaxed: it chooses when the next round
     * begins. */
    _Atomic uint64_t fences;
    /* Contexts in the newest round. Relaxed: it chooses when the next round begins. */
    _Atomic uint64_t contexts;
    _Atomic bool asking; /* a thread is asking the driver about a round */
    struct round slots[ROUNDS_MAX];
};

#endif
