/*
 * What is known of the memory that graphs keep: the data alone. What may be done with it is in
 * graph_blocks.h, graph_owners.h and graph_memory.h.
 */
#ifndef CUDAPOOL_CORE_GRAPH_STATE_H
#define CUDAPOOL_CORE_GRAPH_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/contexts/kind.h"
#include "core/contexts/pool_state.h"
#include "core/driver/cuda_abi.h"

struct block;
struct capture;

struct graph_block {
    CUdeviceptr address;
    struct block *block; /* the heap's record */
    uint64_t bytes;      /* of it */
    uint64_t links;
    uint64_t last_owner; /* the number of the owner that was linked last */
    bool parked;         /* the program has freed it */
    bool forgotten;      /* out of the table: its context has ended, or the address is another's */
    bool astray;         /* found where it must not be, and counted */
    struct graph_block *next; /* in its place of the table */
};

struct graph_link {
    struct graph_block *block;
    struct graph_link *next;
};

struct graph_owner {
    struct graph_memory *memory;
    uint64_t number;               /* from 1; no two owners have the same */
    const struct capture *capture; /* while that is under way, else NULL */
    uint64_t bytes;                /* of all blocks that it has ever owned */
    uint64_t stream, began;        /* for the report: see graph_counts.def */
    uint64_t thread;               /* that has begun the capture: thread_id */
    struct graph_link *links;
    struct graph_owner *next; /* of those whose captures are under way */
    /* Written by the user object's destructor, which takes no lock; release there, acquire where it
     * is looked at. */
    _Atomic bool gone;
    struct graph_owner *next_gone;
    bool unused;   /* no graph has retained it. Written before the destructor can run */
    bool taken_up; /* from the list of those that are gone, while its capture was under way */
};

/* By address: chains in places, whose number is a power of two. */
struct graph_blocks {
    struct graph_block **places;
    size_t place_count, count;
};

struct graph_memory {
    pthread_mutex_t lock;
    _Atomic(struct graph_owner *) gone; /* through next_gone: to be taken up. Release when one is
                                           put there, acquire when they are taken */
    struct graph_owner *under_way;      /* whose captures are */
    _Atomic bool unfenced; /* something became pending while no fence could be recorded. Relaxed */
    _Atomic uint64_t unparked; /* bytes that became pending, and the housekeeper has not been told
                                  of. Relaxed */
    struct graph_blocks blocks;
    uint64_t owners;                           /* ever made */
    _Atomic(struct graph_counters *) counters; /* in the figures, once a device is known; else the
                                                  next. Set under the lock; read without where
                                                  launches are counted */
    struct graph_counters first_counters;
};

/* NULL where the settings do not want it. */
static inline struct graph_memory *graph_memory_of(const struct pool *pool)
{
    return pool->of_kind[KIND_GRAPH];
}

#endif
