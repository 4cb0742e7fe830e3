/*
 * Rounds as data (rounds.h).
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
    _Atomic uint64_t begun; /* number of the newest. Written under the fence lock, release; acquire
                               where it is asked about without */
    _Atomic uint64_t over;  /* number of the newest that is over: of whoever has set asking. Release
                               and acquire: its slot is used again */
    _Atomic uint64_t fences;   /* recorded since the newest began. Relaxed: it chooses when the next
                                  one does */
    _Atomic uint64_t contexts; /* of the newest; relaxed, likewise */
    _Atomic bool asking;       /* a thread asks the driver about a round */
    struct round slots[ROUNDS_MAX];
};

#endif
