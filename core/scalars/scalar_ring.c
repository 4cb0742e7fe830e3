#include "scalar_ring.h"

#include <stdlib.h>

#include "core/base/clock.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"

/* How long a thread waits for the oldest slot before the ring grows past SLOTS_AT_MOST:
 * nanoseconds. */
#define PATIENCE UINT64_C(1000000000)

/* ---- rings ---- */

static void forget(struct scalar_ring **link)
{
    struct scalar_ring *ring = *link;
    *link = ring->next;
    while (ring->pieces) {
        struct scalar_piece *piece = ring->pieces;
        ring->pieces = piece->next;
        free(piece);
    }
    free(ring);
}

struct scalar_ring *scalar_ring_of(struct scalar_rings *rings, struct context *context,
                                   uint64_t generation)
{
    lock_take(&rings->lock, LOCK_SCALARS);
    struct scalar_ring **link = &rings->first;
    while (*link && ((*link)->context != context || (*link)->generation != generation)) {
        /* A thread that uses a ring has pinned its context, so nobody uses a ring whose context has
         * ended. */
        if (context_generation((*link)->context) != (*link)->generation)
            forget(link);
        else
            link = &(*link)->next;
    }
    struct scalar_ring *ring = *link;
    if (!ring && (ring = calloc(1, sizeof *ring))) {
        ring->context = context;
        ring->generation = generation;
        ring->newest = &ring->oldest;
        *link = ring;
    }
    lock_give(&rings->lock);
    return ring;
}

/* ---- slots ---- */

static struct scalar_slot *take_free(struct scalar_rings *rings, struct scalar_ring *ring)
{
    lock_take(&rings->lock, LOCK_SCALARS);
    struct scalar_slot *slot = ring->free;
    if (slot)
        ring->free = slot->next;
    lock_give(&rings->lock);
    return slot;
}

void scalar_ring_put_back(struct scalar_rings *rings, struct scalar_ring *ring,
                          struct scalar_slot *slot)
{
    lock_take(&rings->lock, LOCK_SCALARS);
    slot->next = ring->free;
    ring->free = slot;
    lock_give(&rings->lock);
}

void scalar_ring_follow(struct scalar_rings *rings, struct scalar_ring *ring,
                        struct scalar_slot *slot)
{
    lock_take(&rings->lock, LOCK_SCALARS);
    slot->next = NULL;
    *ring->newest = slot;
    ring->newest = &slot->next;
    lock_give(&rings->lock);
}

static struct scalar_slot *take_oldest(struct scalar_rings *rings, struct scalar_ring *ring)
{
    lock_take(&rings->lock, LOCK_SCALARS);
    struct scalar_slot *slot = ring->oldest;
    if (slot) {
        ring->oldest = slot->next;
        if (!ring->oldest)
            ring->newest = &ring->oldest;
    }
    lock_give(&rings->lock);
    return slot;
}

static void put_oldest_back(struct scalar_rings *rings, struct scalar_ring *ring,
                            struct scalar_slot *slot)
{
    lock_take(&rings->lock, LOCK_SCALARS);
    slot->next = ring->oldest;
    if (!ring->oldest)
        ring->newest = &slot->next;
    ring->oldest = slot;
    lock_give(&rings->lock);
}

/* Takes the oldest slot if its copy has completed. Returns NULL if there is no slot, or if the copy
 * has not completed. No other thread has the slot while this thread asks the driver. A slot whose
 * event gives an error is never used again. */
static struct scalar_slot *take_over(struct pool *pool, struct scalar_rings *rings,
                                     struct scalar_ring *ring)
{
    struct scalar_slot *oldest;
    while ((oldest = take_oldest(rings, ring))) {
        CUresult result = pool->driver->cuEventQuery(oldest->event);
        if (result == CUDA_SUCCESS)
            return oldest;
        if (result == CUDA_ERROR_NOT_READY) {
            put_oldest_back(rings, ring, oldest);
            return NULL;
        }
    }
    return NULL;
}

static CUresult grow(struct pool *pool, struct scalar_rings *rings, struct scalar_ring *ring)
{
    void *memory;
    struct scalar_piece *piece = calloc(1, sizeof *piece);
    if (!piece)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = pool->driver->cuMemHostAlloc(&memory, SLOTS_OF_PIECE * SCALAR_BYTES, 0);
    if (result != CUDA_SUCCESS) {
        free(piece);
        return result;
    }
    lock_take(&rings->lock, LOCK_SCALARS);
    piece->next = ring->pieces;
    ring->pieces = piece;
    ring->slots += SLOTS_OF_PIECE;
    for (unsigned i = 0; i < SLOTS_OF_PIECE; i++) {
        piece->slots[i].memory = (char *)memory + i * SCALAR_BYTES;
        piece->slots[i].next = ring->free;
        ring->free = &piece->slots[i];
    }
    lock_give(&rings->lock);
    return CUDA_SUCCESS;
}

static bool may_grow(struct scalar_rings *rings, const struct scalar_ring *ring)
{
    lock_take(&rings->lock, LOCK_SCALARS);
    bool may = ring->slots < SLOTS_AT_MOST;
    lock_give(&rings->lock);
    return may;
}

static CUresult take(struct pool *pool, struct scalar_rings *rings, struct scalar_ring *ring,
                     struct scalar_slot **slot)
{
    uint64_t started = 0;
    while (!(*slot = take_free(rings, ring)) && !(*slot = take_over(pool, rings, ring))) {
        CUresult result = CUDA_SUCCESS;
        started = started ? started : monotonic_now();
        if (!may_grow(rings, ring) && monotonic_now() - started < PATIENCE)
            patient_nap(started);
        else if ((result = grow(pool, rings, ring)) != CUDA_SUCCESS)
            return result;
    }
    if ((*slot)->event)
        return CUDA_SUCCESS;
    CUresult result = pool->driver->cuEventCreate(&(*slot)->event, CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS)
        scalar_ring_put_back(rings, ring, *slot);
    return result;
}

CUresult scalar_ring_take(struct pool *pool, struct scalar_rings *rings, struct scalar_ring *ring,
                          struct scalar_slot **slot)
{
    no_lock_may_be_held();
    bool pushed;
    /* Makes the ring's context current. Memory and events that are made in a green context would
     * end with that green context. */
    if (!context_push(pool, ring->context, &pushed))
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = take(pool, rings, ring, slot);
    context_pop(pool, pushed);
    return result;
}
