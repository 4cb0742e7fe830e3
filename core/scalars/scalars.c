#include "scalars.h"

#include <stdlib.h>
#include <string.h>

#include "core/contexts/context.h"
#include "core/contexts/pool_state.h"
#include "core/contexts/registry.h"
#include "core/driver/calls.h"

bool scalars_start(struct pool *pool)
{
    pool->scalars = calloc(1, sizeof *pool->scalars);
    if (pool->scalars)
        pthread_mutex_init(&pool->scalars->rings.lock, NULL);
    return pool->scalars != NULL;
}

bool scalars_are_served(const struct pool *pool)
{
    const struct driver *driver = pool->driver;
    return driver->cuMemcpyHtoDAsync_v2 && driver->cuEventRecord && driver->cuMemHostAlloc &&
           driver->cuStreamIsCapturing;
}

/* ---- numbers ---- */

static struct scalar **link_of(struct scalars *scalars, uint64_t number)
{
    lock_must_be_held(&scalars->rings.lock);
    struct scalar **link = &scalars->lists[number % SCALAR_LISTS];
    while (*link && (*link)->number != number)
        link = &(*link)->next;
    return link;
}

uint64_t scalar_add(struct pool *pool, CUdeviceptr address, size_t bytes)
{
    bool green;
    struct context *context = context_current(pool, &green);
    struct scalar *scalar = context ? calloc(1, sizeof *scalar) : NULL;
    if (!scalar)
        return 0;
    *scalar = (struct scalar){.address = address,
                              .bytes = bytes,
                              .context = context,
                              .generation = context_generation(context)};
    struct scalars *scalars = pool->scalars;
    lock_take(&scalars->rings.lock, LOCK_SCALARS);
    uint64_t number = scalar->number = ++scalars->numbers;
    *link_of(scalars, number) = scalar;
    lock_give(&scalars->rings.lock);
    return number;
}

bool scalar_find(struct pool *pool, uint64_t number, struct scalar *found)
{
    struct scalars *scalars = pool->scalars;
    lock_take(&scalars->rings.lock, LOCK_SCALARS);
    const struct scalar *scalar = *link_of(scalars, number);
    if (scalar)
        *found = *scalar;
    lock_give(&scalars->rings.lock);
    return scalar != NULL;
}

bool scalar_remove(struct pool *pool, uint64_t number, struct scalar *removed)
{
    struct scalars *scalars = pool->scalars;
    lock_take(&scalars->rings.lock, LOCK_SCALARS);
    struct scalar **link = link_of(scalars, number), *scalar = *link;
    if (scalar) {
        *link = scalar->next;
        *removed = *scalar;
    }
    lock_give(&scalars->rings.lock);
    free(scalar);
    return scalar != NULL;
}

bool scalar_has_memory(const struct scalar *scalar)
{
    return context_generation(scalar->context) == scalar->generation;
}

/* ---- setting one ---- */

/* Returns an error for a captured stream: the copy would be a node, which reads its slot at each
 * launch. The query spoils no capture. CUDA_ERROR_STREAM_CAPTURE_IMPLICIT means that the stream is
 * the legacy one and a blocking stream is captured. */
static CUresult ask_for_captures(const struct driver *driver, CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = driver->cuStreamIsCapturing(stream, &status);
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ||
        (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return result;
}

/* Copies the value to the device, through a slot of the ring. If the event after the copy cannot be
 * recorded, nobody knows when the copy has completed. The slot is then never used again. */
static CUresult copy(struct pool *pool, struct scalar_ring *ring, const struct scalar *scalar,
                     const void *value, CUstream stream)
{
    const struct driver *driver = pool->driver;
    struct scalar_rings *rings = &pool->scalars->rings;
    struct scalar_slot *slot;
    CUresult result = scalar_ring_take(pool, rings, ring, &slot);
    if (result != CUDA_SUCCESS)
        return result;
    memcpy(slot->memory, value, scalar->bytes);
    result = driver->cuMemcpyHtoDAsync_v2(scalar->address, slot->memory, scalar->bytes, stream);
    if (result != CUDA_SUCCESS) {
        scalar_ring_put_back(rings, ring, slot);
        return result;
    }
    result = driver->cuEventRecord(slot->event, stream);
    if (result == CUDA_SUCCESS)
        scalar_ring_follow(rings, ring, slot);
    return result;
}

/* The context is current and pinned. Relaxed mode keeps the driver calls of copy from disturbing
 * another thread's capture. */
static CUresult set_in_context(struct pool *pool, const struct scalar *scalar, const void *value,
                               CUstream stream)
{
    const struct driver *driver = pool->driver;
    CUresult result = ask_for_captures(driver, stream);
    if (result != CUDA_SUCCESS)
        return result;
    struct scalar_ring *ring =
        scalar_ring_of(&pool->scalars->rings, scalar->context, scalar->generation);
    if (!ring)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct relaxed_mode mode = relaxed_mode_begin(driver);
    result = copy(pool, ring, scalar, value, stream);
    relaxed_mode_end(driver, mode);
    return result;
}

CUresult scalar_set(struct pool *pool, const struct scalar *scalar, const void *value,
                    CUstream stream)
{
    no_lock_may_be_held();
    bool green;
    if (context_current(pool, &green) != scalar->context ||
        !context_pin(scalar->context, scalar->generation))
        return CUDA_ERROR_INVALID_CONTEXT;
    enter_driver();
    CUresult result = set_in_context(pool, scalar, value, stream);
    leave_driver();
    context_unpin(scalar->context);
    return result;
}
