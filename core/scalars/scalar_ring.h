/*
 * Pinned memory from which values are copied to the device (scalars.h), in slots of SCALAR_BYTES.
 *
 * Each context has a ring of them, which all scalars of the context share. A slot that a copy reads
 * has an event behind that copy, and is written again only once the driver has said that the event
 * is over: so no value is overwritten before it was read. Where the oldest one is not over, the
 * ring grows by a piece, up to SLOTS_AT_MOST; from then on whoever wants a slot waits for the
 * oldest, for a second at most, since the program may hold a lock that this work needs, and then
 * the ring grows all the same. It never shrinks: the driver's free of pinned memory would wait for
 * the context's work. The ring goes with its context, which takes the memory and the events along.
 *
 * Locking: the scalars' lock guards the rings and their lists. Nobody else touches a slot that was
 * taken. The ring's context is pinned for all of these, which keeps the ring, and it or a green one
 * of its is current; no lock is held.
 */
#ifndef CUDAPOOL_CORE_SCALAR_RING_H
#define CUDAPOOL_CORE_SCALAR_RING_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"

struct context;
struct pool;

#define SCALAR_BYTES   64u /* the longest value */
#define SLOTS_OF_PIECE 64u
#define SLOTS_AT_MOST  1024u

struct scalar_slot {
    void *memory;
    CUevent event; /* NULL: none was needed yet */
    struct scalar_slot *next;
};

struct scalar_piece {
    struct scalar_piece *next;
    struct scalar_slot slots[SLOTS_OF_PIECE];
};

struct scalar_ring {
    struct context *context;
    uint64_t generation;         /* of the context */
    struct scalar_slot *free;    /* which nothing reads */
    struct scalar_slot *oldest;  /* that copies read, or may read: by when they were taken */
    struct scalar_slot **newest; /* where the next one of these goes */
    unsigned slots;
    struct scalar_piece *pieces;
    struct scalar_ring *next;
};

/* Rings of all contexts, by the first; those whose context has ended are forgotten. */
struct scalar_rings {
    pthread_mutex_t lock;
    struct scalar_ring *first;
};

/* The ring of the context; NULL where memory is short. */
struct scalar_ring *scalar_ring_of(struct scalar_rings *rings, struct context *context,
                                   uint64_t generation);

/* Sets *slot to one that nothing reads. May be called while captures go on, in relaxed mode. */
CUresult scalar_ring_take(struct pool *pool, struct scalar_rings *rings, struct scalar_ring *ring,
                          struct scalar_slot **slot);

/* A copy reads the slot, and its event was recorded behind; or nothing reads it. */
void scalar_ring_follow(struct scalar_rings *rings, struct scalar_ring *ring,
                        struct scalar_slot *slot);
void scalar_ring_put_back(struct scalar_rings *rings, struct scalar_ring *ring,
                          struct scalar_slot *slot);

#endif
