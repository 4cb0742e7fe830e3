/*
 * Device scalars: values in device memory that the program sets in a stream's order, before the
 * launch of a graph that reads them, for example (cudapool.h).
 *
 * What is set is copied into a slot of pinned memory (scalar_ring.h), and from there to the device
 * by an operation of the stream: the program may go on at once, and set the next value before the
 * last one was read. A stream that a capture has is refused, since the graph would copy from the
 * slot at each launch, whatever is in it by then.
 *
 * The memory of a scalar is the caller's: here it is only known by its number, which no other
 * scalar ever has.
 *
 * Locking: the scalars' lock guards the lists of scalars, as it does the rings. No lock is held by
 * the callers.
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
    struct scalar *next; /* in its list */
};

#define SCALAR_LISTS 64u /* by number */

struct scalars {
    struct scalar_rings rings;
    struct scalar *lists[SCALAR_LISTS];
    uint64_t numbers; /* ever given */
};

/* Sets pool->scalars. False where memory is short. */
bool scalars_start(struct pool *pool);

/* Whether the driver has what it takes. */
bool scalars_are_served(const struct pool *pool);

/* The number of a new scalar with this memory of the current context; 0 where there can be none. */
uint64_t scalar_add(struct pool *pool, CUdeviceptr address, size_t bytes);

/* Copies out the one with the number; likewise, and the number names nothing any more. False: there
 * is none. */
bool scalar_find(struct pool *pool, uint64_t number, struct scalar *found);
bool scalar_remove(struct pool *pool, uint64_t number, struct scalar *removed);

/* Whether its memory is still there: its context has not ended. */
bool scalar_has_memory(const struct scalar *scalar);

/* Sets it in the stream's order. */
CUresult scalar_set(struct pool *pool, const struct scalar *scalar, const void *value,
                    CUstream stream);

#endif
