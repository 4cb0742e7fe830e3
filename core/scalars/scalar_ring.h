/*
 * Pinned memory from which values are copied to the device (scalars.h), in slots of SCALAR_BYTES.
 *
 * Each context has a ring of slots, which all its scalars share. After the copy that reads a slot,
 * an event is recorded. The slot is written again only after the driver has said that the event has
 * completed, so no value is overwritten before it was read.
 *
 * Where the oldest event has not completed, the ring grows by a piece, up to SLOTS_AT_MOST slots.
 * From then on, whoever wants a slot waits for the oldest one, for a second at most, and then the
 * ring grows all the same. The wait is bounded because the program may hold a lock that the GPU's
 * work needs in order to end. The ring never shrinks, because the driver's free of pinned memory
 * would wait for the context's work. When the context ends, the driver releases the memory and the
 * events, and the ring is forgotten.
 *
 * Locking: the scalars' lock guards the rings and their lists. Only the thread that has taken a
 * slot touches it. The callers have pinned the ring's context, which keeps the ring. That context,
 * or a green one of its, is current, and no lock is held.
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
    CUevent event; /* NULL: the slot was never used */
    struct scalar_slot *next;
};

struct scalar_piece {
    struct scalar_piece *next;
    struct scalar_slot slots[SLOTS_OF_PIECE];
};

struct scalar_ring {
    struct context *context;
    uint64_t generation;         /* of the context */
    struct scalar_slot *free;    /* slots that no copy reads */
    struct scalar_slot *oldest;  /* slots that copies may still read, in the order in which they
                                    were taken */
    struct scalar_slot **newest; /* where the next such slot is linked */
    unsigned slots;
    struct scalar_piece *pieces;
    struct scalar_ring *next;
};

/* The rings of all contexts. Rings whose context has ended are forgotten. */
struct scalar_rings {
    pthread_mutex_t lock;
    struct scalar_ring *first;
};

/* The ring of the context, made if there is none; NULL where memory is short. */
struct scalar_ring *scalar_ring_of(struct scalar_rings *rings, struct context *context,
                                   uint64_t generation);

/* Sets *slot to a slot that no copy reads. May be called while captures are under way, in relaxed
 * mode. */
CUresult scalar_ring_take(struct pool *pool, struct scalar_rings *rings, struct scalar_ring *ring,
                          struct scalar_slot **slot);

/* scalar_ring_follow: a copy reads the slot, and the slot's event was recorded after it.
 * scalar_ring_put_back: no copy reads the slot. */
void scalar_ring_follow(struct scalar_rings *rings, struct scalar_ring *ring,
                        struct scalar_slot *slot);
void scalar_ring_put_back(struct scalar_rings *rings, struct scalar_ring *ring,
                          struct scalar_slot *slot);

#endif
