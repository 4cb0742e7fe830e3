/*
 * Device scalars: values in device memory that the program sets in stream order, for example before
 * the launch of a graph that reads them (cudapool.h).
 *
 * A new value is copied into a slot of pinned memory (scalar_ring.h). An operation of the stream
 * copies it from there to the device. So the program may go on at once, and set the next value
 * before the last one was read. A captured stream is refused, because the graph would copy whatever
 * is in the slot at each launch.
 *
 * The caller owns a scalar's memory. This file knows a scalar by its number, which no other scalar
 * ever has.
 *
 * Locking: the scalars' lock guards the lists of scalars, as it does the rings. The callers hold no
 * lock.
 */
#ifndef CUDAPOOL_CORE_SCALARS_H
#define CUDAPOOL_CORE_SCALARS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/driver/cuda_abi.h"
#include "scalar_ring.h"

struct scalar {
    uint64_t number;
    CUdeviceptr address;
    size_t bytes;
    struct context *context;
    uint64_t generation; /* of the context */
    struct scalar *next; /* the next one in the same list */
};

#define SCALAR_LISTS 64u /* lists, chosen by number */

struct scalars {
    struct scalar_rings rings;
    struct scalar *lists[SCALAR_LISTS];
    uint64_t numbers; /* how many numbers were ever given */
};

/* Sets pool->scalars. False where memory is short. */
bool scalars_start(struct pool *pool);

/* Whether the driver has the functions that scalars need. */
bool scalars_are_served(const struct pool *pool);

/* Makes a scalar of this memory of the current context. Returns its number, or 0 where none can be
 * made. */
uint64_t scalar_add(struct pool *pool, CUdeviceptr address, size_t bytes);

/* scalar_find copies out the scalar with this number. scalar_remove does so too, and then the
 * number names nothing. False: there is no such scalar. */
bool scalar_find(struct pool *pool, uint64_t number, struct scalar *found);
bool scalar_remove(struct pool *pool, uint64_t number, struct scalar *removed);

/* Whether the scalar's memory still exists: its context has not ended. */
bool scalar_has_memory(const struct scalar *scalar);

/* Sets the scalar in stream order. */
CUresult scalar_set(struct pool *pool, const struct scalar *scalar, const void *value,
                    CUstream stream);

#endif
